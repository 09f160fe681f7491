"""What the recorder does when it cannot go on: warn once, count, and let the training run."""

from __future__ import annotations

import errno
import functools
import itertools
import os
import sys
import warnings

from tracelens_instrument.core.state import STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import CodeType, TracebackType
    from typing import Any, Final, ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

__all__ = [
    "Counter",
    "Tolerated",
    "cannot_write",
    "contain",
    "contained",
    "reraise_if_handlers",
    "short_repr",
    "warn_if_out_of_memory",
    "warn_once",
]

_MAX_REPR_LETTERS: Final = 200
_OUT_OF_MEMORY: Final = "memory has run out, so events may be missing; the training goes on"
_OUT_OF_MEMORY_LINE: Final = f"TraceLens: {_OUT_OF_MEMORY}\n".encode()
_STDERR: Final = 2

_warned: dict[str, object] = {}


def warn_once(sentence: str, topic: str | None = None) -> None:
    """Warn of `sentence`, once in the life of the process; never raises.

    Of several sentences on one `topic` only the first is said. A user may have turned warnings into
    errors, or closed what they are written to, and the training must not fail by ours.
    """
    own_mark = object()  # an earlier warning has left another one
    if _warned.setdefault(topic or sentence, own_mark) is not own_mark:
        return
    message = f"TraceLens: {sentence}"
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    except Exception as error:  # noqa: BLE001 - filters and printers of warnings are the user's
        reraise_if_handlers(error)
        _write(f"{message}\n")


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
    except Exception as error:  # noqa: BLE001 - there may be no stderr, or one of the user's own
        reraise_if_handlers(error)


def warn_if_out_of_memory(error: Exception, sentence: str = _OUT_OF_MEMORY) -> bool:
    """Return True, and warn once in the life of the process, if `error` says that memory ran out.

    One failed allocation is followed by others at other places, for which one warning is enough.
    """
    if not (isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM):
        return False
    try:
        warn_once(sentence, _OUT_OF_MEMORY)
    except MemoryError:  # not even a warning has room
        try:  # noqa: SIM105 - nothing may be allocated
            os.write(_STDERR, _OUT_OF_MEMORY_LINE)
        except (OSError, MemoryError):
            pass
    return True


def cannot_write(what: str, folder: Path, error: Exception) -> None:
    """Warn, once for a recording, that it cannot be written any more, in part or at all."""
    try:
        sentence = f"{what}, the training goes on ({folder}: {str(error) or 'out of memory'})"
    except MemoryError:
        sentence = _OUT_OF_MEMORY
    if not warn_if_out_of_memory(error, sentence):
        warn_once(sentence, f"write {folder}")


def contain(error: Exception) -> None:
    """Keep a failure of the recorder out of the training: warn once, and count the event as lost.

    Raises:
        Exception: `error` itself, if it is not the recorder's, see `reraise_if_handlers`.
    """
    reraise_if_handlers(error)
    recording = STATE.recording
    if recording is not None:
        recording.failed_events.add()
    if not warn_if_out_of_memory(error):
        warn_once(f"the recorder failed, the training goes on ({short_repr(error)})", "failed")


def contained(function: Callable[P, R]) -> Callable[P, R | None]:
    """Contain any failure in `function`, and return None then."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            contain(error)
            return None

    return call


def reraise_if_handlers(error: Exception) -> None:
    """Raise `error` if a signal handler of the program raised it while the recorder ran.

    Programs limit times so: the exception is for them, wherever it comes up.

    Raises:
        Exception: `error` itself, if it is so.
    """
    if _raised_by_handler(error):
        raise error


class Tolerated:
    """Like `contextlib.suppress`, but for exceptions that a signal handler has raised."""

    def __init__(self, *kinds: type[Exception]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> bool:
        """Return True if the exception is of these kinds, and the recorder's own."""
        return isinstance(error, self._kinds) and not _raised_by_handler(error)


def _raised_by_handler(error: BaseException) -> bool:
    """Return True if a signal handler of the program raised the error: its code is in the traceback."""
    try:
        ran = set(_codes(error.__traceback__))
        if len(ran) <= 1:
            return False
        import signal  # noqa: PLC0415 - it takes a while, and nothing has failed in most programs

        return any(_code(signal.getsignal(number)) in ran for number in range(1, signal.NSIG))
    except MemoryError:  # as `error` then is, most likely
        return False


def short_repr(value: object) -> str:
    """Show any value of the user's, at a length that fits into a sentence."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - objects may fail to describe themselves
        reraise_if_handlers(error)
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _MAX_REPR_LETTERS else f"{text[:_MAX_REPR_LETTERS]}..."


def _codes(traceback: TracebackType | None) -> Iterator[CodeType]:
    while traceback is not None:
        yield traceback.tb_frame.f_code
        traceback = traceback.tb_next


def _code(handler: Any) -> CodeType | None:
    """Return the code that a signal handler runs: a function, a method, a partial, or an object."""
    if not callable(handler):
        return None
    function = getattr(handler, "func", handler)
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    return getattr(function, "__code__", None)


class Counter:
    """Counts exactly, also when threads and signal handlers count at the same time."""

    __slots__ = ("_added_in_bulk", "_total_calls", "add")

    def __init__(self) -> None:
        self.add = itertools.count().__next__
        self._total_calls = 0
        self._added_in_bulk = 0

    def add_many(self, number: int) -> None:
        """Count `number`; not from several threads at the same time."""
        self._added_in_bulk += number

    def total(self) -> int:
        """Return the counted number."""
        self._total_calls += 1
        return self.add() - self._total_calls + 1 + self._added_in_bulk

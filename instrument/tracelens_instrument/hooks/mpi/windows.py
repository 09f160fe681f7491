"""One-sided communication: functions that record what the synchronizing calls of a window wait for.

A window has a group of its own, as a communicator has. `Fence` is a barrier of it, unless the program
says that nothing came before, when MPI need not wait. Where only some ranks synchronize, `Start` waits
for the `Post` of each target and `Wait` for the `Complete` of each origin: these are recorded as
messages of the window, with the tags `POSTED` and `COMPLETED`. MPI does not say who holds a lock, so
that `Lock` and the like are communication of the window without an operation.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from mpi4py import MPI

from tracelens_instrument.hooks.base import guarded
from tracelens_instrument.hooks.mpi.log import CommLog, free_to_global_ranks, to_global_ranks
from tracelens_instrument.hooks.mpi.table import WINDOW_CALLS, WINDOW_MAKERS, Collective

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tracelens_instrument.hooks.mpi.replaced import Function, Make

    LogOf = Callable[[Any], CommLog | None]

__all__ = ["methods"]

POSTED, COMPLETED = range(2)  # tags: a window has no others
_BARRIER: Final = Collective("barrier")
_UNMATCHED: Final = Collective(None)
_NO_SPAN: Final = nullcontext()


class _Window:
    """What is recorded of a window; the global ranks that it is open for, and to, without all others."""

    def __init__(self, log: CommLog) -> None:
        self.communicator_log = log
        self.posted_ranks: list[int] = []
        self.started_ranks: list[int] = []

    def begin_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Begin the span of a window's method: a barrier, messages, or without an operation."""
        span_name, log = f"Win.{name}", self.communicator_log
        match name:
            case "Fence":
                assertion = kwargs.get("assertion", args[0] if args else 0)
                # Nothing came before, says the program: MPI need not wait for all ranks.
                spec = _UNMATCHED if assertion & MPI.MODE_NOPRECEDE else _BARRIER
                return log.begin_collective(span_name, spec, {})
            case "Post":  # opens the window for the ranks of a group, until `Wait`
                self.posted_ranks = to_global_ranks(args[0] if args else kwargs["group"])
                return log.begin_notices(span_name, "send", self.posted_ranks, POSTED)
            case "Start":  # opens the windows of these ranks, until `Complete`
                self.started_ranks = to_global_ranks(args[0] if args else kwargs["group"])
                return log.begin_notices(span_name, "recv", self.started_ranks, POSTED)
            case "Complete":
                ranks, self.started_ranks = self.started_ranks, []
                return log.begin_notices(span_name, "send", ranks, COMPLETED)
            case "Wait":
                ranks, self.posted_ranks = self.posted_ranks, []
                return log.begin_notices(span_name, "recv", ranks, COMPLETED)
            case _:
                return log.begin_collective(span_name, _UNMATCHED, {})

    @guarded
    def count_tested(self) -> None:
        """Count what a test has found to be complete, as a wait would."""
        ranks, self.posted_ranks = self.posted_ranks, []
        for rank in ranks:
            self.communicator_log.number_message("recv", rank, COMPLETED)


_WINDOW_BY_HANDLE: Final[dict[int, _Window | None]] = {}


def methods(log_of: LogOf, *, records_all: bool) -> dict[str, Make]:
    """Return a factory for each method of windows: it makes the replacement that records.

    Args:
        log_of: Finds the log of a communicator.
        records_all: Also record windows that were made before.
    """

    def make_creating(name: str, mpi_method: Function) -> Function:
        """Make the class method that makes a window of the communicator that is among its arguments."""
        comm_index = WINDOW_MAKERS[name]

        def method(cls: Any, /, *args: Any, **kwargs: Any) -> Any:
            comm = kwargs.get("comm", args[comm_index] if len(args) > comm_index else MPI.COMM_SELF)
            log = log_of(comm)
            with _begin_unmatched(log, name) or _NO_SPAN:
                window = mpi_method(cls, *args, **kwargs)
            _record_window(window, log)
            return window

        return method

    def make_synchronizing(name: str, mpi_method: Function) -> Function:
        def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            with _begin_call(self, name, args, kwargs, records_all) or _NO_SPAN:
                return mpi_method(self, *args, **kwargs)

        return method

    return (
        dict.fromkeys(WINDOW_MAKERS, make_creating)
        | dict.fromkeys(WINDOW_CALLS, make_synchronizing)
        | {"Free": _make_freeing, "Test": _make_testing}
    )


@guarded
def _begin_unmatched(log: CommLog | None, name: str) -> AbstractContextManager[Any] | None:
    """Begin a call in which ranks may wait for others."""
    return None if log is None else log.begin_collective(f"Win.{name}", _UNMATCHED, {})


@guarded
def _record_window(window: MPI.Win, log: CommLog | None) -> None:
    """Record a window from now on, if its communicator is recorded."""
    _WINDOW_BY_HANDLE[window.handle] = None  # unless it turns out well
    if log is not None:
        _WINDOW_BY_HANDLE[window.handle] = _Window(
            CommLog(f"{log.communicator_name}.Win", log.member_ranks, log.member_ranks)
        )


def _window_of(window: MPI.Win, *, records_all: bool) -> _Window | None:
    """Return the record of a window; None if it has none.

    With `records_all` also one that was made before is recorded; only its group is known then.
    """
    handle = window.handle
    if handle not in _WINDOW_BY_HANDLE and records_all:
        ranks = free_to_global_ranks(window.Get_group())
        _WINDOW_BY_HANDLE[handle] = _Window(CommLog(f"MPI window of {len(ranks)}", ranks, ranks))
    return _WINDOW_BY_HANDLE.get(handle)


@guarded
def _begin_call(
    window: MPI.Win,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    records_all: bool,  # noqa: FBT001 - `guarded` takes what is given by position
) -> AbstractContextManager[Any] | None:
    """Begin the span of a call on a window; None if the window is not recorded (see `_window_of`)."""
    recorded_window = _window_of(window, records_all=records_all)
    return None if recorded_window is None else recorded_window.begin_call(name, args, kwargs)


def _make_freeing(_name: str, mpi_method: Function) -> Function:
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        window = _WINDOW_BY_HANDLE.pop(self.handle, None)  # before another one gets this handle
        with _begin_unmatched(window.communicator_log if window else None, "Free") or _NO_SPAN:
            return mpi_method(self, *args, **kwargs)

    return method


def _make_testing(_name: str, mpi_method: Function) -> Function:
    """Make the method that tests what `Wait` waits for; True counts as a wait."""

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        is_complete = mpi_method(self, *args, **kwargs)
        window = _WINDOW_BY_HANDLE.get(self.handle) if is_complete else None
        if window is not None:
            window.count_tested()
        return is_complete

    return method

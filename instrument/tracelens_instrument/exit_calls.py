"""Finds the line and the status of the SystemExit that ends a program.

Such an exception calls no hook, is no event of audit hooks, and is forgotten before atexit runs. So
`sys.exit` is wrapped, and its last call in the main thread is remembered. At exit this call counts only
if an exception has left the program's outermost frame: then the SystemExit was not caught. A SystemExit
that the program raises itself is not seen.
"""

from __future__ import annotations

import functools
import sys
import threading

from tracelens.schema.endings import MAX_FRAMES, MAX_MESSAGE, Ending, is_library_file
from tracelens_instrument.core.clock import now
from tracelens_instrument.core.failures import contained

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, FrameType, TracebackType
    from typing import Any, Final

__all__ = ["EXIT_CALLS", "describe_exception", "describe_exit", "is_failure_status"]


class ExitCalls:
    """Remembers the last `sys.exit` of the main thread, from `begin` to `end`."""

    def __init__(self) -> None:
        self._last_call: _ExitCall | None = None
        self._put_back: Callable[[], None] | None = None

    def begin(self) -> None:
        """Wrap `sys.exit`."""
        if self._put_back is not None:
            return
        program_exit = sys.exit
        wrapped_exit = self._wrap(program_exit)
        sys.exit = wrapped_exit

        def put_back() -> None:
            if sys.exit is wrapped_exit:
                sys.exit = program_exit

        self._put_back = put_back

    def end(self) -> None:
        """Forget the last call, and put everything back."""
        self.forget()
        if self._put_back is not None:
            self._put_back()
            self._put_back = None

    def forget(self) -> None:
        """Forget the last call: another exception ends the program, so that one was caught."""
        self._last_call = None

    def find_ending(self) -> Ending | None:
        """Describe the failure of the program by the last call; None if it did not end the program."""
        call = self._last_call
        return call.ending if call is not None and call.ends_program() else None

    def _wrap(self, program_exit: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(program_exit)
        def exit_program(*status: Any, **unknown: Any) -> Any:
            contained(self._note_call)(status, sys._getframe(1))  # noqa: SLF001 - its caller
            return program_exit(*status, **unknown)

        return exit_program

    def _note_call(self, arguments: tuple[object, ...], frame: FrameType) -> None:
        """Remember a call of `sys.exit`."""
        if threading.current_thread() is threading.main_thread():
            status = arguments[0] if arguments else None
            self._last_call = _ExitCall(status, frame) if is_failure_status(status) else None


class _ExitCall:
    """Where a program made a SystemExit, with which status; it may still be caught."""

    def __init__(self, status: object, frame: FrameType) -> None:
        """Describe the call of `sys.exit`.

        Args:
            status: Its argument.
            frame: The frame that called it.
        """
        outer_frames = [frame]
        while (outer_frame := outer_frames[-1].f_back) is not None:
            outer_frames.append(outer_frame)
        handled_error = sys.exc_info()[1]
        if isinstance(status, int) and isinstance(handled_error, Exception):
            self.ending = describe_exception(handled_error)  # the program turns it into a code
        else:
            codes_and_lines = ((frame.f_code, frame.f_lineno) for frame in outer_frames)
            self.ending = describe_exit(status, *describe_frames(codes_and_lines))
        # Kept to see later whether it still runs. Its variables are those of the main module, so that
        # nothing lives longer.
        self._outermost_frame = outer_frames[-1]

    def ends_program(self) -> bool:
        """Return True if an exception has left the outermost frame: it did not run to its end."""
        frame: FrameType | None = sys._getframe()  # noqa: SLF001 - whether that one still runs
        while frame is not None:
            if frame is self._outermost_frame:
                return False
            frame = frame.f_back
        from opcode import opname  # noqa: PLC0415 - few need it

        code = self._outermost_frame.f_code.co_code
        return not opname[code[self._outermost_frame.f_lasti]].startswith("RETURN_")


EXIT_CALLS: Final = ExitCalls()


def is_failure_status(status: object) -> bool:
    """Return True if a process that exits with this status ends with an exit code other than 0."""
    return _to_exit_code(status) != 0


def _to_exit_code(status: object) -> int:
    """Return the exit code of a process that exits with a status, as the system keeps it."""
    if status is None:
        return 0
    return status & 0xFF if isinstance(status, int) else 1  # a text, or what is shown as one


def describe_exit(
    status: object, frames: list[str], user_frame: str | None, thread: str | None = None
) -> Ending:
    """Return the ending by a SystemExit: by its text, or by the exit code."""
    is_code = isinstance(status, int)
    return Ending(
        at_ns=now(),
        cause=f"exit code {_to_exit_code(status)}" if is_code else "SystemExit",
        message="" if is_code else describe_text(status),
        thread=thread,
        user_frame=user_frame,
        frames=frames,
    )


def describe_exception(error: BaseException, thread: str | None = None) -> Ending:
    """Return the ending by an exception that nothing catches."""
    codes_and_lines = []
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        codes_and_lines.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    frames, user_frame = describe_frames(reversed(codes_and_lines))
    if isinstance(error, SystemExit):
        return describe_exit(error.code, frames, user_frame, thread)
    return Ending(
        at_ns=now(),
        cause=type(error).__qualname__,
        message=describe_text(error),
        thread=thread,
        user_frame=user_frame,
        frames=frames,
    )


def describe_text(value: object) -> str:
    """Return the first line of an exception's text, and the last one of a traceback that it quotes.

    So do exceptions that came from another process, as from a worker of a DataLoader.
    """
    try:
        lines = str(value).strip().splitlines()
    except Exception:  # noqa: BLE001 - exceptions may fail to describe themselves
        return ""
    quoted = lines[-1:] if any("Traceback (" in line for line in lines[1:]) else []
    return " ".join([*lines[:1], *quoted])[:MAX_MESSAGE]


def describe_frames(
    codes_and_lines: Iterable[tuple[CodeType, int]],
) -> tuple[list[str], str | None]:
    """Return frames, innermost first, as texts, and the innermost of the user's code."""
    from tracelens_instrument.stacks.frame_paths import make_path_shortener  # noqa: PLC0415 - few fail

    shorten = make_path_shortener()
    frames: list[str] = []
    user_frame = None
    for code, line in codes_and_lines:
        frames.append(f"{code.co_name} ({shorten(code.co_filename)}:{line})")
        if user_frame is None and not is_library_file(code.co_filename):
            user_frame = frames[-1]
    return frames[:MAX_FRAMES], user_frame

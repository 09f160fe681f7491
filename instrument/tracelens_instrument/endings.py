"""Records the end of a process: an uncaught exception, or a signal that ends it.

An exception is a line of the side file. Signals are left to `faulthandler`, which writes the Python
stack into a file in the folder of the segments, even if the process is blocked in C. Then the signal has
its former effect. The hooks and handlers of the program are called as well.

``sys.exit("text")`` calls no hook, is no event of audit hooks, and is forgotten before atexit runs. So
the function itself is wrapped. At exit its text is noted only if an exception has left the program's
outermost frame: then it was not caught. ``raise SystemExit("text")`` is not seen.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import sys
import threading
import weakref

from tracelens.schema.endings import (
    FATAL_DUMP,
    MAX_FRAMES,
    MAX_MESSAGE,
    TERMINATED_DUMP,
    Ending,
    is_library_file,
)
from tracelens.schema.side import format_line
from tracelens_instrument.core.clock import now
from tracelens_instrument.core.failures import Tolerated, contain, contained
from tracelens_instrument.core.state import STATE
from tracelens_instrument.storage.descriptors import Descriptor

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import CodeType, FrameType, TracebackType
    from typing import Any, Final
else:
    import _signal as signal  # of which `signal` makes enumerations, which takes a while

__all__ = ["EndNotes", "open_on_failure"]

_ORDERLY: Final = (SystemExit, GeneratorExit)


class EndNotes:
    """Notes how this process ends, from `begin` to `finish`."""

    def __init__(self, folder: Path, append: Callable[[bytes], None]) -> None:
        self._folder = folder
        self._append_line = append
        self._noted_error: BaseException | None = None
        self._exit_call: _ExitCall | None = None
        self._fatal_dump: _Dump | None = None
        self._sigterm_dump: _Dump | None = None
        self._is_on = False
        self._undo_calls: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Put hooks before those of the program, and open the files for signals."""
        self._is_on = True
        self._replace(sys, "excepthook", self._wrap_hook(sys.excepthook))
        self._replace(threading, "excepthook", self._wrap_thread_hook(threading.excepthook))
        self._replace(sys, "exit", self._wrap_exit(sys.exit))
        with Tolerated(OSError, ValueError, RuntimeError):
            if not faulthandler.is_enabled():  # else the program has its own use for it
                self._fatal_dump = _Dump(self._folder / FATAL_DUMP)
                faulthandler.enable(self._fatal_dump.hand_over())
            if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
                self._sigterm_dump = _Dump(self._folder / TERMINATED_DUMP)
                faulthandler.register(
                    signal.SIGTERM, self._sigterm_dump.hand_over(), all_threads=False, chain=True
                )

    def _replace(self, module: Any, name: str, function: Callable[..., Any]) -> None:
        """Put a function into a module, for as long as the program does not put another one there."""
        program_function = getattr(module, name)
        setattr(module, name, function)

        def put_back() -> None:
            if getattr(module, name) is function:
                setattr(module, name, program_function)

        self._undo_calls.append(put_back)

    def look(self) -> None:
        """Give up a file that the program has closed: its number may belong to another file now."""
        for dump in (self._fatal_dump, self._sigterm_dump):
            if dump is not None and dump.descriptor.descriptor_number is None:
                self._leave_signals()
                return

    def finish(self) -> None:
        """Note what ends the process just now, if anything does, and leave hooks and signals alone."""
        error = sys.exc_info()[1]  # multiprocessing ends its processes while it is on its way
        if isinstance(error, SystemExit) and error.code not in (None, 0):
            if error.__context__ is None and isinstance(error.code, str):
                self._note_ending(_describe_exit(error.code, *_frames(error.__traceback__)))
            error = error.__context__  # which a wrapper has turned into an exit code
        if error is not None:
            self.note_error(error)
        elif self._exit_call is not None and self._exit_call.ends_program():
            self._note_ending(self._exit_call.ending)
        self.abandon()

    def abandon(self) -> None:
        """Leave hooks and signals alone; in a forked child the notes are the parent's."""
        self._is_on = False
        self._exit_call = None
        while self._undo_calls:
            self._undo_calls.pop()()
        self._leave_signals()

    def note_error(self, error: BaseException, thread: str | None = None) -> None:
        """Write down an uncaught exception, once; `thread` is its thread's name, None = the main one."""
        if not self._is_on or error is self._noted_error or isinstance(error, _ORDERLY):
            return
        self._noted_error = error
        if thread is None:
            self._exit_call = None  # it was caught
        frames, user_frame = _frames(error.__traceback__)
        self._note_ending(
            Ending(
                at_ns=now(),
                cause=type(error).__qualname__,
                message=_describe_error(error),
                thread=thread,
                user_frame=user_frame,
                frames=frames,
            )
        )

    def _note_ending(self, ending: Ending) -> None:
        self._append_line(format_line("endings", ending))

    def _wrap_exit(self, program_exit: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(program_exit)
        def exit_program(*status: Any, **unknown: Any) -> Any:
            if len(status) == 1 and isinstance(status[0], str) and self._is_on:
                contained(self._note_exit)(status[0], sys._getframe(1))  # noqa: SLF001 - its caller
            return program_exit(*status, **unknown)

        return exit_program

    def _note_exit(self, text: str, frame: FrameType) -> None:
        """Keep the text of a call of `sys.exit` in the main thread; the program may still catch it."""
        if threading.current_thread() is threading.main_thread():
            self._exit_call = _ExitCall(text, frame)

    def _wrap_hook(self, program_hook: Callable[..., Any]) -> Callable[..., Any]:
        def note_and_pass_on(
            kind: type[BaseException], error: BaseException, traceback: TracebackType | None
        ) -> None:
            try:
                if error is not None:
                    contained(self.note_error)(error)
            finally:
                program_hook(kind, error, traceback)

        return note_and_pass_on

    def _wrap_thread_hook(self, program_hook: Callable[..., Any]) -> Callable[..., Any]:
        def note_and_pass_on(arguments: Any) -> None:
            try:
                if arguments.exc_value is not None:
                    name = getattr(arguments.thread, "name", None) or "a thread"
                    contained(self.note_error)(arguments.exc_value, str(name))
            finally:
                program_hook(arguments)

        return note_and_pass_on

    def _leave_signals(self) -> None:
        """Close the files for stacks, and make faulthandler forget them, if it still uses ours."""
        fatal_dump, self._fatal_dump = self._fatal_dump, None
        sigterm_dump, self._sigterm_dump = self._sigterm_dump, None
        try:
            if sigterm_dump is not None:
                if sigterm_dump.is_in_use():
                    faulthandler.unregister(signal.SIGTERM)
                sigterm_dump.descriptor.close()
            if fatal_dump is not None:
                if fatal_dump.is_in_use():
                    faulthandler.disable()
                fatal_dump.descriptor.close()
        except Exception as error:  # noqa: BLE001 - the training goes on
            contain(error)


class _ExitCall:
    """A call of `sys.exit` with a text; it ends the program unless the SystemExit is caught."""

    def __init__(self, text: str, frame: FrameType) -> None:
        outer_frames = [frame]
        while (outer_frame := outer_frames[-1].f_back) is not None:
            outer_frames.append(outer_frame)
        self.ending = _describe_exit(
            text, *_describe_frames((frame.f_code, frame.f_lineno) for frame in outer_frames)
        )
        # Its variables are those of the main module, so that nothing lives longer.
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


class _Dump:
    """A file for faulthandler, which uses it until the program gives it another one."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.descriptor = Descriptor(os.open(path, flags, 0o644))
        self._find_handed_over_file: Callable[[], _DumpFile | None] = lambda: None

    def hand_over(self) -> _DumpFile:
        """Return a new file object for faulthandler, to which nothing else refers."""
        file = _DumpFile(self.descriptor.descriptor_number or -1)
        self._find_handed_over_file = weakref.ref(file)
        return file

    def is_in_use(self) -> bool:
        """Return True if faulthandler still writes there."""
        return self._find_handed_over_file() is not None


class _DumpFile:
    """The part of a file that faulthandler uses."""

    def __init__(self, number: int) -> None:
        self._descriptor_number = number

    def fileno(self) -> int:
        """Return the number of the descriptor."""
        return self._descriptor_number

    def flush(self) -> None:
        """Nothing is held back."""


def open_on_failure(open_recording: Callable[[], object]) -> None:
    """Begin a recording when an uncaught exception ends this process before its first event."""
    program_hook = sys.excepthook

    def note_and_pass_on(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        try:
            if STATE.waiting is not None and isinstance(error, Exception):
                contained(open_recording)()
                recording: Any = STATE.recording
                if recording is not None:
                    contained(recording.end_notes.note_error)(error)
        finally:
            program_hook(kind, error, traceback)

    sys.excepthook = note_and_pass_on


def _describe_error(error: BaseException) -> str:
    """Return the first line of an exception's text, and the last one of a traceback that it quotes.

    So do exceptions that came from another process, as from a worker of a DataLoader.
    """
    try:
        return _shorten_text(str(error))
    except Exception:  # noqa: BLE001 - exceptions may fail to describe themselves
        return ""


def _shorten_text(text: str) -> str:
    """Return the first line of a text, and the last one of a traceback that it quotes."""
    lines = text.strip().splitlines()
    quoted = lines[-1:] if any("Traceback (" in line for line in lines[1:]) else []
    return " ".join([*lines[:1], *quoted])[:MAX_MESSAGE]


def _describe_exit(text: str, frames: list[str], user_frame: str | None) -> Ending:
    return Ending(
        at_ns=now(),
        cause="SystemExit",
        message=_shorten_text(text),
        user_frame=user_frame,
        frames=frames,
    )


def _frames(traceback: TracebackType | None) -> tuple[list[str], str | None]:
    """Return an exception's frames as texts, innermost first, and the innermost of the user's code."""
    codes_and_lines = []
    while traceback is not None:
        codes_and_lines.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    return _describe_frames(reversed(codes_and_lines))


def _describe_frames(
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

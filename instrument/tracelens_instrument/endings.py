"""Records the end of a process: an uncaught exception, or a signal that ends it.

An exception is a line of the side file. Signals are left to `faulthandler`, which writes the Python
stack into a file in the folder of the segments, even if the process is blocked in C. Then the signal has
its former effect. The hooks and handlers of the program are called as well.

A SystemExit calls no hook; `exit_calls` remembers where the program made it.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import weakref

from tracelens.schema.endings import (
    FATAL_DUMP,
    TERMINATED_DUMP,
)
from tracelens.schema.side import format_line
from tracelens_instrument.core.failures import Tolerated, contain, contained
from tracelens_instrument.core.state import STATE
from tracelens_instrument.exit_calls import EXIT_CALLS, describe_exception, is_failure_status
from tracelens_instrument.storage.descriptors import Descriptor

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Any

    from tracelens.schema.endings import Ending
else:
    import _signal as signal  # of which `signal` makes enumerations, which takes a while

__all__ = ["EndNotes", "open_on_failure"]


class EndNotes:
    """Notes how this process ends, from `begin` to `finish`."""

    def __init__(self, folder: Path, append: Callable[[bytes], None]) -> None:
        """Prepare to note how the process ends: `append` writes a line of the side file."""
        self._folder = folder
        self._append_line = append
        self._noted_error: BaseException | None = None
        self._fatal_dump: _Dump | None = None
        self._sigterm_dump: _Dump | None = None
        self._is_on = False
        self._undo_calls: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Put hooks before those of the program, and open the files for signals."""
        self._is_on = True
        self._replace(sys, "excepthook", self._wrap_hook(sys.excepthook))
        self._replace(threading, "excepthook", self._wrap_thread_hook(threading.excepthook))
        EXIT_CALLS.begin()
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
        """Note the exception or exit code that ends the process just now, if one does.

        Then remove our hooks and signal handlers.
        """
        error = sys.exc_info()[1]  # multiprocessing ends its processes while it is on its way
        if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code:
            error = error.__context__ or error  # which a wrapper has turned into an exit code
        exit_ending = EXIT_CALLS.find_ending()
        if error is not None:
            self.note_error(error)
        elif exit_ending is not None:
            self._note_ending(exit_ending)
        self.abandon()

    def abandon(self) -> None:
        """Remove our hooks and signal handlers; in a forked child the notes are the parent's."""
        self._is_on = False
        EXIT_CALLS.end()
        while self._undo_calls:
            self._undo_calls.pop()()
        self._leave_signals()

    def note_error(self, error: BaseException, thread: str | None = None) -> None:
        """Write down an uncaught exception, once; `thread` is its thread's name, None = the main one."""
        if not self._is_on or error is self._noted_error or not _is_failure(error):
            return
        self._noted_error = error
        if thread is None:
            EXIT_CALLS.forget()
        self._note_ending(describe_exception(error, thread))

    def _note_ending(self, ending: Ending) -> None:
        self._append_line(format_line("endings", ending))

    def _wrap_hook(self, program_hook: Callable[..., Any]) -> Callable[..., Any]:
        """Return an excepthook that notes the error, and then calls that of the program."""

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
        """Return a hook of threads that notes the error, and then calls that of the program."""

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
    """Call `open_recording` when an uncaught exception ends this process before its first event.

    `open_on_exit` does so at its exit, for a SystemExit.
    """
    program_hook = sys.excepthook

    def note_and_pass_on(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        try:
            if STATE.waiting is not None and isinstance(error, Exception):
                contained(_open_for_failure)(open_recording)
                recording: Any = STATE.recording
                if recording is not None:
                    contained(recording.end_notes.note_error)(error)
        finally:
            program_hook(kind, error, traceback)

    sys.excepthook = note_and_pass_on
    EXIT_CALLS.begin()


def open_on_exit(open_recording: Callable[[], object]) -> None:
    """Begin a recording at the exit of a process that a SystemExit ended before its first event."""
    if STATE.waiting is not None and EXIT_CALLS.find_ending() is not None:
        _open_for_failure(open_recording)


def _open_for_failure(open_recording: Callable[[], object]) -> None:
    """Begin a recording, unless a rank started this process, as a helper."""
    from tracelens_instrument.core.ancestors import is_helper_of_rank  # noqa: PLC0415 - few fail

    if not is_helper_of_rank():
        open_recording()


def _is_failure(error: BaseException) -> bool:
    """Return True if an exception is a failure, and no orderly end."""
    if isinstance(error, SystemExit):
        return is_failure_status(error.code)
    return not isinstance(error, GeneratorExit)

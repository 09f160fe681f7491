"""The command `tracelens`: runs a verb in a child process, and again without the files that ended it.

Libraries in C and Rust read files, and a bug of theirs ends a process at once. So this process forks
before it has loaded anything, waits, and ends as its child did: some milliseconds. If the child ended
by what it read (`containment.py`), each file is tried in a process of its own (`cli/trials.py`).

Signals that a terminal sends reach both processes; those that are sent to this one alone are passed on.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # typing takes as long as the fork
if TYPE_CHECKING:
    from mmap import mmap
    from pathlib import Path
    from typing import Final, NoReturn

__all__ = ["main"]

# Verbs that read what others may have written.
_SUPERVISED: Final = frozenset(
    ("info", "analyze", "whatif", "compare", "scaling", "convert", "validate", "index", "serve")
)
_CRASHES: Final = frozenset(
    getattr(signal, f"SIG{name}", 0)
    for name in ("SEGV", "BUS", "ILL", "FPE", "ABRT", "KILL", "XCPU", "SYS")
)
_PASSED_ON: Final = tuple(
    getattr(signal, f"SIG{name}", 0)
    for name in ("HUP", "INT", "QUIT", "TERM", "TSTP", "USR1", "USR2", "ALRM")
)
_PATIENCE_S: Final = 0.05  # for a signal that was sent to both to reach the child, too
_PAGE: Final = 1 << 16  # bytes for the names of what is read
_SET_DEATH_SIGNAL: Final = 1  # of <linux/prctl.h>
_SHOW_CURSOR: Final = "\x1b[?25h\r\x1b[K"  # and clear the line, where a bar may have been
_SLACK: Final = 2 << 30  # bytes of addresses that libraries reserve and do not use


def main() -> int:
    """Run the verb that the command line names, and return its exit code."""
    if _is_possible():
        _supervise()
    from tracelens.cli import main as run  # noqa: PLC0415 - in the child only

    exit_code = run()
    _end_if_threads_go_on(exit_code)
    return exit_code


def _end_if_threads_go_on(exit_code: int) -> None:
    """End the process here if daemon threads go on, such as one that makes the index of a served run.

    Before Python 3.14 the interpreter unwinds the stack of such a thread when it ends. If the thread is
    in C++ that catches every exception, as in `numpy.unique`, that aborts the process.
    """
    import threading  # noqa: PLC0415 - when a verb has run

    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if not any(thread.daemon for thread in others):
        return
    import atexit  # noqa: PLC0415 - seldom needed
    from contextlib import suppress  # noqa: PLC0415

    # The interpreter begins its end in the same way: it waits for threads that are no daemons.
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - no public function does it
    atexit._run_exitfuncs()  # noqa: SLF001 - no public function does it
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more, or it is closed
            stream.flush()
    os._exit(exit_code)


def _is_possible() -> bool:
    """Return whether the verb reads, and this process has one thread and no debugger."""
    if sys.platform != "linux" or not _SUPERVISED.intersection(sys.argv[1:2]):
        return False
    if sys.gettrace() or sys.getprofile() or "mpi4py" in sys.modules:
        return False
    try:
        return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208 - names are enough
    except OSError:
        return False


def _supervise() -> None:
    """Return in a child that is to run the verb; the process that calls it waits, and never returns."""
    import mmap  # noqa: PLC0415 - where it is needed

    page = mmap.mmap(-1, _PAGE)  # both processes see it
    tried_paths: set[Path] = set()
    while True:
        parent, (signals_read, signals_write) = os.getpid(), os.pipe()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED_ON, signal.SIGCHLD))
        child = os.fork()
        if child == 0:
            os.close(signals_read)
            _become(parent, signals_write, page, mask)
            return
        os.close(signals_write)
        os.set_blocking(signals_read, False)
        status = _waited(child, signals_read)
        os.close(signals_read)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if not _is_crash(status):
            _end_as(status)
        paths = [path for path in _announced(page) if path not in tried_paths]
        if not paths or not _leave_out(status, paths):
            _give_up(status)
        tried_paths.update(paths)


def _become(parent: int, signals_write: int, page: mmap, mask: set[int | signal.Signals]) -> None:
    """Be the child: end with the parent, and take no more memory than the machine has."""
    import ctypes  # noqa: PLC0415 - in the child only
    import resource  # noqa: PLC0415

    from tracelens import containment  # noqa: PLC0415

    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    os.set_blocking(signals_write, False)
    signal.set_wakeup_fd(signals_write, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    soft, most = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_DATA, (_machine() + _SLACK, most))
    page[:] = bytes(_PAGE)
    page.seek(0)

    def announce(path: Path) -> None:
        name = os.fsencode(path.absolute()) + b"\0"
        if name not in page[: page.tell()] and page.tell() + len(name) < _PAGE:
            page.write(name)

    containment.contain(announce)


def _machine() -> int:
    """Return how many bytes of memory there are, swap space included."""
    with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123 - no pathlib yet
        pairs = [line.split()[:2] for line in lines if line.startswith(("MemTotal", "SwapTotal"))]
    return sum(int(size) for _, size in pairs) << 10


def _waited(child: int, signals_read: int) -> int:
    """Wait for a child, stop and go on with it, pass on what it has not got; return its wait status."""
    ignored = {one for one in _PASSED_ON if signal.getsignal(one) == signal.SIG_IGN}
    awaited = {*_PASSED_ON, signal.SIGCHLD} - ignored
    while True:
        received = signal.sigwaitinfo(awaited)
        if received.si_signo != signal.SIGCHLD:
            reached = _reached(child, signals_read, received.si_signo)
            # More than 0: of the kernel, as a terminal sends them, to all processes before it.
            if received.si_code <= 0 and not reached:
                os.kill(child, received.si_signo)
        ended, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if ended and os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
        elif ended:
            return status


def _reached(child: int, signals_read: int, number: int) -> bool:
    """Return whether a signal that this process got was sent to the child, too.

    The child writes the numbers of signals that it handles; others end it.
    """
    signal.sigtimedwait({signal.SIGCHLD}, _PATIENCE_S)
    try:
        return number in os.read(signals_read, 512)
    except BlockingIOError:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _is_crash(status: int) -> bool:
    if status == 0:
        return False
    from tracelens.containment import OUT_OF_MEMORY  # noqa: PLC0415 - not before the fork

    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) in _CRASHES
    return os.WEXITSTATUS(status) == OUT_OF_MEMORY


def _announced(page: mmap) -> list[Path]:
    from pathlib import Path  # noqa: PLC0415 - not before the fork

    names = page[:].rstrip(b"\0").split(b"\0")
    return [Path(os.fsdecode(name)) for name in names if name]


def _leave_out(status: int, paths: list[Path]) -> bool:
    """Try all files of some runs, and leave out those that end their process; return whether any did."""
    from tracelens import containment  # noqa: PLC0415 - after a crash only
    from tracelens.cli import trials  # noqa: PLC0415
    from tracelens.model.fmt import shown_name  # noqa: PLC0415

    if sys.stderr.isatty():
        sys.stderr.write(_SHOW_CURSOR)
    _report(f"{_describe_end(status)}: each file is tried in a process of its own.")
    crashing_files = trials.tried(paths, trials.options_of(sys.argv[1:]))
    for path, reason in crashing_files.items():
        _report(f"'{shown_name(os.path.basename(path))}' is left out: {reason}.")  # noqa: PTH119
    containment.leave_out(crashing_files)
    return bool(crashing_files)


def _give_up(status: int) -> NoReturn:
    """End where no file alone is to blame."""
    from tracelens import __version__  # noqa: PLC0415 - after a crash only
    from tracelens.cli import bug  # noqa: PLC0415
    from tracelens.errors import UnusableInput  # noqa: PLC0415

    if os.WIFEXITED(status):
        _report(
            f"{_describe_end(status)}, and no file alone takes it: read a part (--ranks, --steps), "
            "or on a machine with more memory."
        )
        os._exit(UnusableInput.exit_code)
    if os.WTERMSIG(status) == signal.SIGKILL:  # whoever sent it knows
        _end_as(status)
    _report(
        f"this is a bug in TraceLens, not in your trace: {_describe_end(status)}, version "
        f"{__version__}; report it to the maintainers with this line, and the trace if you may share it."
    )
    os._exit(bug.EXIT_CODE)


def _describe_end(status: int) -> str:
    from tracelens.cli.trials import named_signal  # noqa: PLC0415 - after a crash only

    if os.WIFEXITED(status):
        return "there was no more memory"
    if os.WTERMSIG(status) == signal.SIGXCPU:
        return "reading took more CPU than any file may"
    return f"reading was ended by {named_signal(os.WTERMSIG(status))}"


def _report(sentence: str) -> None:
    sys.stderr.write(f"tracelens: {sentence}\n")
    sys.stderr.flush()


def _end_as(status: int) -> NoReturn:
    """End as the child did: with its exit code, or by its signal."""
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    import resource  # noqa: PLC0415 - seldom needed

    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)

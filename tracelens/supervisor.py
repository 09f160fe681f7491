"""The command `tracelens`: runs a verb, in a child process unless it reads recordings of this user.

Libraries in C and Rust read files, and a bug of theirs ends a process immediately. Recordings of the
user are read in this process. For all other input (and with `--contained`) this process forks and
waits. If the child is ended by what it reads (`containment.py`), each file is tried in a process of its
own (`cli/trials.py`), and the verb runs again without the files that end theirs.

A terminal sends its signals to both processes. Those that another process sends to this one alone are
passed on to the child.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens import cli, containment
from tracelens.schema.vocabulary import parse_stem

if TYPE_CHECKING:
    from argparse import Namespace
    from mmap import mmap
    from typing import NoReturn

__all__ = ["main"]

_CRASH_SIGNALS: Final = frozenset(
    getattr(signal, f"SIG{name}", 0)
    for name in ("SEGV", "BUS", "ILL", "FPE", "ABRT", "KILL", "XCPU", "SYS")
)
_PAGE_BYTES: Final = 1 << 16  # for the paths of what is read
_SET_DEATH_SIGNAL: Final = 1  # of <linux/prctl.h>
_SHOW_CURSOR: Final = "\x1b[?25h\r\x1b[K"  # and clear the line, where a bar may have been
_PASSED_ON: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
_GRACE_S: Final = 0.2  # for a child that got the same signal to end
_SLACK_BYTES: Final = 2 << 30  # of addresses that libraries reserve and do not use


def main() -> int:
    """Run the verb that the command line names, and return its exit code."""
    arguments = cli.parse(sys.argv[1:])
    if sys.platform == "linux" and hasattr(arguments, "contained"):
        _limit_memory()
        if _is_supervised(arguments):
            _supervise(arguments)
        elif sys.stderr is not None:
            faulthandler.enable()
    exit_code = cli.run(arguments)
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


def _limit_memory() -> None:
    """Limit this process to the machine's memory and swap space, unless it has a limit."""
    import resource  # noqa: PLC0415 - other systems lack it

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes_kib = [int(line.split()[1]) for line in lines if line.startswith(("MemT", "SwapT"))]
        resource.setrlimit(resource.RLIMIT_DATA, ((sum(sizes_kib) << 10) + _SLACK_BYTES, hard))


def _is_supervised(arguments: Namespace) -> bool:
    """Return True if the input may not be the user's recording, and this process can be forked."""
    if sys.gettrace() or sys.getprofile() or "mpi4py" in sys.modules:
        return False
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208 - names are enough
        return False
    paths = getattr(arguments, "traces", None) or arguments.trace
    paths = paths if isinstance(paths, list) else [paths]
    return arguments.contained or not all(map(_is_own_recording, paths))


def _is_own_recording(path: Path | str) -> bool:
    """Return True for a trace folder, or a file of one, whose recordings all belong to this user."""
    if isinstance(path, str):  # an address
        return False
    try:
        entries = path.iterdir() if path.is_dir() else [path]
        recordings = [entry for entry in entries if parse_stem(entry.name)]
        owner_ids = {entry.lstat().st_uid for entry in (path, *recordings)}
    except OSError:
        return False
    return bool(recordings) and owner_ids == {os.geteuid()}


def _supervise(arguments: Namespace) -> None:
    """Fork a child and return in it; the parent waits for it, and never returns.

    After a crash, files that crash the reader are left out, and another child is forked.
    """
    import mmap  # noqa: PLC0415 - where it is needed

    shared_page = mmap.mmap(-1, _PAGE_BYTES)  # for the paths that the child reads
    tried_paths: set[Path] = set()
    while True:
        parent = os.getpid()
        earlier_mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED_ON, signal.SIGCHLD))
        child = os.fork()
        if child == 0:
            _become_child(parent, shared_page)
            signal.pthread_sigmask(signal.SIG_SETMASK, earlier_mask)
            return
        status = _wait_for(child)
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier_mask)
        if not _is_crash(status):
            _end_as(status)
        names = shared_page[:].rstrip(b"\0").split(b"\0")
        paths = [Path(os.fsdecode(name)) for name in names if name]
        paths = [path for path in paths if path not in tried_paths]
        if not paths or not _leave_out(status, paths, arguments):
            _give_up(status)
        tried_paths.update(paths)


def _wait_for(child: int) -> int:
    """Wait for the child and return its wait status; pass on signals that only this process got."""
    handlers = {number: signal.getsignal(number) for number in _PASSED_ON}
    passed_on = {number for number in handlers if handlers[number] != signal.SIG_IGN}  # nohup
    while True:
        signal_info = signal.sigwaitinfo({*passed_on, signal.SIGCHLD})
        # Signals of a terminal come from the kernel (a code above 0), and reach the child, too.
        is_from_process = signal_info.si_signo != signal.SIGCHLD and signal_info.si_code <= 0
        if is_from_process:  # maybe to the whole group: then the child ends by itself
            signal.sigtimedwait({signal.SIGCHLD}, _GRACE_S)
        ended_child, status = os.waitpid(child, os.WNOHANG)
        if ended_child:
            return status
        if is_from_process:
            os.kill(child, signal_info.si_signo)


def _become_child(parent: int, page: mmap) -> None:
    """End with the parent, and write the paths of read files to the page."""
    import ctypes  # noqa: PLC0415 - in the child only

    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    page[:] = bytes(_PAGE_BYTES)
    page.seek(0)

    def announce(path: Path) -> None:
        name = os.fsencode(path.absolute()) + b"\0"
        if name not in page[: page.tell()] and page.tell() + len(name) < _PAGE_BYTES:
            page.write(name)

    containment.contain(announce)


def _is_crash(status: int) -> bool:
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) in _CRASH_SIGNALS
    return os.WEXITSTATUS(status) == containment.OUT_OF_MEMORY


def _leave_out(status: int, paths: list[Path], arguments: Namespace) -> bool:
    """Try all files of some runs, and leave out those that crash; return True if any did."""
    from tracelens.cli import trials  # noqa: PLC0415 - after a crash only
    from tracelens.model.fmt import shown_name  # noqa: PLC0415

    if sys.stderr.isatty():
        sys.stderr.write(_SHOW_CURSOR)
    _report(f"{_describe_end(status)}: each file is tried in a process of its own.")
    crashing_files = trials.try_files(paths, trials.list_reading_options(arguments))
    for path, reason in crashing_files.items():
        _report(f"'{shown_name(os.path.basename(path))}' is left out: {reason}.")  # noqa: PTH119
    containment.leave_out(crashing_files)
    return bool(crashing_files)


def _give_up(status: int) -> NoReturn:
    """End where no file alone is to blame."""
    from tracelens import __version__  # noqa: PLC0415 - after a crash only
    from tracelens.cli import bug  # noqa: PLC0415

    if os.WIFEXITED(status):
        _report(f"{_describe_end(status)}, and no file alone takes it: {cli.OUT_OF_MEMORY_ADVICE}")
        os._exit(3)
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
    os.kill(os.getpid(), number)
    os._exit(128 + number)

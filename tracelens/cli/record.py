"""`tracelens record`: run a training command and record its ranks, without a change to its script.

The command runs as if started directly: it gets our terminal, our
open files (an MPI launcher talks to its ranks through one) and the signals that are sent to us.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import REMAINDER
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from tracelens.errors import InvalidArgument, NotATrace, UnusableInput
from tracelens.schema.vocabulary import (
    DETAILS,
    ELSEWHERE_SUFFIX,
    SAMPLES_FOLDER,
    SEGMENTS_SUFFIX,
    TRACE_SUFFIX,
)
from tracelens.watch.journaling import CommandJournal

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Mapping, Sequence

    from tracelens.watch.looks import Looks


NAME: Final = "record"
HELP: Final = "run a training command and record its ranks (no change to its script)"
EXAMPLES: Final = """\
  tracelens record -- torchrun --nproc-per-node 4 train.py
  tracelens record --out traces/today -- mpiexec -n 4 python -m mpi4py train.py
  srun tracelens record -- python train.py
  tracelens record --detail layer -- torchrun --nproc-per-node 4 train.py
"""
_VERDICT_TIMEOUT_S: Final = 60  # a run that takes longer is left to `tracelens analyze`
_MAX_LOOKS_FOR_LEFTOVERS: Final = 20  # at processes that are about to end
_MAX_LOOKS_FOR_SAMPLES: Final = 100
_LOOK_INTERVAL_S: Final = 0.1
_FORWARDED_SIGNALS: Final = ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_KEYBOARD_SIGNALS: Final = ("SIGINT", "SIGQUIT")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `record`."""
    parser.add_argument("--out", type=Path, help="trace folder (default: traces/<UTC time>)")
    parser.add_argument("--keep", help="all, last:N or every:N:BURST steps (default: all)")
    parser.add_argument("--budget", help="bytes on disk a process, such as 4GB (default: no limit)")
    parser.add_argument(
        "--sample",
        nargs="?",
        type=int,
        const=100,
        metavar="HZ",
        help="also sample the ranks' call stacks, by py-spy (default: not; without HZ: 100)",
    )
    parser.add_argument(
        "--detail",
        help=f"how closely hooks look: {', '.join(DETAILS)}, each with those before it (default: phase)",
    )
    parser.add_argument(
        "--no-verdict", action="store_true", help="do not say at the end what the run lost time to"
    )
    parser.add_argument(
        "--watch", action="store_true", help="also tell on standard error when the job stands still"
    )
    parser.add_argument(
        "--on-alert", metavar="COMMAND", help="as of `tracelens watch`; it means --watch, too"
    )
    parser.add_argument("command", nargs=REMAINDER, help="the training command, after --")


def run(arguments: argparse.Namespace) -> int:
    """Run the command, recorded; return its exit code."""
    variables = _parse_retention(arguments.keep, arguments.budget, arguments.detail)
    variables |= _parse_sampling(arguments.sample)
    command = _check_command(arguments.command)
    folder = _check_folder((arguments.out or default_folder()).absolute())
    files_before = _find_recordings(folder)
    _note_recorder(folder)
    among_ranks = launcher_rank() is not None
    with CommandJournal(folder, Path(command[0]).name, among_ranks=among_ranks) as journal:
        looks = None
        if (arguments.watch or arguments.on_alert) and launcher_rank() in {None, 0}:
            looks = _begin_watch(folder, arguments.on_alert)
        variables = make_environment(folder) | variables
        child_code, attachments = _run_recorded(command, variables, journal, looks)
        exit_code = child_code if child_code >= 0 else 128 - child_code  # as in a shell
        journal.end(exit_code)
        if looks is not None:
            looks.close()
        left_behind = {process.pid for process in journal.list_left_behind()}
    if arguments.sample:
        _await_samples(folder)
    _convert_leftovers(folder)
    live_ranks = _find_live_ranks(folder, left_behind)
    rank = launcher_rank()
    if live_ranks and rank is None:
        _write(_describe_left_behind(command, child_code, live_ranks, folder))
    elif rank is None:
        files = _find_recordings(folder) - files_before
        _write_result(_summarize(folder, files, attachments, exit_code), exit_code)
        _write_unrecorded(attachments if files else ())
        if files and not arguments.no_verdict:
            _write_verdict(folder)
    elif rank == 0:
        _write_result(_describe_folder(folder, attachments, exit_code), exit_code)
    return exit_code


def default_folder() -> Path:
    """Return ``traces/<UTC time>``, the same for all ranks of one launcher."""
    from tracelens_instrument.core.environment import default_directory

    return default_directory()


def launcher_rank() -> int | None:
    """Return the rank that a launcher has given us; None if the launcher is in the command."""
    from tracelens_instrument.core.identity import read_launcher

    rank_and_world = read_launcher(os.environ)
    return None if rank_and_world is None else rank_and_world[0]


def make_environment(folder: Path) -> dict[str, str]:
    """Return the environment that makes every Python below record itself into `folder`."""
    import tracelens_instrument
    from tracelens_instrument.core.environment import ALL_RANKS_VARIABLE

    autoload = str(Path(tracelens_instrument.__file__).parent / "autoload")
    variables = dict(os.environ)
    search_path = variables.get("PYTHONPATH")
    # An empty path among theirs means the working directory, so it stays.
    paths = search_path.split(os.pathsep) if search_path else []
    other_paths = [path for path in paths if path != autoload]
    variables["PYTHONPATH"] = os.pathsep.join([autoload, *other_paths])
    variables["TRACELENS_DIR"] = str(folder)
    variables["TRACELENS_HOOKS"] = "1"
    # Nothing drawn: each host, or each rank, may have a `record` of its own, and must say the same.
    variables.setdefault("TRACELENS_JOB", variables.get("SLURM_JOB_ID") or folder.name)
    if launcher_rank() is None:
        variables[ALL_RANKS_VARIABLE] = "1"
    return variables


def _parse_retention(keep: str | None, budget: str | None, detail: str | None) -> dict[str, str]:
    """Return the environment variables for what is to be kept, if that was asked for and is valid."""
    from tracelens_instrument.retention.policy import (
        BUDGET_VARIABLE,
        DETAIL_VARIABLE,
        KEEP_VARIABLE,
        parse,
    )

    parse(keep, budget, detail)
    variables = {KEEP_VARIABLE: keep, BUDGET_VARIABLE: budget, DETAIL_VARIABLE: detail}
    return {name: value for name, value in variables.items() if value is not None}


def _parse_sampling(rate: int | None) -> dict[str, str]:
    """Return the environment variable that asks for `rate` samples of stacks a second; None = none."""
    from tracelens.schema.detail import MAX_SAMPLING_HZ
    from tracelens_instrument.core.environment import RATE_VARIABLE

    if rate is None:
        return {}
    if not 1 <= rate <= MAX_SAMPLING_HZ:
        raise InvalidArgument(
            f"--sample is {rate}, expected 1 to {MAX_SAMPLING_HZ} samples a second."
        )
    return {RATE_VARIABLE: str(rate)}


def _begin_watch(folder: Path, on_alert: str | None) -> Looks:
    """Start looking at the job in `folder`; `on_alert` is a command to run at each alert."""
    from tracelens.watch.alerts import AlertCommand
    from tracelens.watch.looks import Looks

    return Looks(folder, AlertCommand(on_alert) if on_alert else None)


def _run_recorded(
    command: Sequence[str], variables: dict[str, str], journal: CommandJournal, looks: Looks | None
) -> tuple[int, list[str]]:
    """Run the command; return its exit code, and what hooks attached to (names, each once)."""
    from tracelens_instrument.core.attachments import ATTACHED_VARIABLE

    with tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace") as listing:
        variables = variables | {ATTACHED_VARIABLE: listing.name}
        child_code = run_child(
            command,
            variables,
            lambda pid: journal.wait_for(pid, looks, Path(listing.name)),
            journal.note_signal,
        )
        journal.note_starts()
        return child_code, list(dict.fromkeys(listing.read().splitlines()))


def _note_recorder(folder: Path) -> None:
    """Report to a `record` that we run under where the command is recorded."""
    from tracelens_instrument.core.attachments import note_recorder

    note_recorder(str(folder))


def _check_command(words: Sequence[str]) -> list[str]:
    """Return the command to record, without a leading ``--``."""
    command = list(words[1:] if words[:1] == ["--"] else words)
    if not command:
        raise InvalidArgument(
            "there is no command to record: put it after --, "
            "as in `tracelens record -- torchrun --nproc-per-node 2 train.py`."
        )
    if shutil.which(command[0]) is None:
        raise InvalidArgument(
            f"the command {command[0]!r} was not found: check its spelling, or give its whole path."
        )
    return command


def _check_folder(folder: Path) -> Path:
    """Return the folder if it can hold a trace; it is made only when there is something to record."""
    try:
        nearest_existing = next(path for path in (folder, *folder.parents) if path.exists())
        is_usable = nearest_existing.is_dir() and os.access(nearest_existing, os.W_OK | os.X_OK)
    except OSError:
        is_usable = False
    if not is_usable:
        raise InvalidArgument(
            f"--out is {str(folder)!r}, where no trace can be written: name a folder that can be made."
        )
    return folder


def _find_recordings(folder: Path) -> set[Path]:
    return set(folder.glob(f"*{TRACE_SUFFIX}"))


def _convert_leftovers(folder: Path) -> None:
    """Turn what killed ranks of this host left behind into Arrow files."""
    from tracelens.conversion.segments import convert

    recordings = _find_leftovers(folder)
    if recordings:
        _write(f"reading what {_count(recordings, 'process', 'processes')} left behind unfinished")
    for recording in recordings:
        try:
            convert(recording)
        except (UnusableInput, OSError) as error:
            _write(f"{recording.name} stays as it is: {error}")


def _await_samples(folder: Path) -> None:
    """Wait while samples of killed ranks are still being written down; not for those of other hosts."""
    from tracelens.schema.arrow import UNFINISHED_SAMPLES

    for _ in range(_MAX_LOOKS_FOR_SAMPLES):
        if not any((folder / SAMPLES_FOLDER).glob(f"*{UNFINISHED_SAMPLES}")):
            return
        time.sleep(_LOOK_INTERVAL_S)


def _find_leftovers(folder: Path) -> list[Path]:
    """Return the segments that no process writes any more; a killed one takes a moment to end."""
    # One of several ranks does not wait for the others, which record what they leave.
    look_count = _MAX_LOOKS_FOR_LEFTOVERS if launcher_rank() is None else 1
    for look in range(look_count):
        recordings = _find_unfinished(folder)
        leftovers = [recording for recording in recordings if not _may_grow(recording)]
        if len(leftovers) == len(recordings):
            break
        if look + 1 < look_count:
            time.sleep(_LOOK_INTERVAL_S)
    return leftovers


def _find_unfinished(folder: Path) -> list[Path]:
    """List segments, and notes that name where on a host they are."""
    return sorted([*folder.glob(f"*{SEGMENTS_SUFFIX}"), *folder.glob(f"*{ELSEWHERE_SUFFIX}")])


def _find_live_ranks(folder: Path, pids: Collection[int]) -> set[int]:
    """Return the ranks whose processes, some of `pids`, still record."""
    from tracelens.conversion.segments import is_live, read_side_tables

    ranks = set()
    for recording in _find_unfinished(folder) if pids else ():
        with suppress(UnusableInput, OSError):
            side = read_side_tables(recording)
            if side.process.pid in pids and is_live(recording):
                ranks.add(side.process.rank)
    return ranks


def _may_grow(recording: Path) -> bool:
    """Return True if a process may still write here; processes of other hosts may."""
    from tracelens.conversion.segments import is_live, read_side_tables
    from tracelens.schema.host import clock_domain, host_name

    is_among_ranks = launcher_rank() is not None
    try:
        process = read_side_tables(recording).process
        if process.host != host_name():
            return True
        if process.clock_domain != clock_domain():  # another container, maybe
            return is_among_ranks
        return is_live(recording)
    except (UnusableInput, OSError):
        # A rank beside us makes it, or converts it, just now; or it is on another host.
        return is_among_ranks or recording.suffix == ELSEWHERE_SUFFIX


def _explain_nothing(attached: Sequence[str], exit_code: int) -> str:
    """Explain in a sentence why nothing was recorded, as far as it is known."""
    from tracelens_instrument.core.attachments import (
        LOADED_BY,
        RECORDED_TO,
        STARTED_BY,
        USED,
        list_ranks,
    )

    inner_recordings = [entry for entry in attached if entry.startswith(RECORDED_TO)]
    if inner_recordings:
        folder = _quote_path(Path(inner_recordings[0].removeprefix(RECORDED_TO)))
        return (
            f"nothing was recorded here: the command's own `tracelens record` records to {folder}"
        )
    used_libraries = [entry.removeprefix(USED) for entry in attached if entry.startswith(USED)]
    loading_ranks, world = list_ranks(attached, LOADED_BY)
    if used_libraries and (exit_code or len(loading_ranks) < world):
        return _explain_early_end(used_libraries, loading_ranks, world)
    if used_libraries:
        return (
            f"nothing was recorded: the command used {', '.join(used_libraries)}, but did nothing "
            "with it that is recorded (at --detail step that is only what tl.step marks)."
        )
    started_ranks, world = list_ranks(attached, STARTED_BY)
    if exit_code and world > 1:
        return _explain_end_at_start(started_ranks, world)
    loaded = "had loaded" if exit_code else "loaded"
    return (
        f"nothing was recorded: no Python of the command {loaded} torch, mpi4py or another framework "
        "that is recorded, nor tracelens, where this TraceLens is installed (and is not kept out "
        "by python -I, -E or -S)."
    )


def _explain_early_end(libraries: Sequence[str], ranks: Sequence[int], world: int) -> str:
    """Explain that a command ended before its first event; maybe ranks waited for one another."""
    from tracelens.model import fmt

    libraries_text = ", ".join(libraries)
    missing_ranks = sorted(set(range(world)) - set(ranks))
    if not missing_ranks:
        subject = f"all {world} ranks" if world > 1 else "the command"
        ending = "and ended before the first event."
        return f"nothing was recorded: {subject} loaded {libraries_text}, {ending}"
    missing = fmt.listing("rank", missing_ranks)
    return (
        f"nothing was recorded: {fmt.listing('rank', ranks)} of {world} loaded {libraries_text}, and "
        f"ended before the first event; {missing} had not loaded it here. Ranks may have waited for "
        f"{missing} at the start: tracelens watch shows them while they wait."
    )


def _explain_end_at_start(ranks: Sequence[int], world: int) -> str:
    """Explain that ranks ended before they had loaded a framework; MPI waits while it is loaded."""
    from tracelens.model import fmt

    return (
        f"nothing was recorded: {fmt.listing('rank', ranks)} of {world} started, and ended before "
        "torch, mpi4py or another framework that is recorded was loaded. Ranks may have waited for each "
        "other at the start: tracelens watch shows them while they wait."
    )


def _describe_left_behind(
    command: Sequence[str], child_code: int, ranks: Collection[int], folder: Path
) -> str:
    """Report that the launcher has ended, and that its ranks have not."""
    from tracelens.accounting.life.orders import describe_exit_code

    name = Path(command[0]).name
    ranks_text = _count(ranks, "rank goes", "ranks go")
    ending = describe_exit_code(child_code)
    return f"{name} {ending}; {ranks_text} on recording: tracelens watch {_quote_path(folder)}"


def _summarize(
    folder: Path, files: Collection[Path], attachments: Sequence[str], exit_code: int
) -> str:
    """Return a sentence on what was recorded, by which hooks, and where; or why nothing was."""
    from tracelens_instrument.core.attachments import (
        LOADED_BY,
        RECORDED_TO,
        STARTED_BY,
        STARTED_PROCESS,
        USED,
    )

    if not files:
        return _explain_nothing(attachments, exit_code)
    event_count = sum(map(_count_events, files))
    folder_text = _quote_path(folder)
    if exit_code and not event_count:
        explanation = _explain_nothing(attachments, exit_code)
        return f"{explanation} How it failed: tracelens analyze {folder_text}"
    amount = f"{_count(files, 'process', 'processes')} with {event_count:,} events"
    attachments = [
        entry
        for entry in attachments
        if not entry.startswith((USED, LOADED_BY, STARTED_BY, STARTED_PROCESS, RECORDED_TO))
    ]
    hooks = f" ({', '.join(attachments)})" if attachments else ""
    return f"recorded {amount}{hooks} to {folder_text}; next: tracelens analyze {folder_text}"


def _write_unrecorded(attached: Sequence[str]) -> None:
    from tracelens_instrument.core.attachments import list_unrecorded_frameworks

    for sentence in list_unrecorded_frameworks(attached):
        _write(sentence)


def _write_verdict(folder: Path) -> None:
    """Print the verdict on the run, by a process of its own; nothing where it cannot be explained."""
    command = [sys.executable, "-m", "tracelens", "analyze", "--verdict", str(folder)]
    with suppress(OSError, subprocess.SubprocessError):
        analysis = subprocess.run(
            command, capture_output=True, text=True, timeout=_VERDICT_TIMEOUT_S, check=True
        )
        sys.stderr.write(analysis.stdout)


def _describe_folder(folder: Path, attached: Sequence[str], exit_code: int) -> str:
    """Name the folder that the ranks of our launcher record to; some may not have ended yet."""
    if not _find_unfinished(folder) and not _find_recordings(folder):
        return _explain_nothing(attached, exit_code)
    path = _quote_path(folder)
    return f"the ranks record to {path}; when all have ended: tracelens analyze {path}"


def _count_events(path: Path) -> int:
    """Count the events of a file by its first column."""
    import pyarrow as pa

    from tracelens.schema.arrow import map_file

    options = pa.ipc.IpcReadOptions(included_fields=[0])
    try:
        with pa.ipc.open_file(map_file(path), options=options) as reader:
            return sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
    except (NotATrace, pa.ArrowInvalid, OSError, ValueError):
        return 0


def _count(things: Collection[object], singular: str, plural: str) -> str:
    return f"{len(things)} {singular if len(things) == 1 else plural}"


def _quote_path(folder: Path) -> str:
    """Return a path for a shell: the relative one, if that is shorter."""
    return shlex.quote(min(os.path.relpath(folder), str(folder), key=len))


def _write_result(sentence: str, exit_code: int) -> None:
    ending = f" (the command ended with exit code {exit_code})" if exit_code else ""
    _write(f"{sentence}{ending}")


def _write(text: str) -> None:
    sys.stderr.write(f"tracelens: {text}\n")


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    wait_for: Callable[[int], object],
    note_signal: Callable[..., object],
) -> int:
    """Run to the end and return the exit code; killed by a signal it is the negative of its number.

    Args:
        command: Program and arguments.
        environment: All of its variables.
        wait_for: Called with its pid; returns when it has ended, or before.
        note_signal: Called with the name of each signal that we get, and whether a key sent it.

    Raises:
        InvalidArgument: the command cannot be started.
    """
    with _Relay(note_signal) as relay:
        try:
            child = subprocess.Popen(command, env=environment, close_fds=False)
        except OSError as error:
            raise InvalidArgument(
                f"the command {command[0]!r} cannot be started ({error.strerror}): "
                "give the program that runs it, as in `-- bash script.sh`."
            ) from error
        with child:
            relay.attach(child)
            wait_for(child.pid)
            return child.wait()


class _Relay:
    """Forwards signals to a child; one that arrived before there was a child is forwarded later.

    Signals ignored from the start (`nohup`) stay ignored, by the child as well.
    """

    def __init__(self, note_signal: Callable[..., object]) -> None:
        self._note_signal = note_signal
        self._child: subprocess.Popen[bytes] | None = None
        self._early_signals: list[int] = []
        self._earlier_handlers: dict[int, Any] = {}  # by number of the signal

    def __enter__(self) -> Self:
        for name in _FORWARDED_SIGNALS:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._earlier_handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._earlier_handlers.items():
            signal.signal(number, handler)

    def attach(self, child: subprocess.Popen[bytes]) -> None:
        """Pass signals on to this child from now on."""
        self._child = child
        while self._early_signals:
            child.send_signal(self._early_signals.pop(0))

    def _receive(self, number: int, _frame: object) -> None:
        """Note a signal, and pass it on to the child, unless the terminal sends it there, too."""
        name = signal.Signals(number).name
        is_key = name in _KEYBOARD_SIGNALS and _is_in_foreground()
        self._note_signal(name, is_key=is_key)
        if is_key:
            return  # Ctrl-C reaches the whole foreground group, so the child has it already
        if self._child is None:
            self._early_signals.append(number)
        else:
            self._child.send_signal(number)


def _is_in_foreground() -> bool:
    """Return True if a key pressed in our terminal becomes a signal to this process."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)

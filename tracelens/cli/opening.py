"""What verbs that read a run share: naming it on the command line, opening it, a bar for long work."""

from __future__ import annotations

import gc
import glob
import os
import sys
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from tracelens.errors import InvalidArgument
from tracelens.executors import EXECUTORS
from tracelens.memory import keep_room
from tracelens.model.fmt import parsed_size, shown_name
from tracelens.remote.address import place, shown
from tracelens.schema.gate import LIMITS, raise_limit
from tracelens.schema.vocabulary import MOST_RANKS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor

    from tracelens.lod.run_data import Run
    from tracelens.model.choice import Choice
    from tracelens.model.trace import Trace
    from tracelens.readers.base import Progress as OnProgress
    from tracelens.remote.address import Place

WHAT: Final = (
    "trace folder, a profile by torch.profiler (.json, .json.gz) or a folder of one a rank, or a table "
    "of spans (.arrow, .feather, .parquet, .csv); also the address of one, such as s3://BUCKET/RUN"
)
# What libraries read when they are loaded: NumPy starts a thread a core for its BLAS, of which no matrix
# here has need, and polars keeps for half a second and more what it has freed. Without keeping any, a
# profile of torch.profiler took 0.5 of 4.5 s of CPU more, in page faults (seen by hand; no script).
_LOADED_WITH: Final = {
    "numpy": ("OPENBLAS_NUM_THREADS", "1"),
    "polars": ("_RJEM_MALLOC_CONF", "dirty_decay_ms:5,muzzy_decay_ms:0"),
}
_OBJECTS: Final = 100_000  # that were made and are still there before cycles are looked for again
MAP: Final = (
    "what a table calls something, and what TraceLens calls it; again for each: a column "
    "(worker_no=rank, t0=start_us) or a word in one (kind:predict=forward, role:chief2=worker)"
)


@contextmanager
def progress(what: str, then: str | None = None) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with (done, total); the bar is on standard error and goes away.

    `then` names what follows once all that is counted is done.
    """
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        rest = bar.add_task(then or "", total=None, visible=False)

        def on_progress(done: int, total: int) -> None:
            over = then is not None and done >= total
            bar.update(task, completed=done, total=total, visible=not over)
            bar.update(rest, visible=over)

        yield on_progress


def add_trace(
    parser: argparse.ArgumentParser, *, also: str = "", nargs: Literal["+"] | None = None
) -> None:
    """Add the argument for the run, and the options of tables; `also` names other inputs allowed."""
    help_ = f"{WHAT}{also and ', or '}{also}"
    parser.add_argument("trace", type=place, nargs=nargs, help=help_)
    table = parser.add_argument_group("tables of spans")
    table.add_argument("--map", action="append", metavar="THEIRS=OURS", help=MAP)
    table.add_argument(
        "--one-clock", action="store_true", help="all times of the table come from one clock"
    )
    profiles = parser.add_argument_group(
        "profiles by torch.profiler, and other trace events in JSON"
    )
    profiles.add_argument(
        "--rank-of",
        action="append",
        metavar="FILE=RANK",
        help="of which rank a file is that does not say so itself, or a process of a file "
        "(FILE:PROCESS=RANK); again for each",
    )
    add_limit(parser)


def add_limit(parser: argparse.ArgumentParser) -> None:
    """Add the option that raises a limit on what is read."""
    parser.add_argument(
        "--limit",
        action="append",
        metavar="NAME=VALUE",
        help=f"how much a file may hold ({', '.join(LIMITS)}), such as file=16GiB (docs/reliability.md)",
    )


def add_keeping(parser: argparse.ArgumentParser) -> None:
    """Add the option that keeps nothing of a run; whoever runs a verb obeys it."""
    parser.add_argument(
        "--no-keep",
        action="store_true",
        help="keep neither report nor index for later verbs (docs/reliability.md)",
    )


def raise_limits(given: Sequence[str]) -> None:
    """Set the limits of what is read that `--limit` asked for.

    Raises:
        InvalidArgument: one is none, or not written as NAME=VALUE.
    """
    for text in given:
        name, _, value = text.partition("=")
        try:
            raise_limit(name, parsed_size(value))
        except ValueError as error:
            raise InvalidArgument(
                f"--limit {text}: expected NAME=VALUE, such as file=16GiB or rows=200000000."
            ) from error


def add_executor(parser: argparse.ArgumentParser) -> None:
    """Add the option that says where the files of a run are worked on."""
    parser.add_argument(
        "--executor",
        metavar="WHERE",
        help=f"where files are read and workers accounted for: {EXECUTORS} (docs/cluster.md)",
    )


def add_memory(parser: argparse.ArgumentParser) -> None:
    """Add the option that says how much memory a report may take."""
    parser.add_argument(
        "--memory",
        default="1GiB",
        metavar="SIZE",
        help="about how much memory to take, 1GiB if not given: of longer runs more is read twice, or "
        "is in a temporary file (docs/scale.md)",
    )


def memory_of(arguments: argparse.Namespace) -> int:
    """Return how many bytes a report may take, as `add_memory` asked."""
    try:
        return parsed_size(arguments.memory)
    except ValueError as error:
        raise InvalidArgument(f"--memory: {error}.") from error


def add_part(parser: argparse.ArgumentParser, *, time: str) -> None:
    """Add the options that choose a part of a run; `time` says what of a time is taken."""
    part = parser.add_argument_group("a part of the run")
    part.add_argument("--ranks", help="worker ranks, such as 0-7,12; parameter servers stay")
    part.add_argument("--steps", help="steps, such as 200-260, or 200- (to the end)")
    part.add_argument(
        "--time", metavar="FROM-TO", help=f"time from the run's begin, such as 10s-70s: {time}"
    )


def choice_of(arguments: argparse.Namespace) -> Choice:
    """Return what `add_part` asked for."""
    from tracelens.model.choice import Choice

    return Choice.parse(arguments.ranks, arguments.steps, arguments.time)


def open_trace(arguments: argparse.Namespace, memory: int = 0) -> Trace:
    """Open what `add_trace` asked for, showing progress; `memory` as `tracelens.load.open` takes it."""
    path = local(arguments.trace)
    with progress("reading", then="aligning clocks, matching collectives") as on_progress:
        return open_path(arguments, path, on_progress, memory)


def open_path(
    arguments: argparse.Namespace,
    path: Path,
    on_progress: OnProgress,
    memory: int = 0,
    *,
    contained: bool = False,
) -> Trace:
    """Open one of several runs, as `add_trace` says how."""
    import_libraries()
    keep_room()
    from tracelens.load import open as open_any

    renamed = dict(map(_pair, getattr(arguments, "map", None) or ()))
    one_clock = getattr(arguments, "one_clock", False)
    rank_of = ranks_of_files(arguments)
    return open_any(
        path,
        on_progress,
        map=renamed,
        one_clock=one_clock,
        memory=memory,
        rank_of=rank_of,
        contained=contained,
    )


def measured(path: Path, arguments: argparse.Namespace) -> Run:
    """Open one of several runs by its index; where there is none, explain it and make one."""
    from tracelens.lod import opening

    known = None if arguments.map else opening.indexed(path)
    return known or opening.explained(
        open_path(arguments, path, lambda _done, _total: None), progress
    )


def has_options(arguments: argparse.Namespace) -> bool:
    """Return whether the user says how a file is to be read, so that nothing kept can be of it."""
    return bool(arguments.map or arguments.one_clock or arguments.rank_of)


def ranks_of_files(arguments: argparse.Namespace) -> dict[str, int]:
    """Return of which ranks files are, by name, as the user says.

    Raises:
        InvalidArgument: what is said is no file and rank.
    """
    ranks: dict[str, int] = {}
    for text in getattr(arguments, "rank_of", None) or ():
        file, _, rank = text.rpartition("=")
        if not file or not rank.isdecimal() or int(rank) >= MOST_RANKS:
            raise InvalidArgument(f"--rank-of {text}: expected FILE=RANK, such as trace.json.gz=3.")
        ranks[Path(file).name] = int(rank)
    return ranks


@cache
def import_libraries() -> None:
    """Import NumPy and polars so that they start no threads in vain, and free what they do not use.

    What whoever calls us has set stays as it is. What they consist of stays to the end, so that the
    garbage collector need not look for it, neither now nor later; and it looks for cycles less often,
    as a run of thousands of files is hundreds of thousands of small objects without any. Once: what a
    server that reads one run after the other has left by then is not to stay as well.
    """
    gc.disable()
    try:
        for library, (name, value) in _LOADED_WITH.items():
            os.environ.setdefault(name, value)  # for the BLAS of SciPy, too
            import_module(library)
    finally:
        gc.freeze()
        gc.set_threshold(_OBJECTS)
        gc.enable()


def local(place: Place, enough: Callable[[Path], bool] | None = None) -> Path:
    """Return a path; of an address that of a copy in the user's cache, fetched as `fetched` says."""
    if isinstance(place, Path):
        return place
    from tracelens.remote.mirror import fetched

    with progress("fetching") as on_progress:
        return fetched(place, on_progress, enough=enough)


def named(place: Place) -> str:
    """Return a path or an address as it may be printed."""
    return shown_name(place) if isinstance(place, Path) else shown(place)


def matched(paths: Sequence[Place]) -> list[Path]:
    """Return the places that are there for each path, or match it as a pattern, in order of name.

    One that neither is there nor matches stays, to be complained about by whoever opens it. Of
    addresses the places are those of copies, as `local` says.
    """
    found: list[Path] = []
    for path in paths:
        if isinstance(path, str):
            from tracelens.remote.listing import matching

            found += map(local, matching(path))
            continue
        names: list[str] = [] if path.exists() else sorted(glob.glob(str(path)))  # noqa: PTH207 - may be absolute
        found += [Path(name) for name in names] or [path]
    return found


def open_joined(
    arguments: argparse.Namespace,
    paths: Sequence[Path],
    executor: Executor | None = None,
    choice: Choice | None = None,
    memory: int = 0,
) -> Trace:
    """Open several folders of one run, showing progress; tables as `add_trace` says how."""
    import_libraries()
    keep_room()
    from tracelens.load import open_joined as open_all
    from tracelens.model.choice import EVERYTHING

    with progress("reading", then="aligning clocks, matching collectives") as on_progress:
        return open_all(
            paths,
            on_progress,
            map=dict(map(_pair, arguments.map or ())),
            one_clock=arguments.one_clock,
            rank_of=ranks_of_files(arguments),
            executor=executor,
            memory=memory,
            choice=choice or EVERYTHING,
        )


def _pair(text: str) -> tuple[str, str]:
    theirs, _, ours = text.rpartition("=")
    if not theirs or not ours:
        raise InvalidArgument(
            f"--map {text}: expected THEIRS=OURS, such as worker_no=rank or kind:predict=forward."
        )
    return theirs, ours

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
from typing import TYPE_CHECKING, Any, Final, Literal

from tracelens.errors import InvalidArgument
from tracelens.executors import EXECUTORS
from tracelens.memory import keep_freed_memory
from tracelens.model.fmt import parse_size, shown_name
from tracelens.remote.address import hide_secrets, parse_place
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
_VARIABLE_BY_LIBRARY: Final = {
    "numpy": ("OPENBLAS_NUM_THREADS", "1"),
    "polars": ("_RJEM_MALLOC_CONF", "dirty_decay_ms:5,muzzy_decay_ms:0"),
}
_NEW_OBJECTS_PER_COLLECTION: Final = 100_000  # before the garbage collector looks for cycles again
MAP: Final = (
    "what a table calls something, and what TraceLens calls it; again for each: a column "
    "(worker_no=rank, t0=start_us) or a word in one (kind:predict=forward, role:chief2=worker)"
)


@contextmanager
def show_progress(
    label: str, next_label: str | None = None
) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with (done, total); the bar is on standard error and goes away.

    `next_label` names the work after everything was counted.
    """
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        counted_task = bar.add_task(label, total=None)
        next_task = bar.add_task(next_label or "", total=None, visible=False)

        def on_progress(done: int, total: int) -> None:
            is_counted = next_label is not None and done >= total
            bar.update(counted_task, completed=done, total=total, visible=not is_counted)
            bar.update(next_task, visible=is_counted)

        yield on_progress


def add_trace(
    parser: argparse.ArgumentParser, *, also: str = "", nargs: Literal["+"] | None = None
) -> None:
    """Add the argument for the run, and the options of tables; `also` names other inputs allowed."""
    help_text = f"{WHAT}{also and ', or '}{also}"
    parser.add_argument("trace", type=parse_place, nargs=nargs, help=help_text)
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
    add_contained(parser)


def add_runs(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the argument for several runs, and the options that say how they are read."""
    parser.add_argument("traces", type=parse_place, nargs="+", metavar="RUN", help=what)
    parser.add_argument(
        "--map", action="append", metavar="THEIRS=OURS", help="as of analyze, of all"
    )
    add_limit(parser)
    add_contained(parser)
    add_keeping(parser)


def add_scenario(parser: argparse.ArgumentParser, help_of_changes: str) -> None:
    """Add the argument for a scenario, and the option that changes it, with its help."""
    parser.add_argument(
        "scenario",
        type=Path,
        metavar="FILE.toml",
        help="a scenario, or a preset: resnet50, hepcnn, alexnet, nt3 (docs/simulate.md)",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="TABLE.NAME=VALUE", help=help_of_changes
    )


def add_contained(parser: argparse.ArgumentParser) -> None:
    """Add the option that reads in a child process; `supervisor.py` obeys it."""
    parser.add_argument(
        "--contained",
        action="store_true",
        help="read in a child process, and leave out files that end it: the default for all but "
        "recordings of your own (docs/reliability.md)",
    )


def add_limit(parser: argparse.ArgumentParser) -> None:
    """Add the option that raises a limit on what is read."""
    parser.add_argument(
        "--limit",
        action="append",
        metavar="NAME=VALUE",
        help=f"how much a file may hold ({', '.join(LIMITS)}), such as file=16GiB (docs/reliability.md)",
    )


def add_keeping(parser: argparse.ArgumentParser) -> None:
    """Add the option that keeps nothing of a run; `cli.run` obeys it."""
    parser.add_argument(
        "--no-keep",
        action="store_true",
        help="keep neither report nor index for later verbs (docs/reliability.md)",
    )


def raise_limits(texts: Sequence[str]) -> None:
    """Raise the limits that the texts of `--limit` name.

    Raises:
        InvalidArgument: a text is not NAME=VALUE, or names no limit.
    """
    for text in texts:
        name, _, value = text.partition("=")
        try:
            raise_limit(name, parse_size(value))
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


def parse_memory(arguments: argparse.Namespace) -> int:
    """Parse `--memory`: the bytes that a report may take."""
    try:
        return parse_size(arguments.memory)
    except ValueError as error:
        raise InvalidArgument(f"--memory: {error}.") from error


def add_choice(parser: argparse.ArgumentParser, *, time: str) -> None:
    """Add the options that choose a part of a run; `time` says what of a time is taken."""
    group = parser.add_argument_group("a part of the run")
    group.add_argument("--ranks", help="worker ranks, such as 0-7,12; parameter servers stay")
    group.add_argument("--steps", help="steps, such as 200-260, or 200- (to the end)")
    group.add_argument(
        "--time", metavar="FROM-TO", help=f"time from the run's begin, such as 10s-70s: {time}"
    )


def parse_choice(arguments: argparse.Namespace) -> Choice:
    """Parse the options of `add_choice`."""
    from tracelens.model.choice import Choice

    return Choice.parse(arguments.ranks, arguments.steps, arguments.time)


def open_trace(arguments: argparse.Namespace, memory: int = 0) -> Trace:
    """Open the run that `add_trace` asked for, showing progress; `memory`: bytes, as of `load.open`."""
    return open_joined(arguments, [fetch_copy(arguments.trace)], memory=memory)


def open_joined(
    arguments: argparse.Namespace,
    paths: Sequence[Path],
    executor: Executor | None = None,
    choice: Choice | None = None,
    memory: int = 0,
) -> Trace:
    """Open the folders of one run, showing progress, as the options of `add_trace` say.

    `executor` says where files are read, None = here; `choice` what part of the run, None = all;
    `memory` is how many bytes to take.
    """
    import_libraries()
    keep_freed_memory()
    from tracelens.load import open_joined as open_all
    from tracelens.model.choice import EVERYTHING

    with show_progress(
        "reading", next_label="aligning clocks, matching collectives"
    ) as on_progress:
        return open_all(
            paths,
            on_progress,
            **_parse_options(arguments),
            executor=executor,
            memory=memory,
            choice=choice or EVERYTHING,
        )


def open_path(
    arguments: argparse.Namespace,
    path: Path,
    on_progress: OnProgress | None = None,
    memory: int = 0,
    *,
    contained: bool = False,
) -> Trace:
    """Open one of several runs as `add_trace` asked; `contained`: in a process of its own first."""
    import_libraries()
    keep_freed_memory()
    from tracelens.load import open as open_run

    options = _parse_options(arguments)
    return open_run(path, on_progress, **options, memory=memory, contained=contained)


def _parse_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Parse the options of `add_trace` into keyword arguments of `tracelens.load.open`."""
    return {
        "map": dict(map(_parse_pair, getattr(arguments, "map", None) or ())),
        "one_clock": getattr(arguments, "one_clock", False),
        "rank_of": _parse_ranks(getattr(arguments, "rank_of", None) or ()),
    }


def measure_runs(arguments: argparse.Namespace, expected: str) -> Iterator[tuple[Path, Run]]:
    """Yield the path and the index of each run that `add_runs` asked for; make those that are not there.

    Raises:
        InvalidArgument: there is only one; `expected` says which there should be.
    """
    from tracelens.lod import opening

    paths = match_paths(arguments.traces)
    if len(paths) < 2:
        names = ", ".join(map(write_name, paths))
        raise InvalidArgument(f"Found one run, {names}: expected {expected}.")
    for path in paths:
        indexed_run = None if arguments.map else opening.open_indexed(path)
        yield path, indexed_run or opening.explain_trace(open_path(arguments, path), show_progress)


def has_options(arguments: argparse.Namespace) -> bool:
    """Return True if options say how a file is read, so that no report or index of it is kept."""
    return bool(arguments.map or arguments.one_clock or arguments.rank_of)


def _parse_ranks(texts: Sequence[str]) -> dict[str, int]:
    """Return the ranks of files, by name, of texts such as ``trace.json.gz=3``.

    Raises:
        InvalidArgument: a text is no file and rank.
    """
    ranks: dict[str, int] = {}
    for text in texts:
        file, _, rank = text.rpartition("=")
        if not file or not rank.isdecimal() or int(rank) >= MOST_RANKS:
            raise InvalidArgument(f"--rank-of {text}: expected FILE=RANK, such as trace.json.gz=3.")
        ranks[Path(file).name] = int(rank)
    return ranks


@cache
def import_libraries() -> None:
    """Import NumPy and polars so that they start no threads in vain, and free what they do not use.

    Settings of the caller stay. What the libraries made stays to the end, so that the garbage collector
    need not look at it; and it looks for cycles less often, as a run of thousands of files is hundreds
    of thousands of small objects without any. It does so once: what a server that reads one run after
    the other has left by then is not to stay as well.
    """
    gc.disable()
    try:
        for library, (name, value) in _VARIABLE_BY_LIBRARY.items():
            os.environ.setdefault(name, value)  # for the BLAS of SciPy, too
            import_module(library)
    finally:
        gc.freeze()
        gc.set_threshold(_NEW_OBJECTS_PER_COLLECTION)
        gc.enable()


def fetch_copy(location: Place, is_end_enough: Callable[[Path], bool] | None = None) -> Path:
    """Return a path as it is, and that of a copy of an address, as `mirror.fetch_copy` makes it.

    `is_end_enough` returns True for a copy of a recording of which only the end was fetched, if that is
    enough.
    """
    if isinstance(location, Path):
        return location
    from tracelens.remote import mirror

    with show_progress("fetching") as on_progress:
        return mirror.fetch_copy(location, on_progress, is_end_enough=is_end_enough)


def write_name(location: Place) -> str:
    """Return a path or an address as it may be printed."""
    return shown_name(location) if isinstance(location, Path) else hide_secrets(location)


def match_paths(locations: Sequence[Place]) -> list[Path]:
    """Return the existing paths, the matches of patterns in order of name, and copies of addresses.

    A name that neither exists nor matches stays, and opening it raises the error.
    """
    matches: list[Path] = []
    for location in locations:
        if isinstance(location, str):
            from tracelens.remote.listing import list_matching

            matches += map(fetch_copy, list_matching(location))
            continue
        names: list[str] = [] if location.exists() else sorted(glob.glob(str(location)))  # noqa: PTH207 - may be absolute
        matches += [Path(name) for name in names] or [location]
    return matches


def _parse_pair(text: str) -> tuple[str, str]:
    """Parse ``THEIRS=OURS`` of `--map`: a name in a table, and what TraceLens calls it."""
    other_name, _, own_name = text.rpartition("=")
    if not other_name or not own_name:
        raise InvalidArgument(
            f"--map {text}: expected THEIRS=OURS, such as worker_no=rank or kind:predict=forward."
        )
    return other_name, own_name

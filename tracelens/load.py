"""From a trace folder, or a table of spans, to a `Trace` that analyses can use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens import containment, plugins
from tracelens.align import DEFAULT_TRANSFORMS, devices, selection
from tracelens.errors import (
    EmptyTrace,
    InvalidArgument,
    NotATrace,
    TraceLensError,
    TraceNotFound,
    UnusableInput,
)
from tracelens.memory import give_back
from tracelens.model import fmt
from tracelens.model.choice import EVERYTHING, Choice
from tracelens.model.events import Numbered, Source
from tracelens.model.fmt import shown_name
from tracelens.model.recognition import join_recognitions
from tracelens.model.trace import OF_PROCESSES, Trace
from tracelens.readers import READERS
from tracelens.readers.base import Reading
from tracelens.readers.files import RANK_UNKNOWN
from tracelens.readers.jobs import RankFile, check_one_job
from tracelens.readers.links import inside
from tracelens.remote.address import is_remote

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from tracelens.model.trace import Moved
    from tracelens.readers.base import Progress, Reader
    from tracelens.readers.native.reader import NativeReader
    from tracelens.readers.table import TableReader

_SHOWN: Final = 3  # names of files in a sentence
_FOR_EVENTS: Final = 4  # one part of so many of the memory
DEEPEST: Final = 3  # folders below one that is given: experiment, day, run


def open(  # noqa: A001 - reads as tracelens.open
    path: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    map: Mapping[str, str] | None = None,  # noqa: A002 - called what the command line calls it
    one_clock: bool = False,
    rank_of: Mapping[str, int] | None = None,
    executor: Executor | None = None,
    memory: int = 0,
    contained: bool = False,
    ranks: str | None = None,
    steps: str | None = None,
    time: str | None = None,
) -> Trace:
    """Read a trace, or a part of it, and prepare it.

    Args:
        path: A trace folder, or one that holds a single one; a file of one, a profile by torch.profiler
            (.json, .json.gz) or a folder of one a rank, or a table of spans (.arrow, .feather, .parquet,
            .csv); or the address of one, such as ``s3://bucket/run`` (docs/remote.md).
        progress: Called with (done, total) processes.
        map: For a table: what its columns and words are called in TraceLens (docs/tables.md).
        one_clock: For a table: all its times come from one clock.
        rank_of: For profiles and other trace events in JSON: of which rank a file is that does not say
            so itself, by its name.
        executor: Reads the files of a folder; None = in threads of this process.
        memory: About how many bytes a report may take: a part of them keeps events that it asks for
            again, which are else read again.
        contained: Try each file in a process of its own first, with limits of memory and CPU, and leave
            out those that end it: a crash costs a rank, not this process (docs/reliability.md).
        ranks: Which workers, such as ``"0-7,12"``; files of others are not read. None = all.
        steps: Which steps, such as ``"200-260"`` or ``"200-"``.
        time: Which time, from the run's begin, such as ``"10s-70s"``: the steps that reach into it.

    Raises:
        TraceNotFound: there is nothing at `path`.
        UnusableInput: there is, but nothing of it can be read.
        InvalidArgument: `map` or `one_clock` for what is no table, or a `map` that says nothing; or the
            run has nothing of the ranks, steps or time.
    """
    place = local(path, progress)
    options = _options(map, rank_of, one_clock=one_clock)
    with containment.leaving_out(containment.tried([place], options) if contained else {}):
        return open_joined(
            [place],
            progress,
            map=map,
            one_clock=one_clock,
            rank_of=rank_of,
            executor=executor,
            memory=memory,
            choice=Choice.parse(ranks, steps, time),
        )


def _options(
    map: Mapping[str, str] | None,  # noqa: A002 - called what the command line calls it
    rank_of: Mapping[str, int] | None,
    *,
    one_clock: bool,
) -> list[str]:
    """Return how a run is read, as the command line says it."""
    return [
        *(["--one-clock"] if one_clock else []),
        *(f"--map={theirs}={ours}" for theirs, ours in (map or {}).items()),
        *(f"--rank-of={file}={rank}" for file, rank in (rank_of or {}).items()),
    ]


def open_joined(
    paths: Sequence[str | os.PathLike[str]],
    progress: Progress | None = None,
    *,
    map: Mapping[str, str] | None = None,  # noqa: A002 - called what the command line calls it
    one_clock: bool = False,
    rank_of: Mapping[str, int] | None = None,
    executor: Executor | None = None,
    memory: int = 0,
    choice: Choice = EVERYTHING,
) -> Trace:
    """Read several folders of one run, join them, and prepare them; arguments as above.

    Processes are numbered in the order of `paths`; the trace's own `path` is that of a single one.

    Raises:
        UnusableInput: nothing of one of them can be read.
        InvalidArgument: as above, or two of them hold the same rank.
    """
    places, named = _wanted([local(path, progress) for path in paths], choice)
    # Workers elsewhere read events again, which takes less than sending them to and fro.
    kept = 0 if executor else memory // _FOR_EVENTS // len(places)
    how = Reading(progress, executor, kept, choice, rank_of or {})
    # What was read has no name here: alignment replaces the largest of it, which is then freed.
    return prepare(
        selection.of_ranks(
            _join([_read(place, how, map, one_clock=one_clock) for place in places]), choice, named
        )
    )


def _wanted(paths: Sequence[Path], choice: Choice) -> tuple[Sequence[Path], set[int]]:
    """Return the places that may hold something of a choice, and the ranks that files are named after.

    Raises:
        InvalidArgument: none of them is named after a rank that is wanted.
    """
    if choice.ranks is None:
        return paths, set()
    from tracelens.readers.native.recordings import (
        named_ranks,
        recordings,
        select_recordings,
    )

    files = {path: recordings(path) for path in paths}
    named = named_ranks(file for found in files.values() for file in found)
    if named:
        selection.check_ranks(choice, named)
    return [p for p, found in files.items() if not found or select_recordings(found, choice)], named


def local(path: str | os.PathLike[str], progress: Progress | None = None) -> Path:
    """Return a path; of an address that of a copy of what is there now, which is fetched if need be.

    Raises:
        TraceLensError: nothing is there, or it cannot be fetched.
    """
    if not is_remote(path):
        return Path(path)
    from tracelens.remote.mirror import fetched

    return fetched(path, progress)


def _read(
    place: Path,
    how: Reading,
    map: Mapping[str, str] | None,  # noqa: A002 - called what the command line calls it
    *,
    one_clock: bool,
) -> Trace:
    if not place.exists():
        raise TraceNotFound(
            f"There is no '{place}': expected a trace folder or a table of spans; "
            "record one with 'tracelens record -- COMMAND'."
        )
    containment.begin(place)
    with containment.watching():
        return _recognised(place, how, map, one_clock=one_clock)


def _recognised(
    place: Path,
    how: Reading,
    map: Mapping[str, str] | None,  # noqa: A002 - called what the command line calls it
    *,
    one_clock: bool,
) -> Trace:
    reader = _table_reader(map, one_clock=one_clock)
    if map or one_clock:
        tables = _tables_in(place, reader)
        if not tables:
            raise InvalidArgument(
                f"'{place}' is no table of spans, so there is nothing for --map or --one-clock."
            )
        if len(tables) > 1:
            raise _unknown(place, [], tables)
        return reader.read(tables[0], how)
    for known in READERS:
        if known.sniff(place):
            return known.read(place, how)
    found = _read_by_plugin(place, how)
    if found is not None:
        return found
    inner = runs_in(place) if place.is_dir() else []
    if len(inner) == 1:  # as the folder that a profiler writes to holds one a profile
        return _recognised(inner[0], how, None, one_clock=False)
    tables = [] if inner else _tables_in(place, reader)
    if len(tables) == 1:
        return reader.read(tables[0], how)
    raise _unknown(place, inner, tables)


def _tables_in(place: Path, reader: TableReader) -> list[Path]:
    """Return a file if it is a table, or the tables of a folder."""
    entries = sorted(place.iterdir()) if place.is_dir() else [place]
    files = inside((one for one in entries if one == place or one.name[0] != "."), place)
    return [file for file in files if reader.sniff(file)]


def _read_by_plugin(place: Path, how: Reading) -> Trace | None:
    """Ask the readers of other distributions, by name; None where none of them recognises it.

    Raises:
        UnusableInput: the one that does fails, or it would end this process.
    """
    reason = containment.reason_of(place)
    if reason:
        raise UnusableInput(f"'{place}' is not read: {reason}.")
    for plugin in plugins.installed(plugins.READERS):
        named = plugin.load()
        try:
            reader: Reader = named() if isinstance(named, type) else named
            if reader.sniff(place):
                return reader.read(place, how)
        except TraceLensError:
            raise
        except Exception as error:  # code of others may raise anything
            reason = f"{type(error).__name__}: {error}".rstrip(".")
            raise UnusableInput(
                f"The reader '{plugin.name}' of {plugin.distribution} failed with '{place}' ({reason}): "
                "report it to whoever wrote that reader."
            ) from error
    return None


def from_table(
    table: Any,
    *,
    map: Mapping[str, str] | None = None,  # noqa: A002 - called what the command line calls it
    one_clock: bool = False,
) -> Trace:
    """Read a table of spans (docs/tables.md), and prepare it as `open` does.

    Args:
        table: A polars or pandas frame, an Arrow table, a mapping of columns, or a file's path.
        map: What its columns and words are called here: ``{"worker_no": "rank", "t0":
            "start_us", "kind:predict": "forward"}``.
        one_clock: All its times come from one clock; else ranks share one if their `host` (or
            `clock`) is the same.

    Raises:
        UnusableInput: a column is missing, or no row is usable.
        InvalidArgument: `table` is no table, or `map` names what there is not.
    """
    if isinstance(table, (str, Path)):
        return open(table, map=map, one_clock=one_clock)
    return prepare(_table_reader(map, one_clock=one_clock).take(table))


def _table_reader(map: Mapping[str, str] | None, *, one_clock: bool) -> TableReader:  # noqa: A002
    from tracelens.readers.table import TableReader
    from tracelens.readers.table.naming import Renaming

    return TableReader(Renaming.parse(map or {}), one_clock)


def prepare(trace: Trace) -> Trace:
    """Apply the default transforms: one clock, steps, matched collectives."""
    for transform in DEFAULT_TRANSFORMS:
        trace = transform(trace)
        give_back()
    return trace


def runs_in(place: Path) -> list[Path]:
    """List the runs at a place: itself, or the trace folders in it, at most three folders deep."""
    if not place.is_dir() or _holds_recordings(place):
        return [place]
    return [run for entry in sorted(place.iterdir()) for run in _within(entry, DEEPEST)]


def _within(entry: Path, deep: int) -> list[Path]:
    """List the runs below; a link is not followed, as what it leads to may be listed already."""
    if entry.name.startswith(".") or entry.is_symlink() or not entry.is_dir():
        return []
    try:
        if _holds_recordings(entry):
            return [entry]
        inner = sorted(entry.iterdir()) if deep > 1 else []
    except OSError:  # not for us to look into, or gone since it was listed
        return []
    return [run for child in inner for run in _within(child, deep - 1)]


def events_of(path: Path, process: int, moved: Moved | None) -> pl.DataFrame:
    """Read the events of one process from its file, as they are in the whole trace.

    Args:
        path: The file of that process.
        process: Its row in the whole trace's processes.
        moved: How its times came onto the common clock there; null = not at all.

    Raises:
        UnusableInput: the file cannot be read (any more).
    """
    alone = devices.place(_native_reader().read(path))
    events = alone.events.with_columns(process=pl.lit(process, pl.Int32)).collect()
    if moved is None:
        return events
    times = ("start_ns", "end_ns", "device_start_ns")
    return events.with_columns(
        _moved(events[name], moved) for name in times if events[name].count()
    )


def samples_of(path: Path, process: int, moved: Moved | None) -> pl.DataFrame:
    """Read the samples of one process's stacks, as they are in the whole trace; arguments as above.

    Raises:
        UnusableInput: the file cannot be read (any more).
    """
    samples = _native_reader().read(path).samples.with_columns(process=pl.lit(process, pl.Int32))
    if moved is None or samples.is_empty():
        return samples
    return samples.with_columns(_moved(samples[name], moved) for name in ("start_ns", "end_ns"))


def _native_reader() -> NativeReader:
    from tracelens.readers.native.reader import NativeReader

    return NativeReader()


def _moved(column: pl.Series, moved: Moved) -> pl.Series:
    common = pl.Series(column.name, moved.apply(column.fill_null(0).to_numpy()))
    return pl.select(pl.when(column.is_not_null()).then(common)).to_series().alias(column.name)


def _join(traces: Sequence[Trace]) -> Trace:
    """Join raw traces of disjoint ranks, so that collectives between them tie their clocks.

    Processes are numbered anew, in the order of `traces`.

    Raises:
        InvalidArgument: a rank was recorded in two of them.
        UnusableInput: they are of different jobs.
    """
    if len(traces) == 1:
        return traces[0]
    _check_ranks(traces)
    if all(trace.recognition for trace in traces):
        check_one_job(one for trace in traces for one in _files_of_ranks(trace))
    offsets = [sum(t.processes.height for t in traces[:place]) for place in range(len(traces))]
    numbered: dict[str, Any] = {
        name: pl.concat([_after(getattr(t, name), n) for t, n in zip(traces, offsets, strict=True)])
        for name in OF_PROCESSES
    }
    dropped: dict[str, int] = {}
    for trace in traces:
        for reason, count in trace.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    parts = [
        (process + n, Numbered(part, process + n), found)
        for t, n in zip(traces, offsets, strict=True)
        for process, part in t.source.parts.items()
        for found in [t.outlines[process] if t.outlines else None]
    ]
    whole = all(found is not None for *_, found in parts)
    kept = {
        process + n: found
        for t, n in zip(traces, offsets, strict=True)
        for process, found in t.source.kept.items()
    }
    return Trace.from_source(
        Source({process: part for process, part, _ in parts}, kept=kept),
        outlines={process: found for process, _, found in parts} if whole else None,
        communicators=_joined_communicators(traces),
        recognition=join_recognitions([trace.recognition for trace in traces]),
        notes=tuple(dict.fromkeys(note for trace in traces for note in trace.notes)),
        dropped=dropped,
        **numbered,
    )


def _after(table: pl.DataFrame, offset: int) -> pl.DataFrame:
    return table.with_columns((pl.col("process") + offset).cast(pl.Int32))


def _check_ranks(traces: Sequence[Trace]) -> None:
    """Refuse a rank that is in two of them: which is meant cannot be known."""
    silent = [
        trace.processes["file"][0]
        for trace in traces
        if trace.recognition and RANK_UNKNOWN in trace.recognition.gaps
    ]
    if silent:
        verb = "does" if len(silent) == 1 else "do"
        raise UnusableInput(
            f"Of {fmt.count(len(traces), 'input')}, {fmt.series(silent[:_SHOWN])} {verb} not say the "
            f"rank: say it with --rank-of {silent[0]}=0, once for each."
        )
    owner: dict[tuple[str, int], Path | None] = {}
    for trace in traces:
        for role, rank in trace.processes.filter("main").select("role", "rank").iter_rows():
            if (role, rank) in owner:
                names = [shown_name(path or "") for path in (owner[role, rank], trace.path)]
                owned = f"{'rank' if role == 'worker' else 'parameter server'} {rank}"
                raise InvalidArgument(
                    f"Both '{names[0]}' and '{names[1]}' hold {owned}: only folders of one run with "
                    "different ranks can be joined; convert them one by one."
                )
            owner[role, rank] = trace.path


def _files_of_ranks(trace: Trace) -> Iterator[RankFile]:
    """Yield the file of each rank; a world no larger than its last rank is not known to be the job's."""
    last = trace.processes["rank"].max()
    columns = trace.processes.select("file", "rank", "world", "first_ns", "last_ns")
    for file, rank, world, first_ns, last_ns in columns.rows():
        is_stated = isinstance(last, int) and world > last + 1
        yield RankFile(file, rank, world if is_stated else 0, first_ns, last_ns)


def _joined_communicators(traces: Sequence[Trace]) -> pl.DataFrame:
    """Return each communicator once, with all ranks that any of the traces names."""
    every = pl.concat([trace.communicators for trace in traces])
    merged = every.explode("ranks").group_by("communicator", maintain_order=True)
    table = merged.agg(pl.col("name").first(), pl.col("ranks").drop_nulls().unique().sort())
    return table.select(*every.columns).cast(every.schema)


def _unknown(place: Path, inner: Sequence[Path], tables: Sequence[Path]) -> NotATrace | EmptyTrace:
    if place.is_file():
        return NotATrace(
            f"'{place}' is not a trace that TraceLens reads: expected a trace folder, an .arrow "
            "file of one, a profile by torch.profiler (.json, .json.gz), or a table of spans (.arrow, "
            ".feather, .parquet, .csv)."
        )
    if inner:
        advice = f"it holds {len(inner)} trace folders, open one of them, for example '{inner[-1]}'"
    elif tables:
        one = f"name one of them, for example '{tables[0]}', or all that are of one run"
        advice = f"it holds {len(tables)} tables of spans, {one}"
    elif outside := _link_out_of(place):
        advice = f"'{shown_name(outside.name)}' is a link out of it: put the file itself there"
    else:
        advice = "record into it with 'tracelens record --out DIR -- COMMAND'"
    return EmptyTrace(
        f"'{place}' holds no recorded process (expected files such as worker-00000-4242.arrow): "
        f"{advice}."
    )


def _link_out_of(place: Path) -> Path | None:
    """Return the first link of a folder that leads out of it, which is not followed."""
    entries = sorted(place.iterdir()) if place.is_dir() else []
    files = (entry for entry in entries if entry.is_file())
    return next((file for file in files if not inside([file], place)), None)


def _holds_recordings(entry: Path) -> bool:
    return entry.is_dir() and any(reader.sniff(entry) for reader in READERS)

"""From a trace folder, or a table of spans, to a `Trace` that analyses can use."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens import containment, plugins
from tracelens.align import DEFAULT_TRANSFORMS, devices, selection
from tracelens.align.clocks.common import to_common_series
from tracelens.errors import (
    EmptyTrace,
    InvalidArgument,
    NotATrace,
    TraceLensError,
    TraceNotFound,
    UnusableInput,
)
from tracelens.memory import free_unused_memory
from tracelens.model import fmt
from tracelens.model.choice import EVERYTHING, Choice
from tracelens.model.events import Renumbered, Source
from tracelens.model.fmt import shown_name
from tracelens.model.recognition import join_recognitions
from tracelens.model.trace import OF_PROCESSES, Trace
from tracelens.readers import READERS
from tracelens.readers.base import Reading
from tracelens.readers.files import RANK_UNKNOWN
from tracelens.readers.jobs import RankFile, check_one_job
from tracelens.readers.links import select_files_inside
from tracelens.remote.address import is_remote

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from tracelens.model.clock_map import ClockMap
    from tracelens.readers.base import Progress, Reader
    from tracelens.readers.native.reader import NativeReader
    from tracelens.readers.table import TableReader

MAX_FILES_NAMED: Final = 3
SHARE_OF_MEMORY_FOR_EVENTS: Final = 4  # one of so many parts of it keeps events
MAX_FOLDER_DEPTH: Final = 3  # folders below one that is given: experiment, day, run


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
        rank_of: For profiles and other trace events in JSON: the rank of a file that does not say
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
    source = fetch_if_remote(path, progress)
    # How a run is read, as the command line says it.
    options = [
        *(["--one-clock"] if one_clock else []),
        *(f"--map={theirs}={ours}" for theirs, ours in (map or {}).items()),
        *(f"--rank-of={file}={rank}" for file, rank in (rank_of or {}).items()),
    ]
    with containment.leaving_out(containment.try_files([source], options) if contained else {}):
        return open_joined(
            [source],
            progress,
            map=map,
            one_clock=one_clock,
            rank_of=rank_of,
            executor=executor,
            memory=memory,
            choice=Choice.parse(ranks, steps, time),
        )


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
    sources, file_ranks = _select_sources(
        [fetch_if_remote(path, progress) for path in paths], choice
    )
    # Workers elsewhere read events again, which takes less than sending them to and fro.
    max_kept_bytes = 0 if executor else memory // SHARE_OF_MEMORY_FOR_EVENTS // len(sources)
    reading = Reading(progress, executor, max_kept_bytes, choice, rank_of or {})
    table_reader = _make_table_reader(map, one_clock=one_clock)
    tables_only = bool(map) or one_clock
    read = partial(_read_path, reading=reading, table_reader=table_reader, tables_only=tables_only)
    # What was read has no name here: alignment replaces the largest of it, which is then freed.
    return prepare(
        selection.select_ranks(_join_traces([read(path) for path in sources]), choice, file_ranks)
    )


def _select_sources(paths: Sequence[Path], choice: Choice) -> tuple[Sequence[Path], set[int]]:
    """Return the paths that may hold something of a choice, and the ranks that name their files.

    Raises:
        InvalidArgument: none of them is named after a rank that is wanted.
    """
    if choice.rank_ranges is None:
        return paths, set()
    from tracelens.readers.native.recordings import (
        list_recordings,
        parse_ranks_of_names,
        select_recordings,
    )

    files_of = {path: list_recordings(path) for path in paths}
    file_ranks = parse_ranks_of_names(file for files in files_of.values() for file in files)
    if file_ranks:
        selection.check_ranks(choice, file_ranks)
    chosen_paths = [
        path for path, files in files_of.items() if not files or select_recordings(files, choice)
    ]
    return chosen_paths, file_ranks


def fetch_if_remote(path: str | os.PathLike[str], progress: Progress | None = None) -> Path:
    """Return a path; for an address that of a fresh copy, fetched if needed.

    Raises:
        TraceLensError: the address has no file, or it cannot be fetched.
    """
    if not is_remote(path):
        return Path(path)
    from tracelens.remote.mirror import fetch_copy

    return fetch_copy(path, progress)


def _read_path(
    path: Path, reading: Reading, table_reader: TableReader, *, tables_only: bool
) -> Trace:
    """Read a trace or a table; as a table if it is `tables_only`, else with the reader that fits."""
    if not path.exists():
        raise TraceNotFound(
            f"There is no '{path}': expected a trace folder or a table of spans; "
            "record one with 'tracelens record -- COMMAND'."
        )
    containment.announce_run(path)
    with containment.limit_cpu_meanwhile():
        if tables_only:
            return _read_table(path, reading, table_reader)
        return _read_recognised(path, reading, table_reader)


def _read_table(path: Path, reading: Reading, table_reader: TableReader) -> Trace:
    table_files = _list_tables(path, table_reader)
    if not table_files:
        raise InvalidArgument(
            f"'{path}' is no table of spans, so there is nothing for --map or --one-clock."
        )
    if len(table_files) > 1:
        raise _explain_unreadable(path, runs=[], tables=table_files)
    return table_reader.read(table_files[0], reading)


def _read_recognised(path: Path, reading: Reading, table_reader: TableReader) -> Trace:
    """Read with the first reader that recognises a path; a folder may hold a single run or table."""
    for reader in READERS:
        if reader.sniff(path):
            return reader.read(path, reading)
    trace = _read_by_plugin(path, reading)
    if trace is not None:
        return trace
    runs = list_runs(path) if path.is_dir() else []
    if len(runs) == 1:  # as the folder that a profiler writes to holds one a profile
        return _read_recognised(runs[0], reading, table_reader)
    table_files = [] if runs else _list_tables(path, table_reader)
    if len(table_files) == 1:
        return table_reader.read(table_files[0], reading)
    raise _explain_unreadable(path, runs, table_files)


def _list_tables(path: Path, table_reader: TableReader) -> list[Path]:
    """Return a file if it is a table, or the tables of a folder."""
    entries = sorted(path.iterdir()) if path.is_dir() else [path]
    files = select_files_inside(
        (entry for entry in entries if entry == path or entry.name[0] != "."), path
    )
    return [file for file in files if table_reader.sniff(file)]


def _read_by_plugin(path: Path, reading: Reading) -> Trace | None:
    """Read with the first plugin that recognises the path; None where none of them does.

    Raises:
        UnusableInput: the one that does fails, or it would end this process.
    """
    reason = containment.find_reason_left_out(path)
    if reason:
        raise UnusableInput(f"'{path}' is not read: {reason}.")
    for plugin in plugins.list_plugins(plugins.READERS):
        loaded = plugin.load()
        try:
            reader: Reader = loaded() if isinstance(loaded, type) else loaded
            if reader.sniff(path):
                return reader.read(path, reading)
        except TraceLensError:
            raise
        except Exception as error:  # code of others may raise anything
            reason = f"{type(error).__name__}: {error}".rstrip(".")
            raise UnusableInput(
                f"The reader '{plugin.name}' of {plugin.distribution} failed with '{path}' ({reason}): "
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
    return prepare(_make_table_reader(map, one_clock=one_clock).take(table))


def _make_table_reader(map: Mapping[str, str] | None, *, one_clock: bool) -> TableReader:  # noqa: A002
    from tracelens.readers.table import TableReader
    from tracelens.readers.table.naming import Renaming

    return TableReader(Renaming.parse(map or {}), one_clock)


def prepare(trace: Trace) -> Trace:
    """Apply the default transforms: one clock, steps, matched collectives."""
    for transform in DEFAULT_TRANSFORMS:
        trace = transform(trace)
        free_unused_memory()
    return trace


def list_runs(path: Path) -> list[Path]:
    """List the runs at a path: itself, or the trace folders in it, at most three folders deep."""
    if not path.is_dir() or _holds_recordings(path):
        return [path]
    entries = sorted(path.iterdir())
    return [run for entry in entries for run in _list_runs_below(entry, MAX_FOLDER_DEPTH)]


def _list_runs_below(entry: Path, depth: int) -> list[Path]:
    """List the runs at an entry and at most `depth` - 1 folders below; links are not followed."""
    if entry.name.startswith(".") or entry.is_symlink() or not entry.is_dir():
        return []
    try:
        if _holds_recordings(entry):
            return [entry]
        children = sorted(entry.iterdir()) if depth > 1 else []
    except OSError:  # not for us to look into, or gone since it was listed
        return []
    return [run for child in children for run in _list_runs_below(child, depth - 1)]


def read_events_of_process(path: Path, process: int, clock_map: ClockMap | None) -> pl.DataFrame:
    """Read the events of one process from its file, as they are in the whole trace.

    Args:
        path: The file of that process.
        process: Its row in the whole trace's processes.
        clock_map: How its times came onto the common clock there; None = not at all.

    Raises:
        UnusableInput: the file cannot be read (any more).
    """
    events = devices.place_on_host(_native_reader().read(path)).events.collect()
    return _renumber_rows(events, process, clock_map)


def read_samples_of_process(path: Path, process: int, clock_map: ClockMap | None) -> pl.DataFrame:
    """Read the samples of one process's stacks, as they are in the whole trace; arguments as above.

    Raises:
        UnusableInput: the file cannot be read (any more).
    """
    return _renumber_rows(_native_reader().read(path).samples, process, clock_map)


def _renumber_rows(rows: pl.DataFrame, process: int, clock_map: ClockMap | None) -> pl.DataFrame:
    """Return events or samples of one process with its number and times in the whole trace."""
    rows = rows.with_columns(process=pl.lit(process, pl.Int32))
    if clock_map is None:
        return rows
    times = [name for name in ("start_ns", "end_ns", "device_start_ns") if name in rows.columns]
    return rows.with_columns(
        to_common_series(clock_map, rows[name]) for name in times if rows[name].count()
    )


def _native_reader() -> NativeReader:
    from tracelens.readers.native.reader import NativeReader

    return NativeReader()


def _join_traces(traces: Sequence[Trace]) -> Trace:
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
        check_one_job(file for trace in traces for file in _list_rank_files(trace))
    # The first number of each trace's processes.
    offsets = [0, *accumulate(trace.processes.height for trace in traces[:-1])]
    numbered = list(zip(traces, offsets, strict=True))
    tables: dict[str, Any] = {
        name: pl.concat([_add_offset(getattr(trace, name), offset) for trace, offset in numbered])
        for name in OF_PROCESSES
    }
    dropped: Counter[str] = Counter()
    for trace in traces:
        dropped.update(trace.dropped)
    outlines = {
        process + offset: (trace.outlines or {}).get(process)
        for trace, offset in numbered
        for process in trace.source.part_by_process
    }
    is_outlined = all(outline is not None for outline in outlines.values())
    return Trace.from_source(
        Source(
            {
                process + offset: Renumbered(part, process + offset)
                for trace, offset in numbered
                for process, part in trace.source.part_by_process.items()
            },
            packed_by_process={
                process + offset: columns
                for trace, offset in numbered
                for process, columns in trace.source.packed_by_process.items()
            },
        ),
        outlines=outlines if is_outlined else None,
        communicators=_join_communicators(traces),
        recognition=join_recognitions([trace.recognition for trace in traces]),
        notes=tuple(dict.fromkeys(note for trace in traces for note in trace.notes)),
        dropped=dict(dropped),
        **tables,
    )


def _add_offset(table: pl.DataFrame, offset: int) -> pl.DataFrame:
    return table.with_columns((pl.col("process") + offset).cast(pl.Int32))


def _check_ranks(traces: Sequence[Trace]) -> None:
    """Refuse traces that have the same rank, or files that do not say theirs."""
    silent_files = [
        trace.processes["file"][0]
        for trace in traces
        if trace.recognition and RANK_UNKNOWN in trace.recognition.gaps
    ]
    if silent_files:
        verb = "does" if len(silent_files) == 1 else "do"
        raise UnusableInput(
            f"Of {fmt.count(len(traces), 'input')}, {fmt.join_words(silent_files[:MAX_FILES_NAMED])} "
            f"{verb} not say the rank: say it with --rank-of {silent_files[0]}=0, once for each."
        )
    path_by_rank: dict[tuple[str, int], Path | None] = {}
    for trace in traces:
        for role, rank in trace.processes.filter("main").select("role", "rank").iter_rows():
            if (role, rank) in path_by_rank:
                path_text, other_path_text = (
                    shown_name(path or "") for path in (path_by_rank[role, rank], trace.path)
                )
                rank_text = f"{'rank' if role == 'worker' else 'parameter server'} {rank}"
                raise InvalidArgument(
                    f"Both '{path_text}' and '{other_path_text}' hold {rank_text}: only folders of "
                    "one run with different ranks can be joined; convert them one by one."
                )
            path_by_rank[role, rank] = trace.path


def _list_rank_files(trace: Trace) -> Iterator[RankFile]:
    """Yield the file of each rank; its world is 0, unknown, where that may be the last rank's."""
    last_rank = trace.processes["rank"].max()
    columns = trace.processes.select("file", "rank", "world", "first_ns", "last_ns")
    for file, rank, world, first_ns, last_ns in columns.rows():
        is_stated = isinstance(last_rank, int) and world > last_rank + 1
        yield RankFile(file, rank, world if is_stated else 0, first_ns, last_ns)


def _join_communicators(traces: Sequence[Trace]) -> pl.DataFrame:
    """Return each communicator once, with all ranks that any of the traces names."""
    rows = pl.concat([trace.communicators for trace in traces])
    by_uid = rows.explode("ranks").group_by("communicator", maintain_order=True)
    merged = by_uid.agg(pl.col("name").first(), pl.col("ranks").drop_nulls().unique().sort())
    return merged.select(*rows.columns).cast(rows.schema)


def _explain_unreadable(
    path: Path, runs: Sequence[Path], tables: Sequence[Path]
) -> NotATrace | EmptyTrace:
    """Return the error for a path with several runs or tables, or with none."""
    if path.is_file():
        return NotATrace(
            f"'{path}' is not a trace that TraceLens reads: expected a trace folder, an .arrow "
            "file of one, a profile by torch.profiler (.json, .json.gz), or a table of spans (.arrow, "
            ".feather, .parquet, .csv)."
        )
    if runs:
        advice = f"it holds {len(runs)} trace folders, open one of them, for example '{runs[-1]}'"
    elif tables:
        example = f"name one of them, for example '{tables[0]}', or all that are of one run"
        advice = f"it holds {len(tables)} tables of spans, {example}"
    elif link := _find_link_out_of(path):
        advice = f"'{shown_name(link.name)}' is a link out of it: put the file itself there"
    else:
        advice = "record into it with 'tracelens record --out DIR -- COMMAND'"
    return EmptyTrace(
        f"'{path}' holds no recorded process (expected files such as worker-00000-4242.arrow): "
        f"{advice}."
    )


def _find_link_out_of(path: Path) -> Path | None:
    """Return the first link of a folder that leads out of it, which is not followed."""
    entries = sorted(path.iterdir()) if path.is_dir() else []
    files = (entry for entry in entries if entry.is_file())
    return next((file for file in files if not select_files_inside([file], path)), None)


def _holds_recordings(entry: Path) -> bool:
    return entry.is_dir() and any(reader.sniff(entry) for reader in READERS)

"""Reads TraceLens' own folders: one Arrow file a process, and the segments of killed or running ones.

And the samples of call stacks in the same folder.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

import polars as pl
import pyarrow as pa

from tracelens.containment import end_out_of_memory
from tracelens.conversion.arrow_file import read_samples
from tracelens.distil.outline import KEPT, OUTLINED, make_outline
from tracelens.errors import NotATrace, TraceNotFound
from tracelens.memory import BoundedCache
from tracelens.model.fmt import shown_name
from tracelens.model.packed_columns import PackedColumns
from tracelens.model.trace import SAMPLE_COLUMNS, Note
from tracelens.parallel import choose_batch_size, map_in_order, split_into_batches
from tracelens.readers.base import SIMPLY, Reading
from tracelens.readers.links import check_inside, check_no_links
from tracelens.readers.native.arrow_file import Recording
from tracelens.readers.native.assemble import Part, assemble
from tracelens.readers.native.plain_columns import read_usable, select_usable
from tracelens.readers.native.recordings import (
    DAMAGE,
    UNFINISHED,
    build_no_events_error,
    build_refusal,
    build_vanished_error,
    describe_left_out,
    list_recordings,
    select_recordings,
)
from tracelens.readers.native.soundness import ALWAYS_READ
from tracelens.schema.arrow import SAMPLE_SCHEMA
from tracelens.schema.gate import admit
from tracelens.schema.life import read_journals
from tracelens.schema.ownership import belongs_to
from tracelens.schema.rules import LATEST_NS, LONGEST_NS
from tracelens.schema.vocabulary import SAMPLES_FOLDER, SEGMENTS_SUFFIX, TRACE_SUFFIX, parse_stem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.native.plain_columns import UsableEvents
    from tracelens.schema.side import SideTables

    _Problem: TypeAlias = tuple[Path, Exception]


MAX_FILES_MEASURED: Final = 64  # files, which tell how large the others are [policy]
MAX_BYTES_OF_SMALL_FILE: Final = 512 << 10  # bytes: several files this small are one task [policy]
_OUTLINED: Final = frozenset((*OUTLINED, *ALWAYS_READ))
_DAMAGE_OF_FRAMES: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
_DAMAGE_OF_SAMPLES: Final = (
    *(NotATrace, OSError, ValueError, TypeError, LookupError, pa.ArrowException),
    *_DAMAGE_OF_FRAMES,
)


class NativeReader:
    """The format described in docs/format.md."""

    name = "TraceLens trace folder"

    def sniff(self, path: Path) -> bool:
        """Return True if there is at least one file or folder named like ours."""
        return bool(list_recordings(path))

    def read(self, path: Path, options: Reading = SIMPLY) -> Trace:
        """Read every process that is wanted; one that cannot be read becomes a note."""
        files = select_recordings(list_recordings(path), options.choice)
        root = None if path in files else path  # a file that was named itself may be a link
        recorded_parts, problems = _read_all(files, root, options)
        if any(isinstance(error, TraceNotFound) for _, error in problems):  # segments became files
            files_now = select_recordings(list_recordings(path), options.choice)
            new_files = [file for file in files_now if file not in files]
            more_parts, more_problems = _read_all(new_files, root, options)
            recorded_parts += more_parts
            problems = [*_drop_converted(problems, new_files), *more_problems]
        if not recorded_parts:
            raise build_refusal(path, problems) if problems else build_vanished_error(path)
        notes = (
            Note(shown_name(file.name), describe_left_out(file, error)) for file, error in problems
        )
        folder = path.parent if path.is_file() else path
        trace = _add_samples(assemble(recorded_parts, notes), folder, recorded_parts)
        if not trace.processes["events"].sum():
            raise build_no_events_error(path, [part.side_tables for part in recorded_parts])
        is_running = any(part.is_running for part in recorded_parts)
        return trace.with_(
            path=path,
            journal=tuple(read_journals(folder)),
            read_at_ns=time.time_ns() if is_running else None,
        )


def _read_all(
    files: Sequence[Path], root: Path | None, options: Reading
) -> tuple[list[Part], list[_Problem]]:
    """Read files below `root` (None: files that were named); return also those that cannot be read.

    It keeps their events up to `kept_bytes` in sum; events shared with the previous file are free.
    """
    recorded_parts: list[Part] = []
    problems: list[_Problem] = []
    free_bytes = options.kept_bytes
    are_small = _mean_bytes(files[:MAX_FILES_MEASURED]) < MAX_BYTES_OF_SMALL_FILE
    groups = split_into_batches(
        files, choose_batch_size(len(files), options.executor) if are_small else 1
    )
    tasks = ((group, free_bytes > 0) for group in groups)  # files, and whether to keep their events
    read_group = partial(_try_group, trace=root, cache=BoundedCache())
    results = chain.from_iterable(
        map_in_order(read_group, tasks, options.executor, brief=are_small)
    )
    for done_count, (file, result) in enumerate(zip(files, results, strict=True), 1):
        if isinstance(result, Part):
            neighbour = recorded_parts[-1] if recorded_parts else None
            kept_part, free_bytes = result.fit_into(free_bytes, neighbour)
            recorded_parts.append(kept_part)
        else:
            problems.append((file, result))
        if options.progress:
            options.progress(done_count, len(files))
    return recorded_parts, problems


def _drop_converted(problems: list[_Problem], new_files: list[Path]) -> list[_Problem]:
    """Leave out problems of segments that became one of `new_files` while they were being read."""
    stems = (parse_stem(file.name) for file in new_files)
    converted_processes = {(role, pid) for role, _, pid in filter(None, stems)}

    def is_converted(path: Path) -> bool:
        stem = parse_stem(path.stem)
        if stem is None:
            return False
        role, _, pid = stem
        return (role, pid) in converted_processes

    return [
        (path, error)
        for path, error in problems
        if not (isinstance(error, TraceNotFound) and is_converted(path))
    ]


def _mean_bytes(files: Sequence[Path]) -> float:
    """Return the mean size of some files; files that are gone have none."""
    sizes = [0]
    for file in files:
        with suppress(OSError):
            sizes.append(file.stat().st_size)
    return sum(sizes) / len(sizes)


def _try_group(
    task: tuple[Sequence[Path], bool], trace: Path | None, cache: BoundedCache
) -> list[Part | Exception]:
    """Read the files of a task, in the folder `trace`; keep their events in memory, if the task says so.

    Equal values of parts that follow each other are shared, so that they are sent once.
    """
    files, keep_events = task
    results: list[Part | Exception] = []
    previous_part = None
    for path in files:
        result = _try_one(path, trace, cache, keep_events=keep_events)
        if isinstance(result, Part):
            result = previous_part = result.share_with(previous_part)
        results.append(result)
    return results


def _try_one(
    path: Path, trace: Path | None, cache: BoundedCache, *, keep_events: bool
) -> Part | Exception:
    """Read one file of the folder `trace`; return the error if that fails.

    Its events stay in memory only if `keep_events`.
    """
    try:
        if trace is not None:
            check_inside(path, trace)
        if path.name.endswith(UNFINISHED):
            return _read_segments(path, cache)
        if not path.is_file():
            raise NotATrace("it is not a file")
        events = read_usable(path, _OUTLINED, cache)
        part = _outlined_part(path, events, cache)
        kept = PackedColumns.from_columns(events.columns, KEPT) if keep_events else None
        return replace(part, kept_columns=kept)
    except (*DAMAGE, *_DAMAGE_OF_FRAMES) as error:
        if isinstance(error, MemoryError):
            end_out_of_memory()
        return error


def _outlined_part(path: Path, events: UsableEvents, cache: BoundedCache) -> Part:
    in_flight_threads = [row.index for row in events.side_tables.threads if row.in_flight]
    return Part(
        file_name=shown_name(path.name),
        side_tables=events.side_tables,
        outline=make_outline(events.columns, in_flight_threads, cache),
        path=path,
        lost_by_reason=events.lost_by_reason,
        is_cut=events.is_cut,
    )


def _read_segments(path: Path, cache: BoundedCache) -> Part:
    """Decode the segments of a killed or running process; convert them if the process is surely gone.

    Whether a process on another machine still runs cannot be known here, so its segments stay; and so do
    those that were copied or unpacked here, or belong to another user. `cache` shares equal arrays of
    ranks.
    """
    from tracelens.conversion import segments

    admit(path)  # raises where an earlier reading of this path ended the process
    folder = segments.find_folder(path)
    is_of_trace = belongs_to(folder, path.parent)
    if folder != path and not is_of_trace:
        raise NotATrace(
            f"it names {folder}, which does not say that it belongs to this trace: to read that, name "
            "it itself"
        )
    check_no_links(folder)
    table, side = segments.decode(path)
    file_name = path.with_suffix(SEGMENTS_SUFFIX).name
    is_same_host = side.process.host == socket.gethostname()
    is_running = is_same_host and segments.is_live(path)
    if is_of_trace and is_same_host and not is_running and os.access(path.parent, os.W_OK):
        with suppress(OSError):  # a full disk, or another reader converts it now: we have it
            file_name = segments.convert(path).name
    events = select_usable(Recording(table, side))
    return replace(
        _outlined_part(path.with_name(file_name), events, cache), table=table, is_running=is_running
    )


def _add_samples(trace: Trace, folder: Path, parts: list[Part]) -> Trace:
    """Return the trace with the samples of its processes; damaged ones become notes."""
    process_by_name = {
        file.removesuffix(TRACE_SUFFIX): process
        for process, file in trace.processes.select("process", "file").iter_rows()
    }
    side_by_name = {part.file_name.removesuffix(TRACE_SUFFIX): part.side_tables for part in parts}
    tables: list[pl.DataFrame] = []
    notes: list[Note] = []
    for file in sorted((folder / SAMPLES_FOLDER).glob(f"*{TRACE_SUFFIX}")):
        file_name = shown_name(file.name)
        name = file_name.removesuffix(TRACE_SUFFIX)
        if name not in process_by_name:
            continue
        label = f"'{SAMPLES_FOLDER}/{file_name}'"
        try:
            check_inside(file, folder)
            samples_of_process = _read_samples(file, process_by_name[name], side_by_name[name])
        except _DAMAGE_OF_SAMPLES:
            sentence = f"{label} is damaged: its samples of stacks are left out."
            notes.append(Note(file_name, sentence))
            continue
        tables.append(samples_of_process.filter(_is_valid_sample()))
        unusable_count = samples_of_process.height - tables[-1].height
        if unusable_count:
            sentence = f"{label} lost samples of stacks: {unusable_count} for unusable values."
            notes.append(Note(file_name, sentence, "dropped"))
    if not tables and not notes:
        return trace
    samples = pl.concat([pl.DataFrame(schema=SAMPLE_COLUMNS), *tables])
    return trace.with_(samples=samples, notes=(*trace.notes, *notes))


def _read_samples(file: Path, process: int, side: SideTables) -> pl.DataFrame:
    """Read the samples of a process; threads of other processes have no number."""
    samples = pl.DataFrame(pa.Table.from_batches(read_samples(file), SAMPLE_SCHEMA))
    thread_by_id = {row.native_id: row.index for row in side.threads if row.native_id}
    thread = pl.col("thread").replace_strict(thread_by_id, default=None, return_dtype=pl.UInt16)
    return samples.select(
        pl.lit(process, pl.Int32).alias("process"),
        pl.when(pl.col("pid") == side.process.pid).then(thread).alias("thread"),
        pl.col("pid", "thread_name", "start_ns", "end_ns", "frames"),
    ).cast(pl.Schema(SAMPLE_COLUMNS))


def _is_valid_sample() -> pl.Expr:
    """Return True for rows with times in order and in range, and frames with names."""
    start, end = pl.col("start_ns"), pl.col("end_ns")
    is_complete = pl.col("pid", "thread_name", "frames").is_not_null()
    has_names = pl.col("frames").list.eval(pl.element().is_null()).list.any().not_()
    is_timed = start.is_between(0, LATEST_NS) & (end - start).is_between(0, LONGEST_NS)
    return pl.all_horizontal(is_complete, has_names, is_timed).fill_null(value=False)

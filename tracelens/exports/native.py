"""A trace folder of TraceLens itself (docs/format.md), with all times on the common clock.

Side tables are those of the recording, as far as they hold for the part that is written: processes on
the common clock share one, readings that tied clocks together are left out, and how sure that was stays
as a reading of method `common`. Readings of a device's clock stay as windows around none, for its times
are the host's now.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from tracelens.conversion.segments import find_folder, read_side_tables
from tracelens.errors import NotATrace, TraceLensError
from tracelens.exports.output import make_new_folder
from tracelens.model.fmt import shown_name
from tracelens.readers.links import check_inside
from tracelens.readers.native.recorded import write_process
from tracelens.schema.arrow import SAMPLE_RATE_KEY, SAMPLE_SCHEMA, map_file
from tracelens.schema.gate import open_regular
from tracelens.schema.side import ClockReading, Communicator, Process, SideTables, Thread
from tracelens.schema.vocabulary import (
    CHOSEN_LOSSES,
    ELSEWHERE_SUFFIX,
    SAMPLES_FOLDER,
    SEGMENTS_SUFFIX,
    SUMMED_UP,
    TRACE_SUFFIX,
    make_stem,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracelens.exports.content import Content, Saved

SUFFIX: Final = ".converted"
OPEN_WITH: Final = "tracelens analyze {place}"
_LIVE: Final = (SEGMENTS_SUFFIX, ELSEWHERE_SUFFIX)
_BEFORE: Final = "events lost before the conversion"
_MORE_PIDS: Final = 1000  # a pid that comes again gets three digits more


def save(content: Content, target: Path) -> Saved:
    """Write a trace folder, a process at a time.

    Raises:
        InvalidArgument: there is something at `target`, it cannot be written, or nothing is chosen.
    """
    recordings = _list_recordings(content)
    event_count = 0
    used_names: set[str] = set()
    with make_new_folder(target) as folder:
        for owner in content.processes.iter_rows(named=True):
            process, recording = owner["process"], recordings.get(owner["file"])
            events = content.read_events(process)
            if events.is_empty() and not owner["main"]:
                continue
            name = _make_name(owner, used_names)
            side = _make_side(content, owner, _read_side(recording))
            write_process(folder / name, events, side)
            _save_samples(content, process, side, folder / SAMPLES_FOLDER / name, recording)
            event_count += events.height
        if not event_count:
            raise content.make_empty_error()
    return content.describe_saved(event_count, target)


def _make_name(owner: Mapping[str, Any], used_names: set[str]) -> str:
    """Return a file name for a process that is not among `used_names` yet, and add it there."""
    pid = owner["pid"] or owner["process"] + 1
    numbers = [pid, *(pid * _MORE_PIDS + suffix for suffix in range(_MORE_PIDS))]
    names = (make_stem(owner["role"], owner["rank"], number) + TRACE_SUFFIX for number in numbers)
    name = next(name for name in names if name not in used_names)
    used_names.add(name)
    return name


def _list_recordings(content: Content) -> dict[str, Path]:
    """Return the files from which processes were read, by the names that a trace shows."""
    files: dict[str, Path] = {}
    for source in content.source_paths:
        entries = source.iterdir() if source.is_dir() else [source]
        files |= {shown_name(entry.name): entry for entry in entries}
    return files


def _read_side(file: Path | None) -> SideTables | None:
    """Return a process's side tables as its file has them; None for tables, and what is gone."""
    if file is None:
        return None
    try:
        if file.name.endswith(_LIVE):
            return read_side_tables(find_folder(file))
        with pa.ipc.open_file(map_file(file)) as reader:
            return SideTables.from_metadata(reader.schema.metadata)
    except (TraceLensError, OSError, ValueError, pa.ArrowException):
        return None


def _make_side(
    content: Content, owner: Mapping[str, Any], recorded: SideTables | None
) -> SideTables:
    """Return the side tables of process `owner` of the result; `recorded` are those of its file.

    Events that sums replace (`content.sum_counts_by_process`) are counted as dropped. Definitions are
    written with the events.
    """
    side = recorded or _rebuild_side(content, owner)
    dropped = {content.redact(reason): count for reason, count in side.dropped.items()}
    losses = (n for reason, n in side.dropped.items() if reason not in CHOSEN_LOSSES)
    lost_events = (owner["dropped"] or 0) - sum(losses)
    if lost_events > 0:  # what reading the file found unusable
        dropped[_BEFORE] = dropped.get(_BEFORE, 0) + lost_events
    replaced_count, _ = content.sum_counts_by_process.get(owner["process"], (0, 0))
    if replaced_count:
        dropped[SUMMED_UP] = replaced_count
    process = replace(
        side.process,
        host=owner["host"] or "",
        clock_domain=owner["clock_domain"],
        job=owner["job"] or "",
        versions={name: content.redact(str(text)) for name, text in side.process.versions.items()},
    )
    return replace(
        side,
        process=process,
        definitions=(),
        threads=tuple(replace(thread, name=content.redact(thread.name)) for thread in side.threads),
        communicators=tuple(
            replace(group, uid=content.redact(group.uid), name=content.redact(group.name))
            for group in side.communicators
        ),
        clocks=_find_readings(content, owner),
        dropped=dropped,
        complete=bool(owner["complete"]),
        kept=(),  # moments on a clock that is not this one any more
        sorted=True,
        notes=tuple(dict.fromkeys([*map(content.redact, side.notes), *content.notes])),
    )


def _rebuild_side(content: Content, owner: Mapping[str, Any]) -> SideTables:
    """Return side tables for a process whose file has none, such as that of a table."""
    threads = content.trace.threads.filter(pl.col("process") == owner["process"])
    communicators = content.trace.communicators.cast({"communicator": pl.String})
    return SideTables(
        process=Process(
            role=owner["role"],
            rank=owner["rank"],
            world=owner["world"] or 1,
            local_rank=owner["local_rank"] or 0,
            pid=owner["pid"] or owner["process"] + 1,
            parent_rank_pid=None if owner["main"] else 0,
            incarnation=owner["incarnation"] or 0,
            shard=owner["shard"],
            cores=owner["cores"],
            core_quota=owner["core_quota"],
        ),
        threads=tuple(
            Thread(number, name or "", native_id=number + 1, in_flight=in_flight, device=device)
            for number, name, in_flight, device in threads.select(
                "thread", "name", "in_flight", "device"
            ).iter_rows()
        ),
        communicators=tuple(
            Communicator(index, uid, name or "", list(ranks))
            for index, (uid, name, ranks) in enumerate(communicators.iter_rows())
        ),
    )


def _find_readings(content: Content, owner: Mapping[str, Any]) -> tuple[ClockReading, ...]:
    """Return the clock readings of a process, a row of `Content.processes`, on the common clock.

    The first states how unsure the common clock is, if it is.
    """
    trace, of_process = content.trace, pl.col("process") == owner["process"]
    domain = trace.processes.filter(of_process)["clock_domain"][0]
    hosts = [host for host in trace.alignment.hosts if host.clock_domain == domain]
    window_ns = 2 * max((host.uncertainty_ns or 0 for host in hosts), default=0)
    readings = [ClockReading("common", owner["first_ns"] or 0, window_ns)] if window_ns else []
    tied_devices = trace.device_clocks.filter(of_process)["device"]
    is_kept = (pl.col("method") == "local") | pl.col("device").is_in(tied_devices.implode())
    for row in trace.clocks.filter(of_process, is_kept).drop("process").iter_rows(named=True):
        common_ns = _to_common_ns(content, owner["process"], row["monotonic_ns"])
        if common_ns >= 0:
            offset_ns = 0 if row["method"] == "device" else None
            row |= {"monotonic_ns": common_ns, "offset_ns": offset_ns}
            readings.append(ClockReading(**row))
    return tuple(readings)


def _to_common_ns(content: Content, process: int, at_ns: int) -> int:
    """Return a time of a process on the common clock."""
    clock_map = content.trace.clock_maps.get(process)
    return int(clock_map.to_common_ns(np.array([at_ns]))[0]) if clock_map else at_ns


def _save_samples(
    content: Content, process: int, side: SideTables, file: Path, recording: Path | None
) -> None:
    """Write the stack samples of one process, if any, with the sampling rate of `recording`."""
    samples = content.read_samples(process)
    if samples.is_empty():
        return
    native_id_by_thread = {thread.index: thread.native_id for thread in side.threads}
    sample_rows = samples.with_columns(
        thread=pl.col("thread")
        .cast(pl.Int64)
        .replace_strict(native_id_by_thread, default=0, return_dtype=pl.Int64)
    )
    arrays = [sample_rows[field.name].to_arrow().cast(field.type) for field in SAMPLE_SCHEMA]
    schema = SAMPLE_SCHEMA.with_metadata(_read_rate(recording))
    file.parent.mkdir(exist_ok=True)
    with pa.ipc.new_stream(str(file), schema) as stream:
        stream.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _read_rate(recording: Path | None) -> dict[bytes, bytes]:
    """Return the metadata entry with a recording's sampling rate; empty if it has none."""
    if recording is None:
        return {}
    samples_path = recording.parent / SAMPLES_FOLDER / recording.with_suffix(TRACE_SUFFIX).name
    try:
        check_inside(samples_path, recording.parent)
        with open_regular(samples_path, "samples") as file:
            rate_digits = (pa.ipc.open_stream(file).schema.metadata or {}).get(SAMPLE_RATE_KEY)
    except (NotATrace, OSError, ValueError, pa.ArrowException):
        return {}
    return {SAMPLE_RATE_KEY: rate_digits} if rate_digits and rate_digits.isdigit() else {}

"""From live segments to Arrow: at the end of a recording, or by whoever reads what a killed one left.

Segments may be read at any time, also while they are written: only records whose `definition` is set
count, and it is written last, so a record is whole or absent.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.errors import NotATrace, TraceNotFound
from tracelens.schema.arrow import write_events
from tracelens.schema.columns import SLOT, Records, pick, to_table
from tracelens.schema.elsewhere import find_segments
from tracelens.schema.host import clock_domain, host_name, process_started_ns
from tracelens.schema.last_steps import cut_to_last, stretches
from tracelens.schema.record import BYTE_ORDER, HEADER, MAGIC, RECORD_BYTES
from tracelens.schema.side import SideTables, check_version, from_lines
from tracelens.schema.vocabulary import (
    ELSEWHERE_SUFFIX,
    OUTDATED,
    SEGMENT_SUFFIX,
    SIDE_FILE,
    TRACE_SUFFIX,
    parse_stem,
    stem,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracelens.schema.side import Process

__all__ = ["convert", "decode", "is_live", "side_of"]

_UNUSED_HEADER: Final = bytes(RECORD_BYTES)
_START_SLACK_NS: Final = (
    2 * 10**9
)  # the kernel tells start times in ticks, relative to a whole second


def decode(place: Path) -> tuple[pa.Table, SideTables]:
    """Read a segments folder: events in `EVENT_SCHEMA` sorted by start, and the side tables.

    `place` is the folder, or the note that tells where on this host it is.

    Raises:
        TraceNotFound: there is no such folder, or no side file in it.
        NotATrace: a file is not what its name says.
        NewerVersion: it was written by a newer TraceLens.
    """
    folder = _folder(place)
    side = _read_side(folder)
    segments = _read_segments(folder)
    parts = _kept(segments, side)
    cut = _count(records for _, records in segments) - _count(parts)
    table, lost = to_table(np.concatenate([np.empty(0, SLOT), *parts]), side.definitions)
    if cut:
        lost[OUTDATED] = side.dropped.get(OUTDATED, 0) + cut
    return table, replace(side, dropped=side.dropped | lost)


def convert(place: Path) -> Path:
    """Turn a segments folder into an Arrow file, then remove the folder, and the note if there is one.

    The file comes beside `place`, which is as for `decode`. Two may do it at the same time; the file is
    whole as soon as it is there.

    Raises:
        UnusableInput: as `decode` does.
        OSError: the file cannot be written; the segments are left as they were.
    """
    done = place.with_suffix(TRACE_SUFFIX)
    try:
        events, side = decode(place)
    except (TraceNotFound, FileNotFoundError):
        if done.exists():
            return done  # somebody else was quicker
        raise
    place = _rename_for(side.process, place)
    folder = _folder(place)
    path = place.with_suffix(TRACE_SUFFIX)
    write_events(path, events, side)
    _remove(folder)
    if place != folder:
        place.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()  # made for this folder alone
    return path


def _folder(place: Path) -> Path:
    return find_segments(place) if place.suffix == ELSEWHERE_SUFFIX else place


def _remove(folder: Path) -> None:
    for file in [*folder.glob(f"*{SEGMENT_SUFFIX}"), folder / SIDE_FILE]:
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # somebody put a file of their own into it
        folder.rmdir()


def is_live(place: Path) -> bool:
    """Tell whether the process that records to `place` still runs, on this machine.

    Raises:
        UnusableInput: as `decode` does.
    """
    side = side_of(place)
    process = side.process
    here = process.host == host_name() and process.clock_domain == clock_domain()
    if side.complete or not here:
        return False
    started = process_started_ns(process.pid)
    return started is not None and started <= process.incarnation + _START_SLACK_NS


def _rename_for(process: Process, place: Path) -> Path:
    """Name the folder, or the note, after the rank that the process turned out to have."""
    known = parse_stem(place.stem)
    if known is None or known[:2] == (process.role, process.rank):
        return place
    renamed = place.with_name(stem(process.role, process.rank, known[2]) + place.suffix)
    if renamed.exists() or renamed.with_suffix(TRACE_SUFFIX).exists():
        return place
    return place.rename(renamed)


def side_of(place: Path) -> SideTables:
    """Read the side tables alone.

    Raises:
        UnusableInput: as `decode` does.
    """
    return _read_side(_folder(place))


def _read_side(folder: Path) -> SideTables:
    try:
        with (folder / SIDE_FILE).open("rb") as lines:
            return from_lines(lines)
    except FileNotFoundError as error:
        raise TraceNotFound(
            f"{folder} has no {SIDE_FILE}, without which nobody knows whose events these are"
        ) from error
    except OSError as error:
        raise NotATrace(f"{folder / SIDE_FILE} cannot be read ({error.strerror})") from error


def _read_segments(folder: Path) -> list[tuple[int, Records]]:
    """Read the used slots of all segments, with their numbers, in the order in which they were taken."""
    paths = sorted(folder.glob(f"*{SEGMENT_SUFFIX}"), key=_number)
    return [(_number(path), _records_of(path)) for path in paths]


def _number(path: Path) -> int:
    return int(path.stem) if path.stem.isdecimal() else -1


def _kept(segments: Sequence[tuple[int, Records]], side: SideTables) -> list[Records]:
    """Leave out what is older than the steps that were to be kept."""
    last = side.retention.last
    if last is None:
        return [records for _, records in segments]
    return cut_to_last(stretches(segments), last, side.kept, side.definitions)


def _count(parts: Iterable[Records]) -> int:
    return sum(map(len, parts))


def _records_of(path: Path) -> Records:
    """Read the used slots of a segment; of one that was cut off, those that are whole."""
    content = path.read_bytes()
    header = content[:RECORD_BYTES]
    if len(header) < RECORD_BYTES or header == _UNUSED_HEADER:
        return np.empty(0, SLOT)  # killed while it was being made
    _check_header(path.name, header)
    whole = len(content) // RECORD_BYTES - 1
    records: Records = np.frombuffer(content, SLOT, count=whole, offset=RECORD_BYTES)
    return pick(records, np.flatnonzero(records["definition"]))


def _check_header(name: str, header: bytes) -> None:
    magic, order, version, record_bytes, _capacity, _pid = HEADER.unpack(header)
    if magic != MAGIC:
        raise NotATrace(f"{name} does not begin as a segment of TraceLens does")
    if order != BYTE_ORDER:
        raise NotATrace(f"{name} was written on a machine of another byte order: convert it there")
    check_version(version)
    if record_bytes != RECORD_BYTES:
        raise NotATrace(f"{name} has records of {record_bytes} bytes, expected {RECORD_BYTES}")

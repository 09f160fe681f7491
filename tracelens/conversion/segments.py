"""From live segments to Arrow: at the end of a recording, or when a killed one is read.

Segments may be read at any time, also while they are written: only records whose `definition` is set
count, and it is written last, so a record is whole or absent. Of a long recording a part may be Arrow
already (see `tracelens.conversion.incremental`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tracelens.conversion.arrow_file import read_growing
from tracelens.conversion.batches import Conversion
from tracelens.conversion.folder import PROGRESS_FILE, list_segment_files, load_progress
from tracelens.conversion.incremental import IncrementalConversion, convert_rest
from tracelens.conversion.lock import hold_lock
from tracelens.errors import NotATrace, TraceNotFound
from tracelens.schema.arrow import EVENT_SCHEMA
from tracelens.schema.endings import DUMPS, read_dumps
from tracelens.schema.gate import read_contents
from tracelens.schema.host import clock_domain, find_segments, host_name, process_started_ns
from tracelens.schema.ownership import MARKER_FILE
from tracelens.schema.side import SideTables, parse_lines
from tracelens.schema.vocabulary import (
    ELSEWHERE_SUFFIX,
    SEGMENT_SUFFIX,
    SIDE_FILE,
    TRACE_SUFFIX,
    UNFINISHED_FILE,
    make_stem,
    parse_stem,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.conversion.folder import Segment
    from tracelens.schema.endings import Ending
    from tracelens.schema.side import Process

_START_SLACK_NS: Final = 2 * 10**9  # the kernel gives start times in ticks, from a whole second on
_PATIENCE_S: Final = 20.0


def decode(path: Path) -> tuple[pa.Table, SideTables]:
    """Read a segments folder: events in `EVENT_SCHEMA` sorted by start, and the side tables.

    `path` is the folder, or the note that names the folder on this host.

    Raises:
        TraceNotFound: there is no such folder, or no side file in it (any more).
        NotATrace: a file is not what its name says.
        NewerVersion: it was written by a newer TraceLens.
    """
    folder = find_folder(path)
    # In this order: what becomes Arrow meanwhile is read before, and known to be there twice.
    segments = list(_read_segments(folder))
    progress = load_progress(folder)
    side = _read_side(folder)
    try:
        batches = read_growing(folder / UNFINISHED_FILE, progress.length)
    except FileNotFoundError as error:
        raise TraceNotFound(f"{folder} has just become a whole file") from error
    conversion = Conversion(batches.append, side.retention, progress)
    side = convert_rest(conversion, segments, progress, side)
    table = pa.Table.from_batches(batches, EVENT_SCHEMA).unify_dictionaries()
    if not side.sorted:
        table, side = table.sort_by("start_ns"), replace(side, sorted=True)
    return table, side


def convert(path: Path) -> Path:
    """Turn a segments folder into an Arrow file, then remove the folder and its note.

    The file gets the name of `path`, which is as for `decode`, with another suffix. Of two processes
    that do this, one waits for the other. A file that exists is complete.

    Raises:
        UnusableInput: as `decode` does.
        OSError: the file cannot be written, or another process does so for very long; the segments are
            left as they were.
    """
    arrow_file = path.with_suffix(TRACE_SUFFIX)
    try:
        folder = find_folder(path)
        with hold_lock(folder / SIDE_FILE, _PATIENCE_S):
            if arrow_file.exists():  # and what it was made of was not removed any more
                return _clear_folder(path, folder, arrow_file)
            with IncrementalConversion(folder) as converting:
                return finish(converting, path)
    except TraceNotFound:
        if arrow_file.exists():
            return arrow_file  # another process was quicker
        raise


def finish(converting: IncrementalConversion, path: Path) -> Path:
    """Convert the rest of `path`, whose recording is over, as `convert` does; its lock is held.

    Raises:
        UnusableInput, OSError: as `convert` does.
    """
    side = read_side_tables(path)
    try:
        unfinished = converting.finish(side)
        path = _rename_for(side.process, path)
        folder = find_folder(path)
        arrow_file = path.with_suffix(TRACE_SUFFIX)
        _publish(folder / unfinished.name, arrow_file)
    except BaseException:
        converting.give_up()
        raise
    return _clear_folder(path, folder, arrow_file)


def _publish(unfinished: Path, path: Path) -> None:
    """Rename a complete file to its place, which may be on another file system."""
    try:
        unfinished.replace(path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
        try:
            shutil.copyfile(unfinished, copy)
            copy.replace(path)
        finally:
            copy.unlink(missing_ok=True)


def _clear_folder(path: Path, folder: Path, arrow_file: Path) -> Path:
    """Remove the folder, and the note at `path` if it is another; return the Arrow file.

    The side file goes first: who reads the folder meanwhile reads it last, so either nothing was
    gone before, or the whole file is known to be complete.
    """
    (folder / SIDE_FILE).unlink(missing_ok=True)
    other_names = (PROGRESS_FILE, UNFINISHED_FILE, f".{PROGRESS_FILE}", MARKER_FILE, *DUMPS)
    for file in [*folder.glob(f"*{SEGMENT_SUFFIX}"), *(folder / name for name in other_names)]:
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # a file of another program is in it
        folder.rmdir()
    if path != folder:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()  # made for this folder alone
    return arrow_file


def find_folder(path: Path) -> Path:
    """Return the segments folder: `path` itself, or the folder that its note names.

    Raises:
        UnusableInput: it leads nowhere.
    """
    return find_segments(path) if path.suffix == ELSEWHERE_SUFFIX else path


def is_live(path: Path) -> bool:
    """Return True if the process that records to `path` still runs, on this machine.

    Raises:
        UnusableInput: as `decode` does.
    """
    side = read_side_tables(path)
    process = side.process
    is_same_clock = process.host == host_name() and process.clock_domain == clock_domain()
    if side.complete or not is_same_clock:
        return False
    start_ns = process_started_ns(process.pid)
    return start_ns is not None and start_ns <= process.incarnation + _START_SLACK_NS


def _rename_for(process: Process, path: Path) -> Path:
    """Rename the folder, or the note, after its process's final rank, if possible; return the path."""
    parsed_stem = parse_stem(path.stem)
    if parsed_stem is None:
        return path
    role, rank, pid = parsed_stem
    if (role, rank) == (process.role, process.rank):
        return path
    new_path = path.with_name(make_stem(process.role, process.rank, pid) + path.suffix)
    if new_path.exists() or new_path.with_suffix(TRACE_SUFFIX).exists():
        return path
    return path.rename(new_path)


def read_side_tables(path: Path) -> SideTables:
    """Read the side tables alone.

    Raises:
        UnusableInput: as `decode` does.
    """
    return _read_side(find_folder(path))


def _read_side(folder: Path) -> SideTables:
    try:
        side = parse_lines(read_contents(folder / SIDE_FILE, "side").split(b"\n"))
        return replace(side, endings=(*side.endings, *_read_dumps(folder, side)))
    except FileNotFoundError as error:
        raise TraceNotFound(
            f"{folder} has no {SIDE_FILE}, without which it is not known whose events these are"
        ) from error
    except OSError as error:
        raise NotATrace(f"{folder / SIDE_FILE} cannot be read ({error.strerror})") from error


def _read_dumps(folder: Path, side: SideTables) -> Iterator[Ending]:
    """Yield what signals left of a process; its clock is tied to that of files by its last reading."""
    offsets_ns = [one.wall_ns - one.monotonic_ns for one in side.clocks if one.wall_ns is not None]
    return read_dumps(folder, offsets_ns[-1]) if offsets_ns else iter(())


def _read_segments(folder: Path) -> Iterator[Segment]:
    """Read all segments, but those that become Arrow and are removed just now."""
    for file in list_segment_files(folder):
        with contextlib.suppress(FileNotFoundError):
            yield file.read()

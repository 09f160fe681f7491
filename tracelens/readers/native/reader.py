"""Reads TraceLens' own folders: one Arrow file a process, and the segments of killed or running ones.

And the samples of call stacks in the same folder.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

import polars as pl
import pyarrow as pa

from tracelens.containment import out_of_memory
from tracelens.conversion.arrow_file import read_samples
from tracelens.distil.outline import KEPT, OUTLINED, outline
from tracelens.errors import NotATrace, TraceNotFound
from tracelens.memory import BoundedCache
from tracelens.model.fmt import shown_name
from tracelens.model.packed_columns import PackedColumns
from tracelens.model.trace import SAMPLE_COLUMNS, Note
from tracelens.parallel import at_once, mapped
from tracelens.readers.base import SIMPLY, Reading
from tracelens.readers.links import check_inside, check_no_links
from tracelens.readers.native.arrow_file import Recording
from tracelens.readers.native.assemble import Part, assemble
from tracelens.readers.native.plain_columns import read_usable, usable
from tracelens.readers.native.recordings import (
    DAMAGE,
    UNFINISHED,
    left_out,
    no_events,
    recordings,
    refusal,
    vanished,
    wanted,
)
from tracelens.readers.native.soundness import ALWAYS_READ
from tracelens.schema.arrow import SAMPLE_SCHEMA
from tracelens.schema.gate import admit
from tracelens.schema.ownership import belongs_to
from tracelens.schema.rules import LATEST_NS, LONGEST_NS
from tracelens.schema.vocabulary import (
    SAMPLES_FOLDER,
    SEGMENTS_SUFFIX,
    TRACE_SUFFIX,
    parse_stem,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.native.plain_columns import Usable

    _Problem: TypeAlias = tuple[Path, Exception]


_SOME: Final = 64  # files, which tell how large the others are
_SMALL: Final = 512 << 10  # bytes of a file
_OUTLINED: Final = frozenset((*OUTLINED, *ALWAYS_READ))

_SAMPLES_DAMAGE: Final = (
    NotATrace,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    pa.ArrowException,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)


class NativeReader:
    """The format described in docs/format.md."""

    name = "TraceLens trace folder"

    def sniff(self, path: Path) -> bool:
        """Return whether there is at least one file or folder named like ours."""
        return bool(recordings(path))

    def read(self, path: Path, how: Reading = SIMPLY) -> Trace:
        """Read every process that is wanted; one that cannot be read becomes a note."""
        found = wanted(recordings(path), how.choice)
        root = None if path in found else path  # a file that was named itself may be a link
        parts, problems = _read_all(found, root, how)
        if any(isinstance(error, TraceNotFound) for _, error in problems):
            files = [file for file in wanted(recordings(path), how.choice) if file not in found]
            converted, unread = _read_all(files, root, how)
            parts += converted
            problems = [*_unconverted(problems, files), *unread]
        if not parts:
            raise refusal(path, problems) if problems else vanished(path)
        notes = tuple(
            Note(shown_name(file.name), left_out(file, error)) for file, error in problems
        )
        folder = path.parent if path.is_file() else path
        trace = _with_samples(assemble(parts, notes), folder, parts)
        if not trace.processes["events"].sum():
            raise no_events(path, len(found), (part.side.dropped for part in parts))
        return trace.with_(path=path)


def _read_all(
    found: Sequence[Path], root: Path | None, how: Reading
) -> tuple[list[Part], list[_Problem]]:
    """Read files; return also what is wrong with those that cannot be read."""
    parts: list[Part] = []
    problems: list[_Problem] = []
    room = how.kept_bytes
    brief = _mean_bytes(found[:_SOME]) < _SMALL
    count = at_once(len(found), how.executor) if brief else 1
    some = (found[first : first + count] for first in range(0, len(found), count))
    things = ((files, room > 0) for files in some)
    work = partial(_tried, trace=root, cache=BoundedCache())
    made = mapped(work, things, how.executor, brief=brief)
    for done, (file, part) in enumerate(zip(found, chain.from_iterable(made), strict=True)):
        if isinstance(part, Part):
            fitting, room = part.fitting(room, beside=parts[-1] if parts else None)
            parts.append(fitting)
        else:
            problems.append((file, part))
        if how.progress:
            how.progress(done + 1, len(found))
    return parts, problems


def _unconverted(problems: list[_Problem], files: list[Path]) -> list[_Problem]:
    """Leave out segments that became one of some Arrow files while they were being read."""
    names = (parse_stem(file.name) for file in files)
    made = {(known[0], known[2]) for known in names if known}
    return [
        (place, error)
        for place, error in problems
        if not isinstance(error, TraceNotFound)
        or (known := parse_stem(place.stem)) is None
        or (known[0], known[2]) not in made
    ]


def _mean_bytes(files: Sequence[Path]) -> float:
    """Return how large some files are on average, of which those that are gone have nothing."""
    sizes = [0]
    for file in files:
        with suppress(OSError):
            sizes.append(file.stat().st_size)
    return sum(sizes) / len(sizes)


def _tried(
    some: tuple[Sequence[Path], bool], trace: Path | None, cache: BoundedCache
) -> list[Part | Exception]:
    """Read some files; keep what is asked for again, if wanted.

    What of a part is equal to what one before it has is the same, so that it is sent once.
    """
    files, keep = some
    found: list[Part | Exception] = []
    before = None
    for path in files:
        part = _tried_one(path, trace, cache, keep=keep)
        if isinstance(part, Part):
            part = before = part.sharing(before)
        found.append(part)
    return found


def _tried_one(
    path: Path, trace: Path | None, cache: BoundedCache, *, keep: bool
) -> Part | Exception:
    try:
        if trace is not None:
            check_inside(path, trace)
        return _read(path, cache, keep=keep)
    except (*DAMAGE, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        if isinstance(error, MemoryError):
            out_of_memory()
        return error


def _read(path: Path, cache: BoundedCache, *, keep: bool) -> Part:
    if path.name.endswith(UNFINISHED):
        return _read_segments(path, cache)
    if not path.is_file():
        raise NotATrace("it is not a file")
    found = read_usable(path, _OUTLINED, cache)
    part = _part(path, found, cache)
    return replace(part, kept=PackedColumns.from_columns(found.columns, KEPT)) if keep else part


def _part(path: Path, found: Usable, cache: BoundedCache) -> Part:
    tracks = [row.index for row in found.side.threads if row.in_flight]
    return Part(
        file=shown_name(path.name),
        side=found.side,
        outline=outline(found.columns, tracks, cache),
        path=path,
        lost=found.lost,
        cut=found.cut,
    )


def _read_segments(place: Path, cache: BoundedCache) -> Part:
    """Decode what a killed or running process left; convert it if its process is surely gone.

    Whether a process on another machine still runs cannot be known here, so its segments stay; and so do
    those that were copied or unpacked here, or belong to another user.
    """
    from tracelens.conversion import segments

    admit(place)
    folder = segments.folder_of(place)
    own = belongs_to(folder, place.parent)
    if folder != place and not own:
        raise NotATrace(
            f"it names {folder}, which does not say that it belongs to this trace: to read that, name "
            "it itself"
        )
    check_no_links(folder)
    table, side = segments.decode(place)
    name = place.with_suffix(SEGMENTS_SUFFIX).name
    same_host = side.process.host == socket.gethostname()
    running = same_host and segments.is_live(place)
    if own and same_host and not running and os.access(place.parent, os.W_OK):
        with suppress(OSError):  # a full disk, or another reader converts it now: we have it
            name = segments.convert(place).name
    found = usable(Recording(table, side))
    return replace(_part(place.with_name(name), found, cache), table=table, running=running)


def _with_samples(trace: Trace, folder: Path, parts: list[Part]) -> Trace:
    """Return the trace with the samples of its processes; damaged ones become notes."""
    owners = {
        file.removesuffix(TRACE_SUFFIX): process
        for process, file in trace.processes.select("process", "file").iter_rows()
    }
    sides = {part.file.removesuffix(TRACE_SUFFIX): part.side for part in parts}
    found: list[pl.DataFrame] = []
    notes: list[Note] = []
    for file in sorted((folder / SAMPLES_FOLDER).glob(f"*{TRACE_SUFFIX}")):
        shown = shown_name(file.name)
        name = shown.removesuffix(TRACE_SUFFIX)
        if name not in owners:
            continue
        index_of = {row.native_id: row.index for row in sides[name].threads if row.native_id}
        try:
            check_inside(file, folder)
            rows = _read_samples(file, owners[name], sides[name].process.pid, index_of)
        except _SAMPLES_DAMAGE:
            sentence = f"'{SAMPLES_FOLDER}/{shown}' is damaged: its samples of stacks are left out."
            notes.append(Note(shown, sentence))
            continue
        found.append(rows.filter(_sound()))
        notes += _lost(shown, rows.height - found[-1].height)
    if not found and not notes:
        return trace
    samples = pl.concat([pl.DataFrame(schema=SAMPLE_COLUMNS), *found])
    return trace.with_(samples=samples, notes=(*trace.notes, *notes))


def _read_samples(file: Path, process: int, pid: int, index_of: dict[int, int]) -> pl.DataFrame:
    """Read a rank's samples."""
    rows = pl.DataFrame(pa.Table.from_batches(read_samples(file), SAMPLE_SCHEMA))
    index = pl.col("thread").replace_strict(index_of, default=None, return_dtype=pl.UInt16)
    return rows.select(
        pl.lit(process, pl.Int32).alias("process"),
        pl.when(pl.col("pid") == pid).then(index).alias("thread"),
        pl.col("pid", "thread_name", "start_ns", "end_ns", "frames"),
    ).cast(pl.Schema(SAMPLE_COLUMNS))


def _sound() -> pl.Expr:
    """Return which rows are valid: times in order and in range, frames with names."""
    start, end = pl.col("start_ns"), pl.col("end_ns")
    complete = pl.col("pid", "thread_name", "frames").is_not_null()
    named = pl.col("frames").list.eval(pl.element().is_null()).list.any().not_()
    usable = start.is_between(0, LATEST_NS) & (end - start).is_between(0, LONGEST_NS)
    return pl.all_horizontal(complete, named, usable).fill_null(value=False)


def _lost(file: str, count: int) -> list[Note]:
    if not count:
        return []
    sentence = f"'{SAMPLES_FOLDER}/{file}' lost samples of stacks: {count} for unusable values."
    return [Note(file, sentence, "dropped")]

"""A segments folder on its way to an Arrow file: batch by batch while it grows, and to the end.

Each batch is on the disk, and the folder's progress says so (`tracelens.conversion.folder`), before
the segments that it comes from are removed. Whoever does this holds the folder's lock
(`tracelens.conversion.lock`).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from tracelens.conversion.arrow_file import GrowingFile
from tracelens.conversion.batches import BATCH_ROWS, ChunkMode, Conversion
from tracelens.conversion.columns import SLOT, UNKNOWN_DEPTH, RecordChunk, join, pick
from tracelens.conversion.folder import (
    SLOT_BITS,
    Held,
    Progress,
    load_progress,
    save_progress,
    segment_files,
)
from tracelens.conversion.retention import cut_to_last, steps_cut_off, stretches
from tracelens.schema.gate import opened
from tracelens.schema.side import Past, from_lines, summarized
from tracelens.schema.vocabulary import OUTDATED, SIDE_FILE, UNFINISHED_FILE

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from tracelens.arrays import Ints
    from tracelens.conversion.columns import Records
    from tracelens.conversion.folder import Segment
    from tracelens.schema.side import Definition, SideTables, Thread

__all__ = ["AHEAD", "CHUNK", "IncrementalConversion", "convert_rest", "held_in", "with_counts"]


_CHUNK_ROWS: Final = BATCH_ROWS * 3 // 4  # some wait for the next chunk
CHUNK: Final = 12  # segments: a batch of 49,140 rows
AHEAD: Final = 4  # full segments to look ahead at, for device times
_WHEN_THINNED: Final = 4  # times as many, or batches would be small, and files large
_MOST_HELD: Final = 64  # segments that stay for events that may still change,
_MOST_SLOTS: Final = 4096  # and such events
_FREE_FOR_NS: Final = 30 * 10**9  # a slot that is not written by then will not be
_SLOT: Final = (1 << SLOT_BITS) - 1


def convert_rest(
    conversion: Conversion, segments: Iterable[Segment], progress: Progress, side: SideTables
) -> SideTables:
    """Convert all that is left in the segments of a recording that is over, or as if it were.

    Returns the side tables, with what was counted on the way.
    """
    conversion.learn(side.definitions, side.threads)
    current = RecordChunk.concatenated(())
    dropped: list[Past] = []
    for following in _chunks(conversion, segments, progress, side, dropped):
        if len(current.records):
            conversion.feed(current, following.records, ChunkMode())
        current = following
    conversion.feed(current, np.empty(0, SLOT), ChunkMode(last=True))
    return with_counts(replace(side, past=(*side.past, *dropped)), conversion)


def with_counts(side: SideTables, conversion: Conversion) -> SideTables:
    """Add to the side tables what a conversion left out, and whether its rows are sorted."""
    dropped = conversion.lost.copy()
    dropped.update(side.dropped)
    return replace(
        side,
        dropped={reason: count for reason, count in dropped.items() if count},
        thinned={kind: count for kind, count in conversion.thinned.items() if count},
        sorted=conversion.sorted,
    )


def held_in(segment: Segment, held: Sequence[Held]) -> tuple[RecordChunk, list[Held]]:
    """Return what is now in slots of a segment that were held back; apart, those still not in use."""
    where = np.array([row.slot for row in held], np.intp)
    depth = np.array([row.depth for row in held], np.int64)
    slots = pick(segment.slots, where) if len(where) else segment.slots[:0]
    given = RecordChunk(slots, segment.origins(where), depth)
    used = slots["definition"] != 0
    free = [row for row, taken in zip(held, used.tolist(), strict=True) if not taken]
    return given.at(np.flatnonzero(used)), free


def _chunks(
    conversion: Conversion,
    segments: Iterable[Segment],
    progress: Progress,
    side: SideTables,
    dropped: list[Past],
) -> Iterator[RecordChunk]:
    if side.retention.last is not None:
        yield _last_steps(conversion, segments, side.retention.last, side, dropped)
        return
    parts: list[RecordChunk] = []
    for segment in segments:
        parts.append(_rest_of(segment, progress))
        if sum(len(part.records) for part in parts) >= _CHUNK_ROWS:
            yield RecordChunk.concatenated(parts)
            parts = []
    yield RecordChunk.concatenated(parts)


def _rest_of(segment: Segment, progress: Progress) -> RecordChunk:
    if segment.number >= progress.next or not progress.length:
        return segment.used()
    held = [row for row in progress.held if row.segment == segment.number]
    return held_in(segment, held)[0]


def _last_steps(
    conversion: Conversion,
    segments: Iterable[Segment],
    last: int,
    side: SideTables,
    dropped: list[Past],
) -> RecordChunk:
    """Drop what is older than the steps that were to be kept, and count it and its steps."""
    found = [(segment.number, segment.used().records) for segment in segments]
    kept = cut_to_last(stretches(found), last, side.kept, side.definitions)
    records = join(kept)
    dropped += summarized(steps_cut_off([part for _, part in found], records, side.definitions))
    conversion.lost[OUTDATED] += sum(len(part) for _, part in found) - len(records)
    return RecordChunk.new(records, np.zeros(len(records), np.int64))


class IncrementalConversion:
    """Resumes where the folder's progress ends."""

    def __init__(self, folder: Path) -> None:
        """Open the Arrow file of a folder whose lock is held.

        Raises:
            UnusableInput: the folder's side tables or progress cannot be read.
            OSError: the file cannot be written.
        """
        self._folder = folder
        self._names = _GrowingSideFile(folder / SIDE_FILE)
        side = self._names.side
        self._progress = load_progress(folder)
        self._file = GrowingFile(folder / UNFINISHED_FILE, side, self._progress.length)
        self._conversion = Conversion(self._file.append, side.retention, self._progress)
        self._chunk = CHUNK if side.retention.every is None else CHUNK * _WHEN_THINNED
        self._remove_converted()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def advance(self, until: int) -> bool:
        """Convert the next chunk of the segments before number `until`, which are full; if there is one.

        Raises:
            UnusableInput: a segment cannot be read.
            OSError: there is no room.
        """
        following = [
            file
            for file in segment_files(self._folder)
            if self._progress.next <= file.number < until
        ]
        if len(following) < self._chunk + AHEAD:
            return False
        chunk = [file.read() for file in following[: self._chunk]]
        ahead = [file.read().used() for file in following[self._chunk : self._chunk + AHEAD]]
        self._names.read_on()
        self._conversion.learn(self._names.definitions, self._names.threads)
        new = RecordChunk.concatenated([segment.used() for segment in chunk])
        if not self._conversion.knows_all(new.records):
            return False  # a definition has no room on the disk as yet
        self._convert(chunk, new, RecordChunk.concatenated(ahead).records)
        return True

    def finish(self, side: SideTables) -> Path:
        """Convert the rest and end the Arrow file; return where it is.

        Raises:
            UnusableInput: a segment cannot be read.
            OSError: there is no room.
        """
        files = segment_files(self._folder)
        counted = convert_rest(
            self._conversion, (file.read() for file in files), self._progress, side
        )
        self._file.finish(counted)
        return self._folder / UNFINISHED_FILE

    def give_up(self) -> None:
        """Remove the unfinished file if none of its batches counts."""
        if not self._progress.length:
            (self._folder / UNFINISHED_FILE).unlink(missing_ok=True)

    def _convert(self, chunk: Sequence[Segment], new: RecordChunk, ahead: Records) -> None:
        now = time.monotonic_ns()
        given, waiting, released = self._held_now(now)
        back = self._conversion.feed(
            RecordChunk.concatenated([given, new]), ahead, ChunkMode(hold=True, released=released)
        )
        held = [
            Held(origin >> SLOT_BITS, origin & _SLOT, depth, now)
            for origin, depth in zip(back.origin.tolist(), back.depth.tolist(), strict=True)
        ]
        free = [
            Held(segment.number, origin & _SLOT, UNKNOWN_DEPTH, now)
            for segment in chunk
            for origin in segment.free().tolist()
        ]
        self._file.sync()
        self._progress = Progress(
            length=self._file.length,
            next=chunk[-1].number + 1,
            held=tuple(sorted([*waiting, *held, *free])),
            lost=_counted(self._conversion.lost),
            thinned=_counted(self._conversion.thinned),
            latest_ns=self._conversion.latest_ns,
            sorted=self._conversion.sorted,
        )
        save_progress(self._folder, self._progress)
        self._remove_converted()

    def _held_now(self, now: int) -> tuple[RecordChunk, list[Held], Ints]:
        """Return what became of what was held, free slots to wait for, and what is held no longer."""
        files = {file.number: file for file in segment_files(self._folder)}
        by_segment: dict[int, list[Held]] = {}
        for row in self._progress.held:
            by_segment.setdefault(row.segment, []).append(row)
        expired = _expired(by_segment)
        parts: list[RecordChunk] = []
        waiting: list[Held] = []
        for number, rows in by_segment.items():
            if number in files:
                given, free = held_in(files[number].read(), rows)
                parts.append(given)
                if number not in expired:
                    waiting += [row for row in free if now - row.since_ns < _FREE_FOR_NS]
        given = RecordChunk.concatenated(parts)
        return given, waiting, given.origin[np.isin(given.origin >> SLOT_BITS, list(expired))]

    def _remove_converted(self) -> None:
        """Remove the segments all of whose events are in the Arrow file."""
        if not self._progress.length:
            return
        held = {row.segment for row in self._progress.held}
        for file in segment_files(self._folder):
            if file.number < self._progress.next and file.number not in held:
                file.path.unlink(missing_ok=True)


def _counted(counter: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in counter.items() if count}


def _expired(held: dict[int, list[Held]]) -> set[int]:
    """Name the oldest segments, where more wait than there may be."""
    found: set[int] = set()
    slots = sum(map(len, held.values()))
    for number in sorted(held):
        if len(held) - len(found) <= _MOST_HELD and slots <= _MOST_SLOTS:
            break
        found.add(number)
        slots -= len(held[number])
    return found


class _GrowingSideFile:
    """Definitions and threads of a side file that grows; each line is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._first = b""
        self.definitions: list[Definition] = []
        self.threads: list[Thread] = []
        self.side: SideTables = self.read_on()

    def read_on(self) -> SideTables:
        """Read the lines that were added since."""
        with opened(self._path, "side") as file:
            file.seek(self._at)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        lines = whole.split(b"\n")
        self._first = self._first or next(iter(lines), b"")
        found = from_lines([self._first, *lines])
        self.definitions += found.definitions
        self.threads += found.threads
        return found

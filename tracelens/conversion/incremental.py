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
from tracelens.conversion.columns import SLOT, UNKNOWN_DEPTH, RecordChunk, join_rows, pick_rows
from tracelens.conversion.folder import (
    SLOT_BITS,
    HeldSlot,
    Progress,
    list_segment_files,
    load_progress,
    save_progress,
)
from tracelens.conversion.retention import cut_to_last, join_consecutive, list_steps_cut_off
from tracelens.schema.gate import open_regular
from tracelens.schema.side import Past, parse_lines, summarize_steps
from tracelens.schema.vocabulary import OUTDATED, SIDE_FILE, UNFINISHED_FILE

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from tracelens.arrays import Ints
    from tracelens.conversion.columns import Records
    from tracelens.conversion.folder import Segment
    from tracelens.schema.side import Definition, SideTables, Thread

_CHUNK_ROWS: Final = BATCH_ROWS * 3 // 4  # some wait for the next chunk
CHUNK: Final = 12  # segments: a batch of 49,140 rows
AHEAD: Final = 4  # full segments to look ahead at, for device times
_CHUNK_FACTOR_IF_THINNED: Final = 4  # times as many, or batches would be small, and files large
_MAX_SEGMENTS_HELD: Final = 64  # segments that stay for events that may still change,
_MAX_SLOTS_HELD: Final = 4096  # and such events
_FREE_FOR_NS: Final = 30 * 10**9  # a slot that is not written by then will not be
_SLOT: Final = (1 << SLOT_BITS) - 1


def convert_rest(
    conversion: Conversion, segments: Iterable[Segment], progress: Progress, side: SideTables
) -> SideTables:
    """Convert all segments that `progress` leaves, as of a recording that is over.

    Returns the side tables with the counts of lost events, and the steps that were cut off.
    """
    conversion.set_definitions(side.definitions, side.threads)
    chunk = RecordChunk.from_chunks(())
    past_steps: list[Past] = []
    for next_chunk in _iterate_chunks(conversion, segments, progress, side, past_steps):
        if len(chunk.records):
            conversion.convert_chunk(chunk, next_chunk.records, ChunkMode())
        chunk = next_chunk
    conversion.convert_chunk(chunk, np.empty(0, SLOT), ChunkMode(is_last=True))
    return add_counts(replace(side, past=(*side.past, *past_steps)), conversion)


def add_counts(side: SideTables, conversion: Conversion) -> SideTables:
    """Return the side tables with a conversion's counts of lost events and its sortedness."""
    dropped_by_reason = conversion.lost_by_reason.copy()
    dropped_by_reason.update(side.dropped)  # a Counter adds
    return replace(
        side,
        dropped=_nonzero_counts(dropped_by_reason),
        thinned=_nonzero_counts(conversion.thinned_by_kind),
        sorted=conversion.is_sorted,
    )


def read_held_in(
    segment: Segment, held_slots: Sequence[HeldSlot]
) -> tuple[RecordChunk, list[HeldSlot]]:
    """Return the records now in a segment's held slots, and the slots that are still unused."""
    indices = np.array([slot.slot_index for slot in held_slots], np.intp)
    depths = np.array([slot.depth for slot in held_slots], np.int64)
    slot_records = pick_rows(segment.slots, indices) if len(indices) else segment.slots[:0]
    held_records = RecordChunk(slot_records, segment.compute_origins(indices), depths)
    is_used = slot_records["definition"] != 0
    unused_slots = [
        slot for slot, in_use in zip(held_slots, is_used.tolist(), strict=True) if not in_use
    ]
    return held_records.take(np.flatnonzero(is_used)), unused_slots


def _iterate_chunks(
    conversion: Conversion,
    segments: Iterable[Segment],
    progress: Progress,
    side: SideTables,
    past_steps: list[Past],
) -> Iterator[RecordChunk]:
    """Yield the unconverted records of the segments in chunks of about `_CHUNK_ROWS`.

    If only the last steps are kept, it yields a single chunk, and adds the other steps to `past_steps`.
    """
    if side.retention.last is not None:
        yield _cut_to_last_steps(conversion, segments, side.retention.last, side, past_steps)
        return
    segment_chunks: list[RecordChunk] = []
    for segment in segments:
        segment_chunks.append(_read_rest(segment, progress))
        if sum(len(chunk.records) for chunk in segment_chunks) >= _CHUNK_ROWS:
            yield RecordChunk.from_chunks(segment_chunks)
            segment_chunks = []
    yield RecordChunk.from_chunks(segment_chunks)


def _read_rest(segment: Segment, progress: Progress) -> RecordChunk:
    if segment.number >= progress.next or not progress.length:
        return segment.select_used_records()
    held_slots = [slot for slot in progress.held if slot.segment_number == segment.number]
    return read_held_in(segment, held_slots)[0]


def _cut_to_last_steps(
    conversion: Conversion,
    segments: Iterable[Segment],
    step_count: int,
    side: SideTables,
    past_steps: list[Past],
) -> RecordChunk:
    """Return the records of the last steps; count others as lost, and add their steps as past."""
    numbered_records = [
        (segment.number, segment.select_used_records().records) for segment in segments
    ]
    stretches = join_consecutive(numbered_records)
    kept_records = join_rows(cut_to_last(stretches, step_count, side.kept, side.definitions))
    records_by_segment = [segment_records for _, segment_records in numbered_records]
    past_steps += summarize_steps(
        list_steps_cut_off(records_by_segment, kept_records, side.definitions)
    )
    conversion.lost_by_reason[OUTDATED] += sum(map(len, records_by_segment)) - len(kept_records)
    return RecordChunk.from_records(kept_records, np.zeros(len(kept_records), np.int64))


class IncrementalConversion:
    """Resumes where the folder's progress ends."""

    def __init__(self, folder: Path) -> None:
        """Open the Arrow file of a folder whose lock is held.

        Raises:
            UnusableInput: the folder's side tables or progress cannot be read.
            OSError: the file cannot be written.
        """
        self._folder = folder
        self._side_file = _GrowingSideFile(folder / SIDE_FILE)
        side = self._side_file.side
        self._progress = load_progress(folder)
        self._file = GrowingFile(folder / UNFINISHED_FILE, side, self._progress.length)
        self._conversion = Conversion(self._file.append_batch, side.retention, self._progress)
        self._segments_per_chunk = (
            CHUNK if side.retention.every is None else CHUNK * _CHUNK_FACTOR_IF_THINNED
        )
        self._remove_converted()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def advance(self, end_number: int) -> bool:
        """Convert the next chunk of full segments before `end_number`; False if there are too few yet.

        Raises:
            UnusableInput: a segment cannot be read.
            OSError: there is no room.
        """
        full_files = [
            file
            for file in list_segment_files(self._folder)
            if self._progress.next <= file.number < end_number
        ]
        if len(full_files) < self._segments_per_chunk + AHEAD:
            return False
        chunk_segments = [file.read() for file in full_files[: self._segments_per_chunk]]
        files_ahead = full_files[self._segments_per_chunk :][:AHEAD]
        chunks_ahead = [file.read().select_used_records() for file in files_ahead]
        self._side_file.read_on()
        self._conversion.set_definitions(self._side_file.definitions, self._side_file.threads)
        new_records = RecordChunk.from_chunks(
            [segment.select_used_records() for segment in chunk_segments]
        )
        if not self._conversion.has_all_definitions(new_records.records):
            return False  # a definition has no room on the disk as yet
        self._convert(chunk_segments, new_records, RecordChunk.from_chunks(chunks_ahead).records)
        return True

    def finish(self, side: SideTables) -> Path:
        """Convert the rest, end the Arrow file, and return its path.

        Raises:
            UnusableInput: a segment cannot be read.
            OSError: there is no room.
        """
        files = list_segment_files(self._folder)
        complete_side = convert_rest(
            self._conversion, (file.read() for file in files), self._progress, side
        )
        self._file.finish(complete_side)
        return self._folder / UNFINISHED_FILE

    def give_up(self) -> None:
        """Remove the unfinished file if none of its batches counts."""
        if not self._progress.length:
            (self._folder / UNFINISHED_FILE).unlink(missing_ok=True)

    def _convert(
        self, chunk_segments: Sequence[Segment], new_records: RecordChunk, next_records: Records
    ) -> None:
        """Convert a chunk and the slots held back before, save the progress, remove whole segments.

        A held slot may still change. An origin is segment number << `SLOT_BITS` | slot.
        """
        now_ns = time.monotonic_ns()
        held_records, unused_slots, released_origins = self._read_held_slots(now_ns)
        held_chunk = self._conversion.convert_chunk(
            RecordChunk.from_chunks([held_records, new_records]),
            next_records,
            ChunkMode(holds_back=True, released_origins=released_origins),
        )
        held_slots = [
            HeldSlot(origin >> SLOT_BITS, origin & _SLOT, depth, now_ns)  # segment, and slot in it
            for origin, depth in zip(
                held_chunk.origins.tolist(), held_chunk.depths.tolist(), strict=True
            )
        ]
        free_slots = [
            HeldSlot(segment.number, origin & _SLOT, UNKNOWN_DEPTH, now_ns)
            for segment in chunk_segments
            for origin in segment.compute_free_origins().tolist()
        ]
        self._file.sync()
        self._progress = Progress(
            length=self._file.length_bytes,
            next=chunk_segments[-1].number + 1,
            held=tuple(sorted([*unused_slots, *held_slots, *free_slots])),
            lost=_nonzero_counts(self._conversion.lost_by_reason),
            thinned=_nonzero_counts(self._conversion.thinned_by_kind),
            latest_ns=self._conversion.latest_start_ns,
            sorted=self._conversion.is_sorted,
        )
        save_progress(self._folder, self._progress)
        self._remove_converted()

    def _read_held_slots(self, now_ns: int) -> tuple[RecordChunk, list[HeldSlot], Ints]:
        """Return records in held slots, unused slots to wait for, and origins to hold no longer."""
        file_by_number = {file.number: file for file in list_segment_files(self._folder)}
        slots_by_segment: dict[int, list[HeldSlot]] = {}
        for slot in self._progress.held:
            slots_by_segment.setdefault(slot.segment_number, []).append(slot)
        expired_numbers = _find_expired(slots_by_segment)
        record_chunks: list[RecordChunk] = []
        awaited_slots: list[HeldSlot] = []
        for number, held_slots in slots_by_segment.items():
            if number in file_by_number:
                segment = file_by_number[number].read()
                segment_records, unused_slots = read_held_in(segment, held_slots)
                record_chunks.append(segment_records)
                if number not in expired_numbers:
                    awaited_slots += [
                        slot for slot in unused_slots if now_ns - slot.since_ns < _FREE_FOR_NS
                    ]
        held_records = RecordChunk.from_chunks(record_chunks)
        is_expired = np.isin(held_records.origins >> SLOT_BITS, list(expired_numbers))
        return held_records, awaited_slots, held_records.origins[is_expired]

    def _remove_converted(self) -> None:
        """Remove the segments all of whose events are in the Arrow file."""
        if not self._progress.length:
            return
        held_numbers = {slot.segment_number for slot in self._progress.held}
        for file in list_segment_files(self._folder):
            if file.number < self._progress.next and file.number not in held_numbers:
                file.path.unlink(missing_ok=True)


def _nonzero_counts(counter: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in counter.items() if count}


def _find_expired(held_by_segment: dict[int, list[HeldSlot]]) -> set[int]:
    """Return the oldest segments' numbers, so that the others are within the limits of waiting."""
    expired: set[int] = set()
    slot_count = sum(map(len, held_by_segment.values()))
    for number in sorted(held_by_segment):
        if (
            len(held_by_segment) - len(expired) <= _MAX_SEGMENTS_HELD
            and slot_count <= _MAX_SLOTS_HELD
        ):
            break
        expired.add(number)
        slot_count -= len(held_by_segment[number])
    return expired


class _GrowingSideFile:
    """Definitions and threads of a side file that grows; each line is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset_bytes = 0
        self._first_line = b""
        self.definitions: list[Definition] = []
        self.threads: list[Thread] = []
        self.side: SideTables = self.read_on()

    def read_on(self) -> SideTables:
        """Read the whole lines added since the last call, and the first again: it has the version."""
        with open_regular(self._path, "side") as file:
            file.seek(self._offset_bytes)
            content = file.read()
        complete_lines = content[: content.rfind(b"\n") + 1]
        self._offset_bytes += len(complete_lines)
        lines = complete_lines.split(b"\n")
        self._first_line = self._first_line or next(iter(lines), b"")
        tables = parse_lines([self._first_line, *lines])
        self.definitions += tables.definitions
        self.threads += tables.threads
        return tables

"""The segments folder of a process: its segments, and how far they have become Arrow.

Progress is a small file among the segments. It is replaced after each batch is on the disk, and only
then are segments removed. So a conversion that is killed at any moment resumes after the last batch
that counts: no event is lost, and none is doubled.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens.conversion.columns import SLOT, RecordChunk, Records, pick_rows
from tracelens.errors import NotATrace
from tracelens.schema.gate import read_contents
from tracelens.schema.json_text import loads
from tracelens.schema.ownership import NO_LINK
from tracelens.schema.record import BYTE_ORDER, HEADER, MAGIC, RECORD_BYTES
from tracelens.schema.side import check_version
from tracelens.schema.vocabulary import SEGMENT_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.arrays import Indices, Ints

SLOT_BITS: Final = 32  # of an origin: segment << SLOT_BITS | slot
_UNUSED_HEADER: Final = bytes(RECORD_BYTES)
PROGRESS_FILE: Final = "progress.json"


class Segment(NamedTuple):
    """All slots of a segment, and its number."""

    number: int
    slots: Records

    def select_used_records(self) -> RecordChunk:
        """Return the slots that are in use; their origins locate them."""
        used_slots = np.flatnonzero(self.slots["definition"])
        return RecordChunk.from_records(
            pick_rows(self.slots, used_slots), self.compute_origins(used_slots)
        )

    def compute_free_origins(self) -> Ints:
        """Return the origins of the slots that are not in use."""
        return self.compute_origins(np.flatnonzero(self.slots["definition"] == 0))

    def compute_origins(self, slots: Indices) -> Ints:
        """Number slots uniquely in a recording."""
        return slots.astype(np.int64) + (self.number << SLOT_BITS)


class SegmentFile(NamedTuple):
    """A segment: its number, and its file."""

    number: int
    path: Path

    def read(self) -> Segment:
        """Read all slots of the segment; of one that was cut off, the complete slots.

        Raises:
            NotATrace: it is no segment, or none that can be read here.
            OSError: it cannot be read, or is gone.
        """
        content = read_contents(self.path, "segment")
        header = content[:RECORD_BYTES]
        if len(header) < RECORD_BYTES or header == _UNUSED_HEADER:
            return Segment(self.number, np.empty(0, SLOT))  # killed while it was being made
        _check_header(self.path.name, header)
        slot_count = len(content) // RECORD_BYTES - 1
        slots: Records = np.frombuffer(content, SLOT, count=slot_count, offset=RECORD_BYTES)
        return Segment(self.number, slots)


def list_segment_files(folder: Path) -> list[SegmentFile]:
    """List the segments of a folder in the order in which they were taken."""
    files = [SegmentFile(_number(path), path) for path in folder.glob(f"*{SEGMENT_SUFFIX}")]
    return sorted(files, key=lambda segment: (segment.number, segment.path))


def _number(path: Path) -> int:
    return int(path.stem) if path.stem.isdecimal() else -1


def _check_header(file: str, header: bytes) -> None:
    """Refuse a segment of another format, byte order or version."""
    magic, byte_order, version, record_bytes, _capacity, _pid = HEADER.unpack(header)
    if magic != MAGIC:
        raise NotATrace(f"{file} does not begin as a segment of TraceLens does")
    if byte_order != BYTE_ORDER:
        raise NotATrace(f"{file} was written on a machine of another byte order: convert it there")
    check_version(version)
    if record_bytes != RECORD_BYTES:
        raise NotATrace(f"{file} has records of {record_bytes} bytes, expected {RECORD_BYTES}")


class HeldSlot(NamedTuple):
    """A slot that is not in the Arrow file yet, because its event may still change.

    `depth` is that of its event, -1 without an event; such a slot waits since `since_ns`, monotonic.
    """

    segment_number: int
    slot_index: int
    depth: int
    since_ns: int


@dataclass(frozen=True)
class Progress:
    """The first `length` bytes of the Arrow file hold all segments before `next`, but for `held`.

    `lost` and `thinned` count events that are in neither, by reason and by kind. `latest_ns` is the
    begin of the last row, and `sorted` tells whether no row before it began later.
    """

    length: int = 0
    next: int = 0
    held: tuple[HeldSlot, ...] = ()
    lost: dict[str, int] = field(default_factory=dict)
    thinned: dict[str, int] = field(default_factory=dict)
    latest_ns: int = -(2**63)
    sorted: bool = True


def load_progress(folder: Path) -> Progress:
    """Read how far a segments folder has been converted; not at all without a progress file.

    Raises:
        NotATrace: the progress file is damaged.
    """
    try:
        fields = loads(read_contents(folder / PROGRESS_FILE, "side"))
        held_slots = tuple(HeldSlot(*map(int, slot)) for slot in fields.pop("held"))
        return Progress(held=held_slots, **fields)
    except FileNotFoundError:
        return Progress()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotATrace(f"{folder / PROGRESS_FILE} is damaged ({error!r})") from error


def save_progress(folder: Path, progress: Progress) -> None:
    """Write down how far a folder has been converted; it is on the disk when this returns.

    Raises:
        OSError: there is no room.
    """
    unfinished_path = folder / f".{PROGRESS_FILE}"
    descriptor = os.open(unfinished_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_LINK, 0o644)
    try:
        os.write(descriptor, json.dumps(asdict(progress)).encode())
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    unfinished_path.replace(folder / PROGRESS_FILE)

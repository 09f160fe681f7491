"""The files of a segments folder: what they are called, and the slots in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens.errors import NotATrace
from tracelens.schema.columns import SLOT, Records, pick
from tracelens.schema.conversion import Given
from tracelens.schema.record import BYTE_ORDER, HEADER, MAGIC, RECORD_BYTES
from tracelens.schema.side import check_version
from tracelens.schema.vocabulary import SEGMENT_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["SLOT_BITS", "Segment", "SegmentFile", "segment_files"]

SLOT_BITS: Final = 32  # of an origin: segment << SLOT_BITS | slot
_UNUSED_HEADER: Final = bytes(RECORD_BYTES)


class Segment(NamedTuple):
    """All slots of a segment, and its number."""

    number: int
    slots: Records

    def used(self) -> Given:
        """Take the slots that are in use; their origins say where they are."""
        taken = np.flatnonzero(self.slots["definition"])
        return Given.new(pick(self.slots, taken), self.origins(taken))

    def free(self) -> NDArray[np.int64]:
        """Return the origins of the slots that are not in use."""
        return self.origins(np.flatnonzero(self.slots["definition"] == 0))

    def origins(self, slots: NDArray[np.intp]) -> NDArray[np.int64]:
        """Number slots uniquely in a recording."""
        return slots.astype(np.int64) + (self.number << SLOT_BITS)


class SegmentFile(NamedTuple):
    """A segment: its number, and its file."""

    number: int
    path: Path

    def read(self) -> Segment:
        """Read all slots; of a segment that was cut off, those that are whole.

        Raises:
            NotATrace: it is no segment, or none that can be read here.
            OSError: it cannot be read, or is gone.
        """
        content = self.path.read_bytes()
        header = content[:RECORD_BYTES]
        if len(header) < RECORD_BYTES or header == _UNUSED_HEADER:
            return Segment(self.number, np.empty(0, SLOT))  # killed while it was being made
        _check_header(self.path.name, header)
        whole = len(content) // RECORD_BYTES - 1
        slots: Records = np.frombuffer(content, SLOT, count=whole, offset=RECORD_BYTES)
        return Segment(self.number, slots)


def segment_files(folder: Path) -> list[SegmentFile]:
    """List the segments of a folder in the order in which they were taken."""
    found = [SegmentFile(_number(path), path) for path in folder.glob(f"*{SEGMENT_SUFFIX}")]
    return sorted(found, key=lambda segment: (segment.number, segment.path))


def _number(path: Path) -> int:
    return int(path.stem) if path.stem.isdecimal() else -1


def _check_header(name: str, header: bytes) -> None:
    magic, order, version, record_bytes, _capacity, _pid = HEADER.unpack(header)
    if magic != MAGIC:
        raise NotATrace(f"{name} does not begin as a segment of TraceLens does")
    if order != BYTE_ORDER:
        raise NotATrace(f"{name} was written on a machine of another byte order: convert it there")
    check_version(version)
    if record_bytes != RECORD_BYTES:
        raise NotATrace(f"{name} has records of {record_bytes} bytes, expected {RECORD_BYTES}")

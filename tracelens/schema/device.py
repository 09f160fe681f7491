"""Device times of spans: records of their own, because a device tells its times later than the host.

Each names its span by an equal `request` (see `tracelens.schema.record`); here both come together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracelens.schema.record import TIMED_ON_DEVICE

if TYPE_CHECKING:
    from tracelens.schema.columns import Records

__all__ = ["OnDevice"]

Names = npt.NDArray[np.uint64]
_LOWER = np.uint64(48)
_MARK = np.uint64(TIMED_ON_DEVICE) >> _LOWER


@dataclass(frozen=True)
class OnDevice:
    """The device times of a process, sorted by the name of their span; `used`: it may have some."""

    used: bool
    names: Names
    begin: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]
    stream: npt.NDArray[np.uint16]

    @classmethod
    def of(cls, records: Records | None) -> OnDevice:
        """Read the records that are device times; those without a sense are passed over."""
        if records is None:
            none = np.empty(0, np.int64)
            return cls(False, none.astype(np.uint64), none, none, none.astype(np.uint16))
        length = records["end_ns"] - records["start_ns"]
        sound = (records["bytes"] >= 0) & (records["end_ns"] > 0) & (length >= 0)
        order = np.flatnonzero(sound)
        order = order[np.argsort(records["request"][order], kind="stable")]
        return cls(
            True,
            records["request"][order],
            records["bytes"][order],
            length[order],
            records["thread"][order],
        )

    def named_by(self, request: Names) -> npt.NDArray[np.bool_]:
        """Say which spans' requests name device times, also such as never came."""
        return np.asarray((request >> _LOWER == _MARK) & self.used)

    def columns(self, request: Names) -> dict[str, pa.Array[Any]]:
        """Return the columns of the spans with these requests; null where a span has none."""
        if not len(self.names):
            return {}
        at = np.minimum(np.searchsorted(self.names, request), len(self.names) - 1)
        missing = (self.names[at] != request) | ~self.named_by(request)
        return {
            "device_start_ns": pa.array(self.begin[at], mask=missing),
            "device_duration_ns": pa.array(self.length[at], mask=missing),
            "stream": pa.array(self.stream[at], mask=missing),
        }

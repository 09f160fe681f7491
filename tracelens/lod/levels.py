"""What most of each bin of time was, for one lane, from fine bins to coarse ones.

The time of every code in every finest bin is summed up exactly, also where spans overlap; a coarser
level adds neighbours up. A bin becomes the code with the most time, fainter if the lane was busy for a
part of the bin only (see `codes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from tracelens.lod.codes import BLANK, SHADE, SHADES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.lod.lanes import Bytes, Integers

Sums: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]  # whole ns: exact up to 2**53, 104 days

FEWEST_BINS: Final = 512  # nobody looks at a whole run on a narrower screen
SPANS_A_BIN: Final = 2.0  # of the finest level: below, the spans themselves are as quick to draw


@dataclass(frozen=True)
class Bins:
    """A level: bin i covers [origin + i * width, origin + (i + 1) * width)."""

    origin_ns: int
    width_ns: int
    count: int

    @classmethod
    def over(cls, start_ns: int, end_ns: int, width_ns: int) -> Bins:
        """Cover [start, end)."""
        return cls(start_ns, width_ns, max(1, -(-(end_ns - start_ns) // width_ns)))


def ladder(start_ns: int, end_ns: int, spans_a_lane: float) -> list[Bins]:
    """Choose the levels for a run, the finest first."""
    wanted = max(spans_a_lane / SPANS_A_BIN, FEWEST_BINS)
    return rungs(start_ns, end_ns, int((end_ns - start_ns) / wanted) + 1)


def rungs(start_ns: int, end_ns: int, finest_ns: int) -> list[Bins]:
    """Return the levels above, and with, the one whose bins are so wide."""
    found = [Bins.over(start_ns, end_ns, finest_ns)]
    while found[-1].count > FEWEST_BINS:
        found.append(Bins.over(start_ns, end_ns, 2 * found[-1].width_ns))
    return found


def build(starts: Integers, ends: Integers, codes: Bytes, ladder: list[Bins]) -> Iterator[Bytes]:
    """Yield a lane's row of each level; `ladder` holds neighbouring levels, the finest first.

    The lane's items have a length and lie within the bins; they may be in any order, and overlap.
    """
    present, sums = busy(starts, ends, codes, ladder[0])
    for rung in ladder:
        if rung is not ladder[0]:
            sums = _halved(sums)
        yield _coded(present, sums, rung.width_ns)


def busy(starts: Integers, ends: Integers, codes: Bytes, bins: Bins) -> tuple[Bytes, Sums]:
    """Sum up the time of each code in each bin: the codes that occur, and ns as [code, bin]."""
    present = np.flatnonzero(np.bincount(codes, minlength=SHADE)).astype(np.uint8)
    row = np.zeros(SHADE, np.int64)
    row[present] = bins.count * np.arange(len(present))
    of, size = row[codes], bins.count * len(present)
    start, end = starts - bins.origin_ns, ends - bins.origin_ns
    width = bins.width_ns
    first, last = start // width, (end - 1) // width
    head = np.minimum(end, (first + 1) * width) - start
    flat: Sums = np.bincount(first + of, weights=head, minlength=size).astype(np.float64)
    more = np.flatnonzero(last > first)
    first, last, of = first[more], last[more], of[more]
    tail = end[more] - last * width
    flat += np.bincount(last + of, weights=tail, minlength=size)
    sums = flat.reshape(len(present), bins.count)
    across = np.flatnonzero(last > first + 1)
    for index in np.unique(of[across]) // bins.count if len(across) else ():
        mine = across[of[across] == index * bins.count]
        sums[index] += _middles(first[mine] + 1, last[mine], bins)
    return present, sums


def _middles(begin: Integers, end: Integers, bins: Bins) -> Sums:
    """Sum up whole bins: those from `begin` up to, not including, `end`."""
    opened = np.bincount(begin, minlength=bins.count)
    closed = np.bincount(end, minlength=bins.count)
    return np.asarray(np.cumsum(opened - closed) * float(bins.width_ns))


def _halved(sums: Sums) -> Sums:
    """Add neighbouring bins up."""
    if sums.shape[1] % 2:
        sums = np.pad(sums, ((0, 0), (0, 1)))
    return np.asarray(sums[:, 0::2] + sums[:, 1::2])


def _coded(present: Bytes, sums: Sums, width_ns: int) -> Bytes:
    """Choose the code with the most time; of equals the first."""
    if not len(present):
        return np.full(sums.shape[1], BLANK, np.uint8)
    most, found = sums[0].copy(), np.full(sums.shape[1], present[0], np.uint8)
    for code, row in zip(present[1:], sums[1:], strict=True):
        found[row > most] = code
        np.maximum(most, row, out=most)
    total = sums.sum(axis=0)
    quarter = np.minimum(total * (SHADES / width_ns), SHADES - 1).astype(np.uint8)
    found |= (SHADES - 1 - quarter) * np.uint8(SHADE)
    found[total == 0] = BLANK
    return found

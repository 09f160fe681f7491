"""What was measured of all recorders, put together from the processes that measured it."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.recorders.by_hand import INLINE
from benchmarks.recorders.ours import MAIN, TraceLens

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.recorders.timing import Row

__all__ = ["Found", "Middle", "middle"]


class Middle(NamedTuple):
    """A median, and the interval that holds the true one in 95 % of cases, whatever the distribution."""

    value: float
    low: float
    high: float


def middle(values: Iterable[float]) -> Middle:
    """Return the median; its interval is between two of the sorted values (sign test)."""
    ordered = sorted(values)
    count = len(ordered)
    reach = math.ceil(0.98 * math.sqrt(count))
    low, high = max(count // 2 - reach, 0), min((count - 1) // 2 + reach, count - 1)
    return Middle(statistics.median(ordered), ordered[low], ordered[high])


@dataclass
class Found:
    """Rows of one backend, native or python, with the rounds of all its processes."""

    rows: list[Row]

    def add(self, rows: Iterable[Row]) -> None:
        """Add the rounds of another process."""
        known = {(row.recorder, row.arm, row.on): row for row in self.rows}
        for row in rows:
            known_row = known.get((row.recorder, row.arm, row.on))
            if known_row is None:
                self.rows.append(row)
            else:
                known_row.ns += row.ns

    def of(self, recorder: str, arm: str, *, on: bool = True) -> Row:
        """Find a row."""
        (match,) = (
            row for row in self.rows if (row.recorder, row.arm, row.on) == (recorder, arm, on)
        )
        return match

    def ours(self, *, on: bool) -> list[Row]:
        """List our own ways to record."""
        return [row for row in self.rows if row.recorder == TraceLens.name and row.on == on]

    def peers(self, *, on: bool) -> list[Row]:
        """List those of others, cheapest first."""
        rows = [
            row for row in self.rows if row.recorder not in {"", TraceLens.name} and row.on == on
        ]
        return sorted(rows, key=lambda row: statistics.median(row.ns))

    def to_inline(self, row: Row) -> Middle:
        """Compare with two clock reads and an append to a list, round by round."""
        return _ratio(row, self.of("", INLINE, on=row.on))

    def to_ours(self, row: Row) -> Middle:
        """Compare with our span with a value, recorded, round by round."""
        return _ratio(row, self.of(TraceLens.name, MAIN))


def _ratio(row: Row, other: Row) -> Middle:
    count = min(len(row.ns), len(other.ns))
    return middle(
        mine / theirs for mine, theirs in zip(row.ns[:count], other.ns[:count], strict=True)
    )

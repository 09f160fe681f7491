"""What stays of a recording of the last steps: whole steps, and as many as were asked for.

While it records, full segments with nothing of the last steps are removed, so that what is left begins
somewhere in a step, and a gap in the numbers of the segments is a gap in time. Whoever reads it cuts
that to the last steps before each moment at which they were to be kept, and before the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens.schema.columns import join, pick

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tracelens.schema.columns import Records
    from tracelens.schema.side import Definition, Kept

__all__ = ["Stretch", "cut_to_last", "past", "stretches"]


_STEP: Final = ("step", "step", "span")
_FIRST: Final = np.iinfo(np.int64).min
_FOREVER: Final = np.iinfo(np.int64).max


class Stretch(NamedTuple):
    """Records of the segments from `first` to `last`, without a gap; whether there is one after them."""

    records: Records
    first: int
    last: int
    gap_after: bool


def stretches(segments: Sequence[tuple[int, Records]]) -> list[Stretch]:
    """Put segments together that follow each other, by their numbers."""
    numbers = [number for number, _ in segments]
    begins = [at for at, number in enumerate(numbers) if at == 0 or number != numbers[at - 1] + 1]
    ends = [*begins[1:], len(segments)]
    return [
        Stretch(
            join([records for _, records in segments[begin:end]]),
            numbers[begin],
            numbers[end - 1],
            end < len(segments),
        )
        for begin, end in zip(begins, ends, strict=True)
    ]


def cut_to_last(
    found: Sequence[Stretch], last: int, kept: Sequence[Kept], definitions: Sequence[Definition]
) -> list[Records]:
    """Cut each stretch to its last whole steps before each moment of `kept` and before its end.

    Where there are not more steps than that, and no gap, all is left. A gap cuts off the step that it
    is in.
    """
    steps = _step_ids(definitions)
    return [_cut(stretch, last, _moments(stretch, kept), steps) for stretch in found]


def past(
    found: Sequence[Records], kept: Records, definitions: Sequence[Definition]
) -> list[tuple[int, int, int]]:
    """Return step, begin and end of the steps that are over and were cut off."""
    ids = _step_ids(definitions)
    stay = kept["start_ns"][np.isin(kept["definition"], ids)]
    rows = [records[np.isin(records["definition"], ids)] for records in found]
    return [
        (int(row["step"]), int(row["start_ns"]), abs(int(row["end_ns"])))
        for part in rows
        for row in part[~np.isin(part["start_ns"], stay) & (part["end_ns"] != 0)]
    ]


def _step_ids(definitions: Sequence[Definition]) -> NDArray[np.uint32]:
    named = [row.id for row in definitions if (row.name, row.kind, row.type) == _STEP]
    return np.array(named, np.uint32)


def _cut(
    stretch: Stretch, last: int, moments: Sequence[int], step_ids: NDArray[np.uint32]
) -> Records:
    records = stretch.records
    rows = records[np.isin(records["definition"], step_ids)]
    rows = rows[np.argsort(rows["start_ns"], kind="stable")]
    if not len(rows):
        return records
    until = _whole_until(records, rows) if stretch.gap_after else _FOREVER
    since = int(rows["start_ns"][0]) if stretch.first > 0 else _FIRST
    rows = rows[rows["start_ns"] < until]
    wanted = np.zeros(len(records), bool)
    for begin, end in _windows(rows, last, moments, since):
        wanted |= (records["start_ns"] >= begin) & (records["start_ns"] < min(end, until))
    return pick(records, np.flatnonzero(wanted))


def _moments(stretch: Stretch, kept: Sequence[Kept]) -> list[int]:
    """Say before which moments steps of this stretch were to be kept."""
    inside = [row.at_ns for row in kept if stretch.first <= row.segment <= stretch.last]
    return inside if stretch.gap_after and inside else [*inside, _FOREVER]


def _whole_until(records: Records, rows: Records) -> int:
    """When the step begins that the gap is in: the last, unless something began after it."""
    begin, end = int(rows["start_ns"][-1]), abs(int(rows["end_ns"][-1]))
    over = end != 0 and int(records["start_ns"].max()) > end
    return _FOREVER if over else begin


def _windows(
    rows: Records, last: int, moments: Sequence[int], since: int
) -> Iterator[tuple[int, int]]:
    """Say from when to when: the last steps that were over at each moment."""
    ends = np.abs(rows["end_ns"])
    for moment in moments:
        over = rows["start_ns"][(ends != 0) & (ends <= moment)]
        yield (int(over[-last]) if len(over) > last else since), moment

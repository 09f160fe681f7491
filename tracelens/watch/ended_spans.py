"""Steps and full collectives that have ended, kept until ranks are compared by them."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Indices, Ints

__all__ = ["EndedSpans", "match_spans"]

# spans: so many are only kept where another rank stands [policy]
MAX_KEPT: Final = 16_384


class EndedSpans(NamedTuple):
    """Steps of a rank, or its calls in a communicator, in the order in which they were read, [span].

    `numbers` are sequence numbers of calls; a step's number is the step. Times are of the rank's clock.
    """

    numbers: Ints
    steps: Ints
    start_ns: Ints
    end_ns: Ints

    @classmethod
    def empty(cls) -> EndedSpans:
        """Return no spans."""
        return cls(*(np.empty(0, np.int64) for _ in cls._fields))

    def joined_with(self, others: EndedSpans) -> EndedSpans:
        """Return these spans and later ones; of more than `MAX_KEPT` the last ones."""
        columns = zip(self, others, strict=True)
        return EndedSpans(*(np.concatenate(parts)[-MAX_KEPT:] for parts in columns))

    def from_step(self, first_step: int) -> EndedSpans:
        """Return the spans of a step and of later ones."""
        return self.pick(np.flatnonzero(self.steps >= first_step))

    def pick(self, rows: Indices) -> EndedSpans:
        """Return the spans in some rows."""
        return EndedSpans(*(column[rows] for column in self))


def match_spans(spans_by_rank: Sequence[EndedSpans]) -> EndedSpans:
    """Return the spans that all ranks have ended, by number; start and end are [span, rank].

    Of spans of a rank with one number the last one counts. Calls that ranks made in different steps are
    left out.

    Args:
        spans_by_rank: Steps, or calls of one communicator, [rank]; of two ranks at least.
    """
    numbers: Ints = reduce(np.intersect1d, [spans.numbers for spans in spans_by_rank])
    matched = []
    for spans in spans_by_rank:
        by_number = np.argsort(spans.numbers, kind="stable")
        stops = np.searchsorted(spans.numbers, numbers, "right", sorter=by_number)
        matched.append(spans.pick(by_number[stops - 1]))
    steps, start_ns, end_ns = (
        np.stack([getattr(spans, name) for spans in matched], axis=1)
        for name in ("steps", "start_ns", "end_ns")
    )
    is_of_one_step = (steps == steps[:, :1]).all(axis=1)
    return EndedSpans(numbers, steps[:, 0], start_ns, end_ns).pick(np.flatnonzero(is_of_one_step))

"""What of a recording's segments is not in its Arrow file yet, and its conversion to the end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.schema.columns import SLOT, join, pick
from tracelens.schema.conversion import BATCH_ROWS, Conversion, Given, Wants
from tracelens.schema.last_steps import cut_to_last, past, stretches
from tracelens.schema.side import Past, summed_up
from tracelens.schema.vocabulary import OUTDATED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracelens.schema.progress import Held, Progress
    from tracelens.schema.segment_files import Segment
    from tracelens.schema.side import SideTables

__all__ = ["convert_rest", "held_in", "with_counts"]

_CHUNK_ROWS: Final = BATCH_ROWS * 3 // 4  # some wait for the next chunk


def convert_rest(
    conversion: Conversion, segments: Iterable[Segment], progress: Progress, side: SideTables
) -> SideTables:
    """Convert all that is left in the segments of a recording that is over, or as if it were.

    Returns the side tables, with what was counted on the way.
    """
    conversion.learn(side.definitions, side.threads)
    current = Given.together(())
    gone: list[Past] = []
    for following in _chunks(conversion, segments, progress, side, gone):
        if len(current.records):
            conversion.feed(current, following.records, Wants())
        current = following
    conversion.feed(current, np.empty(0, SLOT), Wants(last=True))
    return with_counts(replace(side, past=(*side.past, *gone)), conversion)


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


def held_in(segment: Segment, held: Sequence[Held]) -> tuple[Given, list[Held]]:
    """Return what is now in slots of a segment that were held back; apart, those still not in use."""
    where = np.array([row.slot for row in held], np.intp)
    depth = np.array([row.depth for row in held], np.int64)
    slots = pick(segment.slots, where) if len(where) else segment.slots[:0]
    given = Given(slots, segment.origins(where), depth)
    used = slots["definition"] != 0
    free = [row for row, taken in zip(held, used.tolist(), strict=True) if not taken]
    return given.at(np.flatnonzero(used)), free


def _chunks(
    conversion: Conversion,
    segments: Iterable[Segment],
    progress: Progress,
    side: SideTables,
    gone: list[Past],
) -> Iterator[Given]:
    if side.retention.last is not None:
        yield _last_steps(conversion, segments, side.retention.last, side, gone)
        return
    parts: list[Given] = []
    for segment in segments:
        parts.append(_rest_of(segment, progress))
        if sum(len(part.records) for part in parts) >= _CHUNK_ROWS:
            yield Given.together(parts)
            parts = []
    yield Given.together(parts)


def _rest_of(segment: Segment, progress: Progress) -> Given:
    if segment.number >= progress.next or not progress.length:
        return segment.used()
    held = [row for row in progress.held if row.segment == segment.number]
    return held_in(segment, held)[0]


def _last_steps(
    conversion: Conversion,
    segments: Iterable[Segment],
    last: int,
    side: SideTables,
    gone: list[Past],
) -> Given:
    """Leave out what is older than the steps that were to be kept, and count it and its steps."""
    found = [(segment.number, segment.used().records) for segment in segments]
    kept = cut_to_last(stretches(found), last, side.kept, side.definitions)
    records = join(kept)
    gone += summed_up(past([part for _, part in found], records, side.definitions))
    conversion.lost[OUTDATED] += sum(len(part) for _, part in found) - len(records)
    return Given.new(records, np.zeros(len(records), np.int64))

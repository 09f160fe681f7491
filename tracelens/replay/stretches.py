"""What ranks do in one step of a replay: when each works, and when it waits or communicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.replay.model import Model

__all__ = ["Stretches"]

MIN_STRETCH_NS: Final = 1.0  # ns: shorter stretches come from rounding, and are dropped [chosen]


@dataclass(frozen=True, eq=False)
class Stretches:
    """Stretches of a step, rank by rank, each in order of time.

    `begin` and `end` are ns after the step before was over on all ranks; `works` is false where a rank
    waits or communicates.
    """

    rank: Ints
    begin: Floats
    end: Floats
    works: Flags

    @classmethod
    def of(cls, model: Model, times: Floats, lag: Floats, row: int) -> Self:
        """Find those of a step, a place in `Model.steps`, in a replay with some lags."""
        over = model.lengths(times).cumsum() + model.begin_ns
        origin = over[row - 1] if row else float(model.begin_ns)
        first = links = 0
        parts = []
        for rank, thread, rows in zip(model.ranks, model.threads, model.rows, strict=True):
            mine = np.flatnonzero(rows == row)
            begin, end = times[first + mine], times[first + mine + 1]
            worked = np.clip(begin + lag[links + mine], begin, end)
            edges = np.stack([begin, worked, end], axis=1) - origin
            parts.append(_joined(rank, edges))
            first, links = first + len(thread.moments), links + len(rows)
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _joined(rank: int, edges: Floats) -> tuple[Ints, Floats, Floats, Flags]:
    """Return a rank's stretches; `edges` are begin of work, its end, and the next begin, [row, 3]."""
    begin, end = edges[:, :2].ravel(), edges[:, 1:].ravel()
    works = np.tile([True, False], len(edges))
    there = end - begin > MIN_STRETCH_NS
    begin, end, works = begin[there], end[there], works[there]
    heads = np.flatnonzero(np.append(True, works[1:] != works[:-1])[: len(works)])
    tails = np.append(heads[1:], len(works))[: len(heads)] - 1
    return np.full(len(heads), rank), begin[heads], end[tails], works[heads]

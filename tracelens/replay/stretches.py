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
        links = np.flatnonzero(model.rows == row)
        moment = model.threads.sources[links]
        begin, end = times[moment], times[moment + 1]
        worked = np.clip(begin + lag[links], begin, end)
        edges = np.stack([begin, worked, end], axis=1) - origin
        return cls(*_join(np.array(model.ranks)[model.threads.owners[links]], edges))


def _join(rank: Ints, edges: Floats) -> tuple[Ints, Floats, Floats, Flags]:
    """Return stretches; `edges` are begin of work, its end, and the next begin, [row, 3]."""
    begin, end = edges[:, :2].ravel(), edges[:, 1:].ravel()
    works, rank = np.tile([True, False], len(edges)), np.repeat(rank, 2)
    is_long = end - begin > MIN_STRETCH_NS
    begin, end, works, rank = begin[is_long], end[is_long], works[is_long], rank[is_long]
    is_head = (works[1:] != works[:-1]) | (rank[1:] != rank[:-1])
    heads = np.flatnonzero(np.append(True, is_head)[: len(works)])
    tails = np.append(heads[1:], len(works))[: len(heads)] - 1
    return rank[heads], begin[heads], end[tails], works[heads]

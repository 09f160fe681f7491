"""What ranks do in one step of a replay: when each works, and when it waits or communicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.replay.event_graph import EventGraph

__all__ = ["Stretches"]

MIN_STRETCH_NS: Final = 1.0  # ns: shorter stretches come from rounding, and are dropped [chosen]


@dataclass(frozen=True, eq=False)
class Stretches:
    """Stretches of a step, rank by rank, each in order of time.

    `begin_ns` and `end_ns` are times after the step before was over on all ranks; `is_work` is false
    where a rank waits or communicates.
    """

    rank: Ints
    begin_ns: Floats
    end_ns: Floats
    is_work: Flags

    @classmethod
    def from_replay(cls, graph: EventGraph, times_ns: Floats, lag_ns: Floats, row: int) -> Self:
        """Return the stretches of a step, a row of `EventGraph.step_numbers`, in a replay.

        `times_ns` is when events occur in it, [event], and `lag_ns` the lag of each edge, [edge].
        """
        step_ends_ns = graph.measure_steps_ns(times_ns).cumsum() + graph.begin_ns
        origin_ns = step_ends_ns[row - 1] if row else float(graph.begin_ns)
        intervals = np.flatnonzero(graph.interval_step_rows == row)
        event = graph.threads.interval_begin_events[intervals]
        begin_ns, end_ns = times_ns[event], times_ns[event + 1]
        work_end_ns = np.clip(begin_ns + lag_ns[intervals], begin_ns, end_ns)
        bounds_ns = np.stack([begin_ns, work_end_ns, end_ns], axis=1) - origin_ns
        begin_ns, end_ns = bounds_ns[:, :2].ravel(), bounds_ns[:, 1:].ravel()
        is_long = end_ns - begin_ns > MIN_STRETCH_NS
        is_work = np.tile([True, False], len(intervals))[is_long]
        ranks = np.array(graph.ranks)[graph.threads.worker_of_interval[intervals]]
        rank, begin_ns, end_ns = np.repeat(ranks, 2)[is_long], begin_ns[is_long], end_ns[is_long]
        # Neighbours that are alike are one stretch.
        differs = (is_work[1:] != is_work[:-1]) | (rank[1:] != rank[:-1])
        heads = np.flatnonzero(np.append(True, differs)[: len(is_work)])
        tails = np.append(heads[1:], len(is_work))[: len(heads)] - 1
        return cls(
            rank=rank[heads], begin_ns=begin_ns[heads], end_ns=end_ns[tails], is_work=is_work[heads]
        )

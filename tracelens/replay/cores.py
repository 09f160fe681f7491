"""What ranks of a host would do at the same time with edits, beyond the cores that they share.

A replay takes work to last as long as it did. If ranks compute at the same time that did so one after
the other, and share fewer cores, each gets less of a core. Work for which there is no core at a time has
to be done at another: all of it, spread over these cores, is what the run takes longer at least.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

import numpy as np
import polars as pl

from tracelens.accounting.core_waits import measure_ready_shares
from tracelens.accounting.shared_cores import find_shared_cores

if TYPE_CHECKING:
    from tracelens.accounting.shared_cores import SharedCores
    from tracelens.arrays import Floats
    from tracelens.replay.edits.variant import Variant
    from tracelens.replay.event_graph import EventGraph

__all__ = ["CoreShortage"]


@dataclass(frozen=True)
class CoreShortage:
    """How many ranks share how many cores of a host, and how much longer the run is for it, ns."""

    rank_count: int
    core_count: float
    delay_ns: float

    @classmethod
    def from_replay(cls, variant: Variant, times_ns: Floats) -> Self | None:
        """Return the longest shortage of a host, by replayed times, ns, [event]; None if unknown."""
        graph, shortages = variant.graph, []
        hosts = find_shared_cores(graph.trace)
        core_share = _measure_core_share(graph) if hosts else np.ones(0)  # [worker]
        for host in hosts:
            measure = partial(_measure_unserved_work, graph, host, core_share)
            recorded_ns = measure(graph.baseline_times_ns, graph.explained_lag_ns)
            edited_ns = measure(times_ns, variant.explained_lag_ns)
            shortages.append(
                cls(
                    host.rank_count,
                    host.core_count,
                    delay_ns=(edited_ns - recorded_ns) / host.core_count,
                )
            )
        longest = max(shortages, key=lambda shortage: shortage.delay_ns, default=None)
        return longest if longest and longest.delay_ns > 0 else None

    @property
    def sentence(self) -> str:
        """Why a saving is not sure, as a clause."""
        cores = f"{self.core_count:.3g} core{'s' * (self.core_count != 1)}"
        return f"{self.rank_count} ranks share {cores}, and would do more at the same time"


def _measure_core_share(graph: EventGraph) -> Floats:
    """Return the share of a core that each worker takes while it works, [worker]; 1 if not read."""
    threads = graph.threads
    length_ns = threads.sum_intervals_by_worker(threads.interval_lengths_ns.astype(np.float64))
    interval_lag_ns = graph.explained_lag_ns[: len(threads.interval_begin_events)]
    work_ns = threads.sum_intervals_by_worker(interval_lag_ns)
    ready_share_of_rank = measure_ready_shares(graph.trace)
    ready_ns = np.array([ready_share_of_rank.get(rank, 1.0) for rank in graph.ranks]) * length_ns
    return np.minimum(ready_ns / np.maximum(work_ns, 1.0), 1.0)


def _measure_unserved_work(
    graph: EventGraph, host: SharedCores, core_share: Floats, times_ns: Floats, lag_ns: Floats
) -> float:
    """Return the work of a host's ranks at times when it has no core for them, ns of a core.

    `core_share` is what each worker takes while it works, [worker]; `times_ns` is when events occur,
    [event]. Threads work for `lag_ns` after their events, [edge]: those of intervals come first. A
    server is at work while it serves, on one core.
    """
    threads = graph.threads
    intervals = np.flatnonzero(np.isin(threads.worker_of_interval, host.worker_rows))
    work_begin_ns = times_ns[threads.interval_begin_events[intervals]]
    begins_ns, ends_ns = [work_begin_ns], [work_begin_ns + lag_ns[intervals]]
    core_counts = [core_share[threads.worker_of_interval[intervals]]]  # of each stretch of work
    shards = graph.trace.shards.select(pl.coalesce("shard", "rank")).to_series().to_numpy()
    for shard in shards[host.shard_rows]:
        services = np.flatnonzero((graph.requests.services["server"] == shard).to_numpy())
        begin_event = graph.first_service_event + 2 * services
        begin_ns, end_ns = times_ns[begin_event], times_ns[begin_event + 1]
        order = np.argsort(begin_ns, kind="stable")
        busy_until_ns = np.maximum.accumulate(end_ns[order])
        begins_ns.append(np.maximum(begin_ns[order], np.append(-np.inf, busy_until_ns[:-1])))
        ends_ns.append(np.maximum(busy_until_ns, begins_ns[-1]))
        core_counts.append(np.ones(len(services)))
    bounds_ns, cores = np.concatenate(begins_ns + ends_ns), np.concatenate(core_counts)
    order = np.argsort(bounds_ns, kind="stable")
    needed_cores = np.cumsum(np.concatenate([cores, -cores])[order])[:-1]
    missing_cores = np.maximum(needed_cores - host.core_count, 0.0)
    return float((missing_cores * np.diff(bounds_ns[order])).sum())

"""What ranks of a host would do at the same time with edits, beyond the cores that they share.

A replay takes work to last as long as it did. If ranks compute at the same time who did so one after the
other, and share fewer cores, each gets less of a core. Work for which there is no core at a time has to
be done at another: all of it, spread over these cores, is what the run takes longer at least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import polars as pl

from tracelens.accounting.core_waits import measure_ready_shares
from tracelens.accounting.shared_cores import find_shared_cores

if TYPE_CHECKING:
    from tracelens.accounting.shared_cores import SharedCores
    from tracelens.arrays import Floats
    from tracelens.replay.edits.changed import Changed
    from tracelens.replay.model import Model

__all__ = ["CoreShortage"]


@dataclass(frozen=True)
class CoreShortage:
    """How many ranks share how many cores, and how much longer the run is for it, ns."""

    ranks: int
    cores: float
    delay_ns: float

    @classmethod
    def find(cls, changed: Changed, times: Floats) -> Self | None:
        """Return that of the host with the longest delay; None where cores are not short, or not known.

        Args:
            changed: The run with changes.
            times: When its moments come then, ns.
        """
        model = changed.model
        hosts = find_shared_cores(model.trace)
        demand = _measure_demand(model) if hosts else np.ones(0)
        shortages = []
        for host in hosts:
            before_ns, after_ns = (
                _measure_unserved_work(model, host, demand, *state)
                for state in ((model.usual, model.known_lags), (times, changed.known_lags))
            )
            delay_ns = (after_ns - before_ns) / host.cores
            shortages.append(cls(host.ranks, host.cores, delay_ns))
        longest = max(shortages, key=lambda one: one.delay_ns, default=None)
        return longest if longest and longest.delay_ns > 0 else None

    @property
    def sentence(self) -> str:
        """Why a saving is not sure, as a clause."""
        cores = f"{self.cores:.3g} core{'s' * (self.cores != 1)}"
        return f"{self.ranks} ranks share {cores}, and would do more at the same time"


def _measure_demand(model: Model) -> Floats:
    """Return how much of a core each worker takes while it works; 1 where that was not read."""
    threads = model.threads
    lasted_ns = threads.sum_by_thread(
        np.diff(threads.positions)[threads.sources].astype(np.float64)
    )
    worked_ns = threads.sum_by_thread(model.known_lags[: len(threads.sources)])
    ready = measure_ready_shares(model.trace)
    ready_ns = np.array([ready.get(rank, 1.0) for rank in model.ranks]) * lasted_ns
    return np.minimum(ready_ns / np.maximum(worked_ns, 1.0), 1.0)


def _measure_unserved_work(
    model: Model, host: SharedCores, demand: Floats, times: Floats, lags: Floats
) -> float:
    """Return the work of a host's ranks at times for which it has no core then, ns of a core.

    Args:
        model: The run.
        host: Its ranks and cores; a server is at work while it serves.
        demand: How much of a core each worker takes while it works.
        times: When moments come, ns.
        lags: For how long threads work after their moments, ns, [link]; other links follow these.
    """
    threads = model.threads
    rows = np.flatnonzero(np.isin(threads.owners, host.workers))
    begins, needs = [times[threads.sources[rows]]], [demand[threads.owners[rows]]]
    ends = [begins[0] + lags[rows]]
    shards = model.trace.shards.select(pl.coalesce("shard", "rank")).to_series().to_numpy()
    for shard in shards[host.shards]:
        services = np.flatnonzero((model.requests.served["server"] == shard).to_numpy())
        begin, end = (times[model.requests_at + 2 * services + side] for side in (0, 1))
        order = np.argsort(begin, kind="stable")
        reached = np.maximum.accumulate(end[order])
        begins.append(np.maximum(begin[order], np.append(-np.inf, reached[:-1])))
        ends.append(np.maximum(reached, begins[-1]))
        needs.append(np.ones(len(services)))
    edges, change = np.concatenate(begins + ends), np.concatenate(needs)
    order = np.argsort(edges, kind="stable")
    taken = np.cumsum(np.concatenate([change, -change])[order])[:-1]
    return float((np.maximum(taken - host.cores, 0.0) * np.diff(edges[order])).sum())

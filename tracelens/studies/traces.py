"""What a study measures of a trace: how long the fullest server is at work, and how much is hidden."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracelens.accounting import phases
from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.accounting.phases import job_ns
from tracelens.analyses.servers.utilisation import list_services
from tracelens.errors import UnusableInput

if TYPE_CHECKING:
    from tracelens.arrays import Ints
    from tracelens.model.trace import Trace


@dataclass(frozen=True)
class ServerLoad:
    """Shares of the time of a run with parameter servers.

    `fullest_shard` is the server that moves most bytes, `busy_share` how long it sends or receives, and
    `waiting_share` how long workers, on average, neither load data nor compute.
    """

    fullest_shard: int
    busy_share: float
    waiting_share: float

    @property
    def hidden_share(self) -> float:
        """What share of the fullest server's work goes on while workers compute, at the least."""
        return max(1 - self.waiting_share / self.busy_share, 0.0) if self.busy_share else 0.0


def measure_server_load(trace: Trace) -> ServerLoad:
    """Measure how long the fullest server is at work, and how long workers wait.

    Raises:
        UnusableInput: its servers recorded no transfer, or its workers no step.
    """
    transfers = list_services(trace).filter(pl.col("op").is_in(["receive", "reply"]))
    if transfers.is_empty() or trace.steps.is_empty():
        raise UnusableInput(
            "This run has no transfers of parameter servers, or no steps: expected one whose servers "
            "record what they receive and reply ('tracelens info' says what there is)."
        )
    shards = transfers.group_by("shard").agg(pl.col("bytes").sum(), pl.len()).sort("bytes", "len")
    fullest_shard = int(shards["shard"][-1])
    own_transfers = transfers.filter(pl.col("shard") == fullest_shard).sort("start_ns")
    begin_ns, end_ns = (own_transfers[name].to_numpy() for name in ("start_ns", "end_ns"))
    busy_ns = _measure_union_ns(begin_ns, end_ns)
    job_length_ns, worker_count = job_ns(trace), trace.steps["process"].n_unique()
    total_computing_ns = float(phases.run(trace).sum_ns_by_window(*OWN_CATEGORIES).sum())
    computing_share = total_computing_ns / (job_length_ns * worker_count)
    return ServerLoad(fullest_shard, busy_ns / job_length_ns, 1 - computing_share)


def _measure_union_ns(begin_ns: Ints, end_ns: Ints) -> float:
    """Measure the time that is in at least one of some intervals, sorted by begin."""
    latest_end_ns = np.maximum.accumulate(end_ns)
    previous_end_ns = np.concatenate([begin_ns[:1], latest_end_ns[:-1]])
    return float(np.maximum(latest_end_ns - np.maximum(begin_ns, previous_end_ns), 0).sum())

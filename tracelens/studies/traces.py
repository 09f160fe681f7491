"""What a study measures of a trace: how long the fullest server is at work, and how much is hidden."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracelens.accounting import phases
from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.accounting.phases import job_ns
from tracelens.analyses.servers.utilisation import served_requests
from tracelens.errors import UnusableInput

if TYPE_CHECKING:
    from tracelens.arrays import Ints
    from tracelens.model.trace import Trace


@dataclass(frozen=True)
class Served:
    """Of a run with parameter servers: in what shares of a step what happens.

    `hot` is the server that moves most bytes, `busy` how long it sends or receives, and `waiting` how
    long workers, on average, neither load data nor compute.
    """

    hot: int
    busy: float
    waiting: float

    @property
    def hidden_share(self) -> float:
        """What share of the fullest server's work goes on while workers compute, at the least."""
        return max(1 - self.waiting / self.busy, 0.0) if self.busy else 0.0


def served(trace: Trace) -> Served:
    """Measure a trace.

    Raises:
        UnusableInput: its servers recorded no transfer, or its workers no step.
    """
    transfers = served_requests(trace).filter(pl.col("op").is_in(["receive", "reply"]))
    if transfers.is_empty() or trace.steps.is_empty():
        raise UnusableInput(
            "This run has no transfers of parameter servers, or no steps: expected one whose servers "
            "record what they receive and reply ('tracelens info' says what there is)."
        )
    sums = transfers.group_by("shard").agg(pl.col("bytes").sum(), pl.len()).sort("bytes", "len")
    hot = int(sums["shard"][-1])
    hot_requests = transfers.filter(pl.col("shard") == hot).sort("start_ns")
    job_length_ns = job_ns(trace)
    return Served(
        hot,
        _measure_union(hot_requests["start_ns"].to_numpy(), hot_requests["end_ns"].to_numpy())
        / job_length_ns,
        1 - _measure_computing(trace) / (job_length_ns * trace.steps["process"].n_unique()),
    )


def _measure_union(begin_ns: Ints, end_ns: Ints) -> float:
    """Measure the union of intervals that are sorted by begin, ns."""
    reached_ns = np.maximum.accumulate(end_ns)
    before_ns = np.concatenate([begin_ns[:1], reached_ns[:-1]])
    return float(np.maximum(reached_ns - np.maximum(begin_ns, before_ns), 0).sum())


def _measure_computing(trace: Trace) -> float:
    """Sum up the time in which workers load data or compute, ns."""
    return float(phases.run(trace).sum_time(*OWN_CATEGORIES).sum())

"""What parameter servers did in each step, and how long it takes with other processors, links, loads.

Where all workers go through alike rounds of pushes and pulls, these are replayed
(`parameter_servers.py`). Else (asynchronous, or with requests that overlap in ways of their own) an
exchange is taken to last as long as its busiest shard works, and what workers give to the servers to
shrink with that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.replay.parameter_servers import Change, Rounds
from tracelens.stats.robust import bootstrap_interval

if TYPE_CHECKING:
    from tracelens.arrays import Floats

__all__ = ["Exchange"]

SUMS: Final = ("cpu", "wire", "received", "push_window", "pull_window")


@dataclass(frozen=True)
class Exchange:
    """What shards did, [step, shard], nanoseconds; `exposed` is what a worker gave them, [step].

    `moved` are the bytes of all workers by shard, `hosts` the shards' machines.
    """

    shards: tuple[int, ...]
    hosts: tuple[str, ...]
    cpu: Floats
    wire: Floats
    received: Floats
    push_window: Floats
    pull_window: Floats
    exposed: Floats
    moved: Floats
    job_ns: float
    rounds: Rounds | None

    @classmethod
    def of(
        cls, sums: pl.DataFrame, exposed: pl.DataFrame, loads: pl.DataFrame, rounds: Rounds | None
    ) -> Exchange:
        """Put sums by shard and step into matrices; `exposed` is by step."""
        steps, shards = exposed["step"].sort(), loads["shard"]
        known = pl.col("step").is_in(steps.implode()) & pl.col("shard").is_in(shards.implode())
        sums = sums.filter(known)
        cells = (
            steps.search_sorted(sums["step"]).to_numpy(),
            shards.search_sorted(sums["shard"]).to_numpy(),
        )
        matrices = {name: np.zeros((len(steps), len(shards))) for name in SUMS}
        for name, matrix in matrices.items():
            matrix[cells] = sums[name].to_numpy()
        return cls(
            shards=tuple(shards.to_list()),
            hosts=tuple(loads["host"].fill_null("").to_list()),
            exposed=exposed.sort("step")["exposed"].to_numpy().astype(np.float64),
            moved=loads["bytes"].to_numpy().astype(np.float64),
            job_ns=float(exposed["total"].sum()) or 1.0,
            rounds=rounds,
            **matrices,
        )

    def change(
        self, columns: list[int], cpu: Floats | float = 1.0, wire: Floats | float = 1.0
    ) -> Change:
        """Return a change of some shards, by their columns."""
        change = Change.none(len(self.shards))
        change.cpu[columns], change.wire[columns] = cpu, wire
        return change

    def loaded(self, then: Floats) -> Change:
        """Return what other bytes by shard, in place of `moved`, change for processors and links.

        What a shard is rid of was as dear as the rest of its bytes; what it gets is as dear as bytes are
        on all shards together, for part of what few bytes cost is not for their number.
        """
        change = Change.none(len(self.shards))
        now, more = np.maximum(self.moved, 1), np.maximum(then - self.moved, 0)
        for factors, work in ((change.cpu, self.cpu), (change.wire, self.wire)):
            own = np.maximum(work.sum(axis=0), 1)
            added = 1 + more * own.sum() / now.sum() / own
            factors[:] = np.where(more > 0, np.minimum(added, then / now), then / now)
        return change

    def saving(self, change: Change) -> tuple[float, tuple[float, float]]:
        """Return what share of the job a change saves, and its 95 % interval."""
        lost, whole = self._lost(change)
        share = float(np.clip(lost.sum() / whole, 0, self.exposed.sum() / self.job_ns))
        low, high = bootstrap_interval(lost, whole)
        return share, (min(max(low, 0.0), share), max(high, share))

    def _lost(self, change: Change) -> tuple[Floats, float]:
        """Return what each part of the run loses, and how long all of them take."""
        if self.rounds is not None and self.rounds.length_ns > 0:
            return self.rounds.lost(change), self.rounds.length_ns
        pace = np.where(np.isnan(change.ns_per_byte), change.wire, 1.0)
        usual = (self.cpu + self.wire).max(axis=1)
        mended = (self.cpu * change.cpu + self.wire * pace).max(axis=1)
        shrinks = np.where(usual > 0, 1 - mended / np.maximum(usual, 1), 0.0)
        return self.exposed * np.maximum(shrinks, 0), self.job_ns

"""What parameter servers did in each step, and how long it takes with other processors, links, loads.

Where all workers go through alike rounds of pushes and pulls, these are replayed
(`parameter_servers.py`). Else (asynchronous, or with requests that overlap in ways of their own) what
workers give to the servers shrinks by the part of the time with open requests in which the busiest shard
would no longer be at work; what other loads would save is not known there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.replay.parameter_servers import Change, Rounds
from tracelens.stats.robust import bootstrap_interval

if TYPE_CHECKING:
    from tracelens.arrays import Floats

__all__ = ["Exchange"]

SUMS: Final = ("cpu", "wire", "received", "push_window", "pull_window", "open")


@dataclass(frozen=True, eq=False)
class Exchange:
    """What shards did, [step, shard], nanoseconds; `exposed` is what a worker gave them, [step].

    `moved` are the bytes of all workers by shard, None where requests do not tell; `hosts` are the
    shards' machines. `message_ns` is what a push, and a reply, takes however few its bytes, and
    `message_share` what that is of the links' work.
    """

    shards: tuple[int, ...]
    hosts: tuple[str, ...]
    cpu: Floats
    wire: Floats
    received: Floats
    push_window: Floats
    pull_window: Floats
    open: Floats
    exposed: Floats
    moved: Floats | None
    job_ns: float
    rounds: Rounds | None
    message_ns: tuple[float, float] = (0.0, 0.0)
    message_share: float = 0.0

    @classmethod
    def of(
        cls,
        sums: pl.DataFrame,
        exposed: pl.DataFrame,
        loads: pl.DataFrame,
        rounds: Rounds | None,
        job_ns: float,
    ) -> Exchange:
        """Put sums by shard and step into matrices; `exposed` is by step."""
        steps, shards = exposed["step"].sort(), loads["shard"]
        known = pl.col("step").is_in(steps.implode()) & pl.col("shard").is_in(shards.implode())
        sums = sums.filter(known)
        cells = (
            steps.search_sorted(sums["step"]).to_numpy(),
            shards.search_sorted(sums["shard"]).to_numpy(),
        )
        matrices: dict[str, Any] = {name: np.zeros((len(steps), len(shards))) for name in SUMS}
        for name, matrix in matrices.items():
            matrix[cells] = sums[name].to_numpy()
        return cls(
            shards=tuple(shards.to_list()),
            hosts=tuple(loads["host"].fill_null("").to_list()),
            exposed=exposed.sort("step")["exposed"].to_numpy().astype(np.float64),
            moved=None
            if loads["bytes"].null_count()
            else loads["bytes"].to_numpy().astype(np.float64),
            job_ns=job_ns or 1.0,
            rounds=rounds,
            **matrices,
        )

    def change(
        self, columns: list[int], cpu: Floats | float = 1.0, wire: Floats | float = 1.0
    ) -> Change:
        """Return a change of some shards, by their columns."""
        change = self._unchanged()
        change.cpu[columns], change.wire[columns] = cpu, wire
        return change

    def fused(self, messages: float) -> Change:
        """Return a change that sends so many times as many messages, of the same bytes in all."""
        return replace(self._unchanged(), messages=messages)

    def _unchanged(self) -> Change:
        none = Change.none(len(self.shards))
        return replace(none, message_ns=self.message_ns, message_share=self.message_share)

    def loaded(self, moved: Floats, then: Floats) -> Change:
        """Return what other bytes by shard, in place of those `moved`, change for processors and links.

        What a shard is rid of was as dear as the rest of its bytes; what it gets is as dear as bytes are
        on all shards together, for part of what few bytes cost is not for their number.
        """
        change = self._unchanged()
        now, more = np.maximum(moved, 1), np.maximum(then - moved, 0)
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
        if self.rounds is not None:
            return self.rounds.lost(change), self.rounds.length_ns
        fixed = change.message_share
        links = fixed * change.messages + (1 - fixed) * change.wire
        pace = np.where(np.isnan(change.ns_per_byte), links, 1.0)
        usual = (self.cpu + self.wire).max(axis=1)
        fixed = (self.cpu * change.cpu + self.wire * pace).max(axis=1)
        shrinks = np.clip((usual - fixed) / np.maximum(self.open.max(axis=1), 1), 0.0, 1.0)
        return self.exposed * shrinks, self.job_ns

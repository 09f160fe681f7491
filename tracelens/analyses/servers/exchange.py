"""What parameter servers did in each step, as matrices, and what of the workers' time went to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.accounting.phases import Phases
    from tracelens.analyses.servers.utilisation import Goodput
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.replay.windows import WindowedReplay

__all__ = ["Exchange"]

_TIMES: Final = ("cpu", "wire", "received", "push_window", "pull_window")


@dataclass(frozen=True, eq=False)
class Exchange:
    """What shards did, ns, [step, shard]; `exposed` is what a worker gave them, [step].

    `moved` are the bytes of all workers by shard, None where requests do not tell; `hosts` are the
    shards' machines, `links` the goodputs of their links, None where too little was received. The
    `replay` of the run prices changes of them.
    """

    shards: tuple[int, ...]
    hosts: tuple[str, ...]
    steps: Ints
    cpu: Floats
    wire: Floats
    received: Floats
    push_window: Floats
    pull_window: Floats
    exposed: Floats
    moved: Floats | None
    job_ns: float
    links: tuple[Goodput | None, ...]
    replay: WindowedReplay

    @classmethod
    def from_sums(
        cls,
        sums: pl.DataFrame,
        phases: Phases,
        loads: pl.DataFrame,
        *,
        job_ns: float,
        goodput: Mapping[int, Goodput],
        replay: WindowedReplay,
    ) -> Exchange:
        """Put sums by shard and step into matrices."""
        workers = phases.by_step(phases.there)
        there = workers > 0
        steps, shards, moved = phases.steps[there], loads["shard"], loads["bytes"]
        known = sums.filter(pl.col("step").is_in(steps))
        row, column = np.searchsorted(steps, known["step"]), shards.search_sorted(known["shard"])
        matrices = np.zeros((len(_TIMES), len(steps), len(shards)))
        matrices[:, row, column] = known.select(_TIMES).to_numpy().T
        times: dict[str, Any] = dict(zip(_TIMES, matrices, strict=True))
        return cls(
            shards=tuple(shards.to_list()),
            hosts=tuple(loads["host"].fill_null("").to_list()),
            steps=steps,
            exposed=phases.by_step(phases.of("ps_queue", "transfer"))[there] / workers[there],
            moved=None if moved.null_count() else moved.to_numpy().astype(np.float64),
            job_ns=job_ns or 1.0,
            links=tuple(map(goodput.get, shards)),
            replay=replay,
            **times,
        )

    def hosts_of(self, columns: list[int]) -> tuple[str, ...]:
        """Return the machines of some shards, by their columns, each once."""
        return tuple(dict.fromkeys(self.hosts[column] for column in columns))

    @property
    def sees_receives(self) -> Flags:
        """Which shards recorded when they received pushes, [shard]."""
        return np.asarray(self.received.any(axis=0))

    def busy_shares(self) -> tuple[Floats, Floats]:
        """Return in what share of their windows processors, and links, are at work, [shard].

        nan where that was not recorded.
        """
        push, pull = self.push_window.sum(axis=0), self.pull_window.sum(axis=0)
        cpu = np.where(push > 0, self.cpu.sum(axis=0) / np.maximum(push, 1), np.nan)
        wire = self.wire.sum(axis=0) / np.maximum(push + pull, 1)
        return cpu, np.where(self.sees_receives, wire, np.nan)

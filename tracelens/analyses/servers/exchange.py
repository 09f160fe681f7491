"""What parameter servers did in each step, as matrices, and what of the workers' time went to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from tracelens.arrays import Floats, Ints

__all__ = ["Exchange"]

_TIMES: Final = ("cpu", "wire", "received", "push_window", "pull_window")


@dataclass(frozen=True, eq=False)
class Exchange:
    """What shards did, ns, [step, shard]; `exposed` is what a worker gave them, [step].

    `moved` are the bytes of all workers by shard, None where requests do not tell; `hosts` are the
    shards' machines. `message_ns` is what a push, and a reply, takes however few its bytes, and
    `message_share` what that is of the links' work.
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
    message_ns: tuple[float, float] = (0.0, 0.0)
    message_share: float = 0.0

    @classmethod
    def from_sums(
        cls,
        sums: pl.DataFrame,
        exposed: pl.DataFrame,
        loads: pl.DataFrame,
        job_ns: float,
        message_costs: tuple[tuple[float, float], float],
    ) -> Exchange:
        """Put sums by shard and step into matrices; `exposed` is by step."""
        steps, shards = exposed["step"].sort(), loads["shard"]
        known = pl.col("step").is_in(steps.implode()) & pl.col("shard").is_in(shards.implode())
        sums = sums.filter(known)
        cells = (
            steps.search_sorted(sums["step"]).to_numpy(),
            shards.search_sorted(sums["shard"]).to_numpy(),
        )
        matrices: dict[str, Any] = {name: np.zeros((len(steps), len(shards))) for name in _TIMES}
        for name, matrix in matrices.items():
            matrix[cells] = sums[name].to_numpy()
        return cls(
            shards=tuple(shards.to_list()),
            hosts=tuple(loads["host"].fill_null("").to_list()),
            steps=steps.to_numpy().astype(np.int64),
            exposed=exposed.sort("step")["exposed"].to_numpy().astype(np.float64),
            moved=None
            if loads["bytes"].null_count()
            else loads["bytes"].to_numpy().astype(np.float64),
            job_ns=job_ns or 1.0,
            message_ns=message_costs[0],
            message_share=message_costs[1],
            **matrices,
        )

    def hosts_of(self, columns: list[int]) -> tuple[str, ...]:
        """Return the machines of some shards, by their columns, each once."""
        return tuple(dict.fromkeys(self.hosts[column] for column in columns))

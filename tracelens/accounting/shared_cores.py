"""Which ranks share cores: those of one host that may use fewer cores than there are of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.arrays import Ints
    from tracelens.model.trace import Trace

# number: a recording that names a higher core is damaged; Linux counts up to 8192 [policy]
MAX_CORE_NUMBER: Final = 1 << 16


@dataclass(frozen=True, eq=False)
class SharedCores:
    """Ranks of a host, by their rows in `Trace.workers` and `Trace.shards`, and their cores."""

    worker_rows: Ints
    shard_rows: Ints
    core_count: float  # a quota may be a fraction

    @property
    def rank_count(self) -> int:
        """How many ranks share the cores."""
        return len(self.worker_rows) + len(self.shard_rows)


def find_shared_cores(trace: Trace) -> list[SharedCores]:
    """Return the hosts with more ranks than cores for them, as far as the cores were recorded."""
    tables = [table.with_row_index("row") for table in (trace.workers, trace.shards)]
    ranks_with_cores = pl.concat(tables).drop_nulls("cores").filter(pl.col("host") != "")
    hosts = []
    for host_ranks in ranks_with_cores.partition_by("host", maintain_order=True):
        worker_rows, shard_rows = (
            host_ranks.filter(role=role)["row"].to_numpy().astype(np.int64)
            for role in ("worker", "ps")
        )
        core_count = _count_cores(host_ranks.select("cores", "core_quota").iter_rows())
        hosts.append(SharedCores(worker_rows, shard_rows, core_count))
    return [host for host in hosts if 0 < host.core_count < host.rank_count]


def _count_cores(limits: Iterable[tuple[str, float | None]]) -> float:
    """Count how many cores processes may use together; 0 where that is not known.

    `limits` are the cores on which each may run, and how many cores' time it may use. Processes that may
    run on the same cores are taken to have the same quota.
    """
    core_count_by_set: dict[frozenset[int], float] = {}
    for core_list, quota in limits:
        cores = _parse_core_list(core_list)
        core_count_by_set[cores] = len(cores) if quota is None else min(len(cores), quota)
    return min(float(len(frozenset().union(*core_count_by_set))), sum(core_count_by_set.values()))


def _parse_core_list(core_list: str) -> frozenset[int]:
    """Return the numbers of cores in a list such as ``0-3,8``; nothing for another form."""
    numbers: set[int] = set()
    for core_range in core_list.split(","):
        first_core, _, last_core = core_range.partition("-")
        if not first_core.isdecimal() or not (last_core or first_core).isdecimal():
            return frozenset()
        if int(last_core or first_core) > MAX_CORE_NUMBER:
            return frozenset()
        numbers.update(range(int(first_core), int(last_core or first_core) + 1))
    return frozenset(numbers)

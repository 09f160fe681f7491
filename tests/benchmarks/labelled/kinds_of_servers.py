"""Kinds of run with parameter servers, or with a master that averages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from benchmarks.labelled import servers
from benchmarks.labelled.kinds_of_ranks import pick
from benchmarks.labelled.label import Label

if TYPE_CHECKING:
    from benchmarks.labelled.elastic import Elastic
    from benchmarks.labelled.setting import Setting


def _one_shard(setting: Setting) -> int:
    return int(setting.stream("shard").integers(servers.SHARDS))


def hot(setting: Setting, work: servers.Servers) -> Label:
    """Give one shard more than half of the bytes."""
    shard = _one_shard(setting)
    share = np.full(servers.SHARDS, 0.15)
    share[shard] = 0.55
    work.place(share)
    return Label("ps_hot_shard", shards=(shard,))


def cpu_bound(setting: Setting, work: servers.Servers) -> Label:
    """Slow one shard's processor."""
    shard = _one_shard(setting)
    work.cpu[shard] *= 30
    return Label("ps_cpu_bound", shards=(shard,))


def network_bound(_setting: Setting, work: servers.Servers) -> Label:
    """Slow all shards' links alike: nothing in the run says that they could be faster."""
    work.wire *= 6
    shards = tuple(range(servers.SHARDS))
    return Label("ps_network_bound", shards=shards, anyone=True, opportunity=True)


def incast(_setting: Setting, work: servers.Servers) -> Label:
    """Let the wires collapse when many push at once."""
    work.collapse = 6.0
    return Label("ps_incast", shards=tuple(range(servers.SHARDS)), anyone=True)


def slow_worker(setting: Setting, work: servers.Servers) -> Label:
    """Slow one worker."""
    chosen = pick(setting)
    for name in ("forward", "backprop"):
        work.phases[name][:, chosen] *= 1.3
    return Label("straggler", ranks=tuple(chosen), phases=("forward", "backprop"))


def stale(setting: Setting, work: Elastic) -> Label:
    """Make one worker take twice as long as the others."""
    chosen = pick(setting)
    for values in work.phases.values():
        values[:, chosen] *= 2.0
    return Label("stale_worker", ranks=tuple(chosen))

"""Kinds of run with parameter servers, or with a master that averages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from benchmarks.labelled import servers
from benchmarks.labelled.kinds_of_ranks import pick
from benchmarks.labelled.label import Label

if TYPE_CHECKING:
    from benchmarks.labelled.elastic import Elastic
    from benchmarks.labelled.setting import Setting


def _one_shard(setting: Setting) -> int:
    return int(setting.stream("shard").integers(servers.SHARDS))


def nothing(_setting: Setting, _work: servers.Servers, _strength: float) -> Label:
    """Plant nothing."""
    return Label()


def hot(setting: Setting, work: servers.Servers, strength: float) -> Label:
    """Give one shard more than half of the bytes."""
    shard = _one_shard(setting)
    share = np.full(servers.SHARDS, 0.15)
    share[shard] = 0.55
    work.wire *= strength
    work.place(share)
    return Label("ps_hot_shard", shards=(shard,))


def even(work: servers.Servers) -> None:
    """Give all shards equal parts of the bytes."""
    work.place(np.full(servers.SHARDS, 1 / servers.SHARDS))


def cpu_bound(setting: Setting, work: servers.Servers, strength: float) -> Label:
    """Slow one shard's processor."""
    shard = _one_shard(setting)
    work.cpu[shard] *= 30 * strength
    return Label("ps_cpu_bound", shards=(shard,))


def network_bound(_setting: Setting, work: servers.Servers, strength: float) -> Label:
    """Slow all shards' links alike: nothing in the run says that they could be faster."""
    work.wire *= 6 * strength
    shards = tuple(range(servers.SHARDS))
    return Label("ps_network_bound", shards=shards, anyone=True, opportunity=True)


def twice_the_bandwidth(work: servers.Servers) -> None:
    """Make all links twice as fast: that is what an opportunity is priced by."""
    work.wire /= 2


def incast(_setting: Setting, work: servers.Servers, strength: float) -> Label:
    """Let the wires collapse when many push at once."""
    work.wire *= strength
    work.collapse = 6.0
    return Label("ps_incast", shards=tuple(range(servers.SHARDS)), anyone=True)


TOGETHER: Final = 1e-3  # of what differs between workers is left


def incast_at_once(setting: Setting, work: servers.Servers, strength: float) -> Label:
    """Let the wires collapse, and all workers push at once: never do fewer pushes share a wire."""
    for values in work.phases.values():
        mean = values.mean(axis=1, keepdims=True)
        values[:] = mean + TOGETHER * (values - mean)
    work.at_once = True
    return incast(setting, work, strength)


def fair(work: servers.Servers) -> None:
    """Let the wires get as much done however many push."""
    work.collapse = 0.0


def slow_worker(setting: Setting, work: servers.Servers, strength: float) -> Label:
    """Slow one worker."""
    ranks = pick(setting)
    for name in ("forward", "backprop"):
        work.phases[name][:, ranks] *= 1 + 0.3 * strength
    return Label("straggler", ranks=tuple(ranks), phases=("forward", "backprop"))


def stale(setting: Setting, work: Elastic) -> Label:
    """Make one worker take twice as long as the others."""
    ranks = pick(setting)
    for values in work.phases.values():
        values[:, ranks] *= 2.0
    return Label("stale_worker", ranks=tuple(ranks))

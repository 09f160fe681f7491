"""Kinds of run in which communication is slow, badly cut, or not hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from benchmarks.labelled.kinds_of_ranks import interval, pick, rows
from benchmarks.labelled.label import Label

if TYPE_CHECKING:
    from benchmarks.labelled.setting import Setting
    from benchmarks.labelled.work import Work

MESSAGES: Final = 24
LATENCY_MS: Final = 4.0
SMALL_BYTES: Final = 84


def hops(setting: Setting, work: Work) -> None:
    """Record each rank's sends: equally long for all."""
    whole = work.transfer.sum(axis=1, keepdims=True)
    wobble = 0.03 * setting.stream("hops").standard_normal((setting.steps, setting.ranks))
    work.hop = np.asarray(0.8 * whole * np.exp(wobble))


def slow_link(setting: Setting, work: Work) -> Label:
    """Make one link of the ring slow: all reductions last long, only one rank's sends do."""
    hops(setting, work)
    assert work.hop is not None
    last_of_host = pick(setting)[0] // setting.per_host * setting.per_host + setting.per_host - 1
    rank = min(last_of_host, setting.ranks - 1)
    work.transfer *= 5
    work.hop[:, rank] *= 5
    ranks = tuple(sorted((rank, (rank + 1) % setting.ranks)))
    return Label("slow_link", ranks=ranks, anyone=True)


def link_inside_a_host(setting: Setting, work: Work) -> Label:
    """Make one link between two ranks of a host slow, and so all reductions."""
    hops(setting, work)
    assert work.hop is not None
    chosen = pick(setting)[0]
    rank = chosen - (chosen % setting.per_host == setting.per_host - 1)
    work.transfer *= 5
    work.hop[:, rank] *= 5
    return Label("slow_link", ranks=(rank, rank + 1), anyone=True)


def congestion(setting: Setting, work: Work) -> Label:
    """Make every transfer slow for a while."""
    steps = interval(setting, 0.25, 0.4)
    work.transfer[rows(steps)] *= 8
    return Label("congestion", steps=steps)


def small_messages(_setting: Setting, work: Work) -> Label:
    """Send the same gradients in 24 small messages of different sizes, each with its latency."""
    share = np.linspace(0.2, 1.8, MESSAGES) / MESSAGES
    work.sizes = tuple((share * work.bucket_bytes * 2).astype(int).tolist())
    work.transfer = work.transfer.sum(axis=1, keepdims=True) * share + LATENCY_MS
    work.lag = np.repeat(work.lag[:, :1], MESSAGES, axis=1)
    return Label("small_messages", opportunity=True, also=("exposed_communication",))


def equal_small_buckets(setting: Setting, work: Work) -> Label:
    """Send a few bytes in 24 small messages of one size, each with its latency."""
    work.sizes = (SMALL_BYTES,) * MESSAGES
    work.transfer = np.full((len(work.transfer), MESSAGES), LATENCY_MS)
    work.transfer *= np.exp(0.05 * setting.stream("calls").standard_normal(work.transfer.shape))
    work.lag = np.repeat(work.lag[:, :1], MESSAGES, axis=1)
    return Label("small_messages", opportunity=True, also=("exposed_communication",))


def fewer_messages(_setting: Setting, work: Work) -> list[Work]:
    """Send neighbours together, in every number of messages that they can be divided into."""
    return [_fused(work, count) for count in range(1, MESSAGES) if MESSAGES % count == 0]


def _fused(work: Work, count: int) -> Work:
    fused, each = work.copied(), MESSAGES // count
    parts = work.transfer.reshape(len(work.transfer), count, each).sum(axis=2)
    fused.transfer = parts - (each - 1) * LATENCY_MS
    fused.lag = work.lag[:, :count]
    return fused


def no_overlap(_setting: Setting, work: Work) -> Label:
    """Reduce only when backprop is over."""
    work.overlap = False
    return Label("exposed_communication", opportunity=True)


def communication_bound(_setting: Setting, work: Work) -> Label:
    """Make reductions last longer than what they could hide behind."""
    work.transfer *= 5
    return Label("exposed_communication", opportunity=True, priced=False)


def update_gap(_setting: Setting, work: Work) -> Label:
    """Let the updates of the layers stand apart."""
    work.layers, work.gap = 6, 4.0
    return Label("update_gap", opportunity=True)

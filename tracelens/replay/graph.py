"""Moments that follow each other, each after a lag, and when they come with other lags."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import numpy as np

from tracelens.caching import cached_property

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Floats, Indices, Ints

__all__ = ["Graph"]


@dataclass(frozen=True, eq=False)
class Graph:
    """Moments and what each follows: it comes no earlier than any `source` of it and that edge's lag.

    `order` puts the edges into layers, in which moments can be played one layer after the other;
    `layers` are their begins in it, one more than layers.
    """

    recorded: Floats
    source: Indices
    target: Indices
    lag: Floats
    order: Indices
    layers: Ints

    @classmethod
    def of(cls, recorded: Floats, source: Indices, target: Indices, lag: Floats) -> Self:
        """Make it.

        Raises:
            ValueError: moments follow each other in a circle.
        """
        layer = _layers(len(recorded), source, target)[target]
        order = np.lexsort((target, layer))
        layers = np.searchsorted(layer[order], np.arange(1, layer.max(initial=0) + 2))
        return cls(recorded, source, target, lag, order, layers)

    def keep(self, kept: Flags) -> Self:
        """Return it with some of its edges (flags); moments keep the order in which they are played."""
        is_kept = kept[self.order]
        kept_before = np.append(0, np.cumsum(is_kept))
        return replace(self, order=self.order[is_kept], layers=np.unique(kept_before[self.layers]))

    def play(self, lag: Floats) -> Floats:
        """Return when all moments come with other lags; those that follow nothing come as they did."""
        time = self.recorded.copy()
        source, lag = self.source[self.order], lag[self.order]
        heads, targets, bounds = self._heads
        layers = zip(pairwise(self.layers.tolist()), pairwise(bounds), strict=True)
        for (begin, end), (first, stop) in layers:
            moved = time[source[begin:end]] + lag[begin:end]
            own = heads[first:stop]
            time[targets[first:stop]] = np.maximum.reduceat(moved, own - begin)
        return time

    @cached_property
    def _heads(self) -> tuple[Indices, Indices, list[int]]:
        """Where the edges to each moment begin in `order`, that moment, and where each layer begins."""
        target = self.target[self.order]
        heads = np.flatnonzero(np.diff(target, prepend=-1) != 0)
        return heads, target[heads], np.searchsorted(heads, self.layers).tolist()

    def play_backwards(self, latest: Floats, lag: Floats) -> Floats:
        """Return by when all moments must come at the latest, if some must come by `latest`.

        Args:
            latest: By when each must come, ns; inf if nothing but what follows it requires that.
            lag: Of each edge, ns.
        """
        time = latest.copy()
        source, target, lag = self.source[self.order], self.target[self.order], lag[self.order]
        for begin, end in reversed([*pairwise(self.layers.tolist())]):
            required = time[target[begin:end]] - lag[begin:end]
            np.minimum.at(time, source[begin:end], required)
        return time


def _layers(moments: int, source: Indices, target: Indices) -> Ints:
    """Return for each moment how many it follows, one after the other, at most."""
    order = np.argsort(source, kind="stable")
    follows, begins = target[order], np.searchsorted(source[order], np.arange(moments + 1))
    left = np.bincount(target, minlength=moments)
    layer = np.zeros(moments, np.int64)
    ready, number = np.flatnonzero(left == 0), 0
    while len(ready):
        layer[ready] = number
        reached = follows[_stretches(begins[ready], begins[ready + 1])]
        np.subtract.at(left, reached, 1)
        ready = np.unique(reached[left[reached] == 0])
        number += 1
    if left.any():
        raise ValueError(f"{np.count_nonzero(left)} moments follow each other in a circle")
    return layer


def _stretches(begin: Ints, end: Ints) -> Indices:
    """Return the numbers of several stretches, one after the other."""
    count = end - begin
    before = np.cumsum(count) - count
    return np.asarray(np.arange(count.sum()) - np.repeat(before - begin, count))

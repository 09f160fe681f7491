"""Synchronous EASGD 1, 2 and 3: a broadcast of the centre, and a tree that sums up all weights.

In 1 the centre lives on a master that does nothing else. In 2 it lives on the first worker, so that
weights travel among workers only. 3 is 2 with both transfers under way while the gradient is computed.
All three compute the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from easgd_worker import BATCH, DOWN, UP, WAIT
from mpi4py import MPI
from ps_messages import await_

import tracelens as tl
from tracelens_instrument import recorder

if TYPE_CHECKING:
    from easgd_master import Centre
    from easgd_worker import Worker
    from mlp import Array


class Exchange:
    """What all do with each other in a step: the centre comes down, the sum of weights goes up."""

    def __init__(self, comm: Any, size: int, centre: Centre | None) -> None:
        self.comm = comm
        self.centre = centre
        self.old = np.empty(size, "f4")
        self.total = np.empty(size, "f4")

    def down(self) -> Any:
        """Start the broadcast of the centre as it is now."""
        if self.centre is not None:
            self.old[:] = self.centre.values
        return self.comm.Ibcast(self.old, 0)

    def up(self, weights: Array) -> Any:
        """Start summing up the weights of all."""
        return self.comm.Ireduce(weights, self.total, MPI.SUM, 0)

    def update_centre(self, workers: int) -> None:
        """Update the centre, where it lives."""
        if self.centre is not None:
            self.centre.update(self.total, workers)


def lead(exchange: Exchange, steps: int) -> None:
    """Be the master of Sync EASGD 1, which has no weights of its own."""
    nothing = np.zeros_like(exchange.total)
    for step in range(steps):
        with tl.step(step):
            with DOWN(seq=step, nbytes=nothing.nbytes):
                await_(exchange.down())
            with UP(seq=step, nbytes=nothing.nbytes):
                await_(exchange.up(nothing))
            exchange.update_centre(exchange.comm.size - 1)


def follow(exchange: Exchange, worker: Worker, steps: int, workers: int) -> None:
    """Be a worker of Sync EASGD 1 or 2: compute, then exchange."""
    nbytes = exchange.total.nbytes
    for step in range(steps):
        with tl.step(step, samples=BATCH):
            gradient = worker.compute(step, worker.load(step))
            with DOWN(seq=step, nbytes=nbytes):
                await_(exchange.down())
            with UP(seq=step, nbytes=nbytes):
                await_(exchange.up(worker.weights.values))
            worker.update(step, gradient, exchange.old, step)
            exchange.update_centre(workers)


def follow_overlapped(exchange: Exchange, worker: Worker, steps: int, workers: int) -> None:
    """Be a worker of Sync EASGD 3: exchange while computing."""
    nbytes = exchange.total.nbytes
    tracks = recorder.track("weights down"), recorder.track("weights up")
    for step in range(steps):
        with tl.step(step, samples=BATCH):
            spans = [
                span.begin(track, seq=step, nbytes=nbytes)
                for span, track in zip((DOWN, UP), tracks, strict=True)
            ]
            flying = [exchange.down(), exchange.up(worker.weights.values)]
            gradient = worker.compute(
                step, worker.load(step), between=lambda flying=flying: MPI.Request.Testall(flying)
            )
            with WAIT:
                for span, request in zip(spans, flying, strict=True):
                    await_(request)
                    span.end()
            worker.update(step, gradient, exchange.old, step)
            exchange.update_centre(workers)

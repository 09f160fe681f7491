"""One shard of the parameter-server example: receive, aggregate, apply, reply."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI
from ps_messages import DONE, HEADER, PAYLOAD, POLL_S, PUSH, Header, header

import tracelens as tl
from tracelens_instrument import recorder

if TYPE_CHECKING:
    from faults import Faults
    from mlp import Array

RATE: Final = 1e-3
DECAY: Final = (0.9, 0.999)


@dataclass
class Request:
    """A request that has arrived: from which worker, for which step; a push with its gradient."""

    worker: int
    step: int
    id: int
    gradient: Array | None


class Shard:
    """Holds a part of the weights; serves one request at a time, in order of arrival."""

    def __init__(self, comm: Any, weights: Array, workers: int, planted: Faults) -> None:
        self.comm = comm
        self.weights = weights.copy()
        self.workers = workers
        self.planted = planted
        self.step = 0
        self._done = 0
        self._pushed = 0
        self._sum = np.zeros_like(weights)
        self._moments = np.zeros_like(weights), np.zeros_like(weights)
        self._arriving: list[tuple[Request, Any, Any]] = []
        self._queue: deque[Request] = deque()
        self._parked: list[Request] = []
        self._incoming = recorder.track("incoming")
        shard = comm.rank
        self._receive, self._aggregate, self._apply, self._reply = (
            tl.span(op, kind="ps", op=op, shard=shard)
            for op in ("receive", "aggregate", "apply", "reply")
        )

    def serve(self) -> None:
        """Serve until every worker has said that it is done."""
        while self._done < self.workers or self._queue or self._arriving:
            arrived = self._accept()
            if self._queue:
                self._serve(self._queue.popleft())
            elif not arrived:
                time.sleep(POLL_S)

    def _accept(self) -> bool:
        """Take in whatever has arrived since; a push is in the queue once its gradient is there."""
        status = MPI.Status()
        some = False
        while self.comm.Iprobe(MPI.ANY_SOURCE, HEADER, status):
            some = True
            head: Header = header(0, 0, 0)
            self.comm.Recv(head, status.source, HEADER)
            self._begin(status.source, *head.tolist())
        still = []
        for request, token, transfer in self._arriving:
            if transfer is None or transfer.Test():
                token.end()
                self._queue.append(request)
            else:
                still.append((request, token, transfer))
        self._arriving = still
        return some

    def _begin(self, source: int, what: int, step: int, request: int) -> None:
        if what == DONE:
            self._done += 1
            return
        push = what == PUSH
        gradient = np.empty_like(self.weights) if push else None
        token = self._receive.begin(
            self._incoming,
            request=request,
            peer=source - self._first_worker,
            step=step,
            nbytes=self.weights.nbytes if push else 0,
            queue_depth=len(self._queue),
        )
        transfer = self.comm.Irecv(gradient, source, PAYLOAD) if push else None
        self._arriving.append((Request(source, step, request, gradient), token, transfer))

    def _serve(self, request: Request) -> None:
        if request.gradient is None:
            self._parked.append(request)
        else:
            with self._aggregate(**self._values(request)):
                self._sum += request.gradient
            self._pushed += 1
            if self._pushed == self.workers:
                self._update(request)
        self._answer()

    def _update(self, last: Request) -> None:
        """Apply the mean gradient (Adam) once all workers' gradients are there."""
        with self._apply(**self._values(last)):
            gradient = self._sum / self.workers
            first, second = self._moments
            first += (1 - DECAY[0]) * (gradient - first)
            second += (1 - DECAY[1]) * (gradient**2 - second)
            self.weights -= RATE * first / (np.sqrt(second) + 1e-8)
            self._sum[:] = 0
            self.planted.slow_down(self.comm.rank, "update", self.step)
        self._pushed = 0
        self.step += 1

    def _answer(self) -> None:
        """Answer the pulls of the step that the weights have reached."""
        ready = [request for request in self._parked if request.step <= self.step]
        self._parked = [request for request in self._parked if request.step > self.step]
        for request in ready:
            with self._reply(**self._values(request)):
                self.comm.Send(self.weights, request.worker, PAYLOAD)

    def _values(self, request: Request) -> dict[str, int]:
        return {
            "request": request.id,
            "peer": request.worker - self._first_worker,
            "step": request.step,
            "nbytes": self.weights.nbytes,
        }

    @property
    def _first_worker(self) -> int:
        return int(self.comm.size) - self.workers

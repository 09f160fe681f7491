"""Original EASGD: the master serves one worker after the other, in the order of their ranks.

A turn: the master sends a batch and the centre to the worker, which computes its gradient, sends its
weights and updates them; the master updates the centre, and only then turns to the next worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from easgd_master import FIRST_WORKER, IDLE
from easgd_worker import BATCH, BATCH_BYTES, DATA, DOWN, TURN, UP
from mlp import INPUTS, OUTPUTS, Batches
from ps_messages import HEADER, PAYLOAD, await_

import tracelens as tl
from tracelens.schema.record import request_id

if TYPE_CHECKING:
    from easgd_master import Centre
    from easgd_worker import Worker

SEND_BATCH = tl.span("send batch", kind="data")


def lead(comm: Any, centre: Centre, steps: int) -> None:
    """Be the master: give every worker its turn in each of so many passes."""
    workers = comm.size - FIRST_WORKER
    batches = [Batches(worker, BATCH) for worker in range(workers)]
    theirs = np.empty_like(centre.values)
    for step in range(steps):
        with tl.step(step):
            for worker in range(workers):
                down, up = _requests(worker, step)
                # Sent first, so that a worker can tell waiting for its turn from the transfers.
                turn = np.array([centre.version], np.int64)
                comm.Send(turn, worker + FIRST_WORKER, HEADER)
                with SEND_BATCH(nbytes=BATCH_BYTES, peer=worker):
                    for part in batches[worker].next():
                        await_(comm.Isend(part, worker + FIRST_WORKER, PAYLOAD))
                centre.send(comm, worker, step, down)
                with IDLE:
                    comm.Recv(turn, worker + FIRST_WORKER, HEADER)
                centre.receive(comm, theirs, worker, step, up)
                centre.update(theirs, step=step, peer=worker, request=up)


def follow(comm: Any, worker: Worker, steps: int) -> None:
    """Be a worker."""
    centre = np.empty_like(worker.weights.values)
    batch = np.empty((BATCH, INPUTS), "f4"), np.empty((BATCH, OUTPUTS), "f4")
    turn = np.empty(1, np.int64)
    for step in range(steps):
        down, up = _requests(worker.rank, step)
        with tl.step(step, samples=BATCH):
            with TURN:
                await_(comm.Irecv(turn, 0, HEADER))
            with DATA(nbytes=BATCH_BYTES):
                for part in batch:
                    await_(comm.Irecv(part, 0, PAYLOAD))
                worker.planted.slow_down(worker.rank, "data", step)
            with DOWN(seq=int(turn[0]), request=down, peer=0, nbytes=centre.nbytes):
                await_(comm.Irecv(centre, 0, PAYLOAD))
            gradient = worker.compute(step, batch)
            with UP(seq=int(turn[0]), request=up, peer=0, nbytes=centre.nbytes):
                comm.Send(turn, 0, HEADER)
                await_(comm.Isend(worker.weights.values, 0, PAYLOAD))
            worker.update(step, gradient, centre, int(turn[0]))


def _requests(worker: int, step: int) -> tuple[int, int]:
    """Name the two transfers of a turn, alike on both ends: weights down, weights up."""
    return request_id(worker, 2 * step + 1), request_id(worker, 2 * step + 2)

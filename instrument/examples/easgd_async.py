"""Asynchronous EASGD and Hogwild EASGD: the master serves whoever comes, first come first served.

A worker sends its weights and receives the centre while it computes its gradient. In Hogwild EASGD the
master has a thread for every worker, and all update the centre without a lock.
"""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from easgd_master import FIRST_WORKER, IDLE
from easgd_worker import BATCH, DOWN, UP, WAIT
from mpi4py import MPI
from ps_messages import HEADER, PAYLOAD, await_

import tracelens as tl
from tracelens.schema.record import request_id
from tracelens_instrument import recorder

if TYPE_CHECKING:
    from easgd_master import Centre
    from easgd_worker import Worker

DONE = -1


def lead(comm: Any, centre: Centre, *, hogwild: bool) -> None:
    """Be the master until every worker has said that it is done."""
    workers = range(comm.size - FIRST_WORKER)
    if not hogwild:
        _serve(comm, centre, MPI.ANY_SOURCE, len(workers))
        return
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        raise SystemExit("hogwild needs an MPI with MPI_THREAD_MULTIPLE, which this one is not")
    threads = [
        threading.Thread(
            target=_serve, args=(comm, centre, worker + FIRST_WORKER, 1), name=f"worker {worker}"
        )
        for worker in workers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _serve(comm: Any, centre: Centre, source: int, workers: int) -> None:
    theirs = np.empty_like(centre.values)
    head = np.empty(2, np.int64)
    status = MPI.Status()
    while workers:
        with IDLE:
            await_(comm.Irecv(head, source, HEADER), status)
        worker = status.source - FIRST_WORKER
        step, counter = head.tolist()
        if step == DONE:
            workers -= 1
            continue
        up, down = request_id(worker, counter), request_id(worker, counter + 1)
        centre.receive(comm, theirs, worker, step, up)
        comm.Send(np.array([centre.version], np.int64), status.source, HEADER)
        centre.send(comm, worker, step, down)
        centre.update(theirs, step=step, peer=worker, request=up)


def follow(comm: Any, worker: Worker, steps: int) -> None:
    """Be a worker: exchange weights with the master while computing."""
    centre = np.empty_like(worker.weights.values)
    answer = np.zeros(1, np.int64)
    tracks = recorder.track("weights up"), recorder.track("weights down")
    counter = count(1, 2)
    for step in range(steps):
        with tl.step(step, samples=BATCH):
            number = next(counter)
            values = {"peer": 0, "nbytes": centre.nbytes}
            up = UP.begin(
                tracks[0], seq=int(answer[0]), request=request_id(worker.rank, number), **values
            )
            down = DOWN.begin(tracks[1], request=request_id(worker.rank, number + 1), **values)
            head = np.array([step, number], np.int64)
            sends = [comm.Isend(head, 0, HEADER), comm.Isend(worker.weights.values, 0, PAYLOAD)]
            receives = [comm.Irecv(answer, 0, HEADER), comm.Irecv(centre, 0, PAYLOAD)]
            flying = [*sends, *receives]
            gradient = worker.compute(
                step, worker.load(step), between=lambda flying=flying: MPI.Request.Testall(flying)
            )
            with WAIT:
                for request in sends:
                    await_(request)
                up.end()
                for request in receives:
                    await_(request)
                down.end()
            worker.update(step, gradient, centre, int(answer[0]))
    comm.Send(np.array([DONE, 0], np.int64), 0, HEADER)

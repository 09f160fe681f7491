"""The family of elastic averaging SGD (EASGD) over MPI, in NumPy.

    tracelens record -- mpiexec -n 4 python -m mpi4py mpi_easgd.py --method original

Every worker trains weights of its own, and is pulled towards a common centre, which is pulled towards
the workers. The methods differ in who waits for whom:

original  the master serves one worker after the other: most of a worker's time is waiting for its turn
async     the master serves whoever comes; the exchange goes on while the worker computes
hogwild   as async, but the master's threads, one a worker, update the centre without a lock
sync1     all at once: broadcast of the centre, tree reduction of the weights
sync2     as sync1, but the centre lives on the first worker, and there is no master
sync3     as sync2, but both transfers go on while the gradient is computed

With ``--momentum 0.9``, async is Async MEASGD. Where there is a master it is MPI rank 0, so n ranks are
n - 1 workers, and a server (role ps) in the trace. The ranks of the fault switches are workers.

Source: You, Buluc, Demmel, SC 2017, arXiv 1708.02983.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

import easgd_async
import easgd_original
import easgd_sync
import faults
import numpy as np
from easgd_master import FIRST_WORKER, Centre
from easgd_rules import Rates
from easgd_worker import Worker
from mpi4py import MPI

import tracelens as tl

METHODS: Final = ("original", "async", "hogwild", "sync1", "sync2", "sync3")
WITHOUT_MASTER: Final = ("sync2", "sync3")


def lead(comm: Any, method: str, centre: Centre, steps: int) -> None:
    """Be the master."""
    if method == "original":
        easgd_original.lead(comm, centre, steps)
    elif method == "sync1":
        easgd_sync.lead(easgd_sync.Exchange(comm, centre.values.size, centre), steps)
    else:
        easgd_async.lead(comm, centre, hogwild=method == "hogwild")


def follow(comm: Any, method: str, worker: Worker, centre: Centre | None, steps: int) -> None:
    """Be a worker; in sync2 and sync3 the first of them holds the centre."""
    if method == "original":
        easgd_original.follow(comm, worker, steps)
    elif method in ("async", "hogwild"):
        easgd_async.follow(comm, worker, steps)
    else:
        exchange = easgd_sync.Exchange(comm, worker.weights.values.size, centre)
        workers = comm.size - (FIRST_WORKER if method == "sync1" else 0)
        run = easgd_sync.follow_overlapped if method == "sync3" else easgd_sync.follow
        run(exchange, worker, steps, workers)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", choices=METHODS, default="original")
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate")
    parser.add_argument("--steps", type=int, default=60, help="of each worker")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--save", metavar="FILE.npy", help="save the final centre here")
    faults.add_arguments(parser)
    arguments = parser.parse_args()
    # Transfers are recorded as such; the calls beneath would say it twice.
    comm = tl.attach(MPI.COMM_WORLD, record=False)
    master = 0 if arguments.method in WITHOUT_MASTER else FIRST_WORKER
    workers = comm.size - master
    if workers < 1:
        parser.error(f"{comm.size} MPI rank cannot be a master and at least one worker")
    if not 0 <= arguments.momentum < 1:
        parser.error("--momentum must be at least 0 and below 1")
    planted = faults.from_arguments(arguments)
    planted.check(workers)
    rates = Rates.for_workers(workers, arguments.rate, arguments.momentum)
    centre = Centre(arguments.hidden, rates) if comm.rank == 0 else None
    if centre is not None and master:
        tl.start(role="ps", rank=0, world=workers, shard=0)
        lead(comm, arguments.method, centre, arguments.steps)
    else:
        rank = comm.rank - master
        tl.start(role="worker", rank=rank, world=workers)
        worker = Worker(rank, arguments.hidden, rates, planted)
        follow(comm, arguments.method, worker, centre, arguments.steps)
        print(f"worker {rank}: loss {worker.losses[0]:.4f} -> {worker.losses[-1]:.4f}")
    if centre is not None:
        print(f"centre: version {centre.version}")
        if arguments.save:
            np.save(arguments.save, centre.values)


if __name__ == "__main__":
    main()

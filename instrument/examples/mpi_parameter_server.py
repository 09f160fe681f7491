"""Synchronous training with a sharded parameter server over MPI, in NumPy.

    tracelens record -- mpiexec -n 4 python -m mpi4py mpi_parameter_server.py --shards 2

The first ranks serve shards of the weights, the others train: each pulls the weights of the step from
all shards, computes, and pushes its gradients. A shard adds up the gradients of all workers, applies
them (Adam), and only then answers the next pulls. Every request carries an id, which stands in the
worker's span and in the shard's spans, so that both ends of a transfer are known to belong together.

The ranks of the fault switches are workers; but with ``--slow-phase update`` it is a shard that is slow,
because shards make the updates.
"""

from __future__ import annotations

import argparse

import faults
import numpy as np
from mlp import Perceptron
from mpi4py import MPI
from ps_shard import Shard
from ps_worker import Worker

import tracelens as tl


def cuts(total: int, shards: int, hot: int, share: float) -> list[int]:
    """Say where each shard's part of the weights begins and ends: shards + 1 numbers.

    The hot shard (-1 = none) holds `share` of all, the others divide the rest.
    """
    shares = np.full(shards, 1 / shards)
    if hot >= 0:
        shares[:] = (1 - share) / max(shards - 1, 1)
        shares[hot] = share
    ends = np.round(np.cumsum(shares) / shares.sum() * total).astype(int)
    return [0, *ends.tolist()]


def main() -> None:
    """Read the command line and serve or train."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--hot-shard", type=int, default=-1, help="this shard holds more bytes")
    parser.add_argument("--hot-share", type=float, default=0.7, help="so much of all")
    parser.add_argument("--hidden", type=int, default=1024)
    faults.add_arguments(parser)
    arguments = parser.parse_args()
    # Requests are recorded as such; the sends beneath would say it twice.
    comm = tl.attach(MPI.COMM_WORLD, record=False)
    shards, workers = arguments.shards, comm.size - arguments.shards
    if workers < 1 or shards < 1:
        parser.error(f"{comm.size} MPI ranks cannot be {shards} shards and at least one worker")
    if arguments.hot_shard >= shards or not 0 < arguments.hot_share < 1:
        parser.error(f"--hot-shard must be below {shards}, and --hot-share between 0 and 1")
    planted = faults.from_arguments(arguments)
    planted.check(workers, can_be_slow=shards if planted.slow_phase == "update" else workers)
    model = Perceptron.with_hidden(arguments.hidden)
    total = sum(weight.size for weight in model.weights)
    parts = cuts(total, shards, arguments.hot_shard, arguments.hot_share)
    if comm.rank < shards:
        tl.start(role="ps", rank=comm.rank, world=comm.size, shard=comm.rank)
        weights = np.concatenate([weight.reshape(-1) for weight in model.weights])
        Shard(comm, weights[parts[comm.rank] : parts[comm.rank + 1]], workers, planted).serve()
    else:
        rank = comm.rank - shards
        tl.start(role="worker", rank=rank, world=comm.size)
        losses = Worker(comm, rank, model, parts, planted).train(arguments.steps)
        print(f"worker {rank}: loss {losses[0]:.4f} -> {losses[-1]:.4f}")


if __name__ == "__main__":
    main()

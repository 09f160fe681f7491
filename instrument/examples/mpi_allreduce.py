"""Data-parallel training of a NumPy network over MPI; gradients by an allreduce of your choice.

    tracelens record -- mpiexec -n 4 python -m mpi4py mpi_allreduce.py --algorithm ring

Every layer's gradient is reduced as soon as backprop has made it: by blocking calls, or, with
``--overlap``, by non-blocking ones that are awaited before the update. With ``--fuse BYTES`` gradients
are put together first, so that fewer and bigger messages go. All algorithms but the library's own are
written out with point-to-point calls inside a reduction span, so that the hops are in the trace, too.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

import faults
import numpy as np
from allreduce import WRITTEN_OUT
from mlp import Batches, Perceptron, loss
from mpi4py import MPI
from reducer import Reducer

import tracelens as tl

if TYPE_CHECKING:
    from mlp import Array

RATE: Final = 0.05

FORWARD = tl.span("forward", kind="forward")
BACKPROP = tl.span("backprop", kind="backprop")
DATA = tl.span("load batch", kind="data")
UPDATE = tl.span("update weights", kind="update")


def train(arguments: argparse.Namespace) -> None:
    """Train, and tell on rank 0 how the loss fell and whether all ranks hold the same weights."""
    comm = tl.attach(MPI.COMM_WORLD)
    planted = faults.from_arguments(arguments)
    planted.check(comm.size)
    model = Perceptron.with_hidden(arguments.hidden)
    batches = Batches(comm.rank, arguments.batch)
    reducer = Reducer(comm, arguments.algorithm, overlap=arguments.overlap, fuse=arguments.fuse)
    losses = []
    for step in range(arguments.steps):
        with tl.step(step, samples=arguments.batch):
            losses.append(_step(step, model, batches, reducer, planted))
    sums = comm.gather(float(sum(weight.astype("f8").sum() for weight in model.weights)))
    if comm.rank == 0:
        same = max(sums) - min(sums) < 1e-3
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, same weights on all ranks: {same}")


def _step(
    step: int, model: Perceptron, batches: Batches, reducer: Reducer, planted: faults.Faults
) -> float:
    rank = reducer.comm.rank
    with DATA:
        inputs, targets = batches.next()
        planted.slow_down(rank, "data", step)
    with FORWARD:
        activations = model.forward(inputs)
        planted.slow_down(rank, "forward", step)
    gradients: list[Array] = [np.empty(0, "f4")] * len(model.weights)
    layers = model.backprop(activations, targets)
    for _ in model.weights:
        with BACKPROP:
            layer, gradients_of_layer = next(layers)
            if layer == len(model.weights) // 2:
                planted.kill(rank, step)
                planted.slow_down(rank, "backprop", step)
        gradients[layer] = gradients_of_layer
        reducer.reduce(gradients_of_layer)
    reducer.finish()
    with UPDATE:
        model.update(gradients, RATE)
        planted.slow_down(rank, "update", step)
    return loss(activations[-1], targets)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--algorithm", choices=(*WRITTEN_OUT, "library"), default="library")
    parser.add_argument("--overlap", action="store_true", help="non-blocking library allreduce")
    parser.add_argument(
        "--fuse", type=int, default=0, metavar="BYTES", help="reduce as much at once, or more"
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--batch", type=int, default=256, help="samples of a rank in a step")
    faults.add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.overlap and arguments.algorithm != "library":
        parser.error(
            "--overlap needs --algorithm library: the others are written with blocking calls"
        )
    train(arguments)


if __name__ == "__main__":
    main()

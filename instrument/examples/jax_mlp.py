"""A small network trained by JAX on two processes: gradients are averaged inside the compiled step.

    tracelens record -- python jax_mlp.py --processes 2

Steps are marked with JAX's own annotation; nothing here knows of TraceLens.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from functools import partial
from typing import Any, Final

import faults
import jax
import jax.numpy as jnp
import numpy as np
from jax import shard_map
from jax.sharding import Mesh, NamedSharding, PartitionSpec

INPUTS, HIDDEN, OUTPUTS = 64, 512, 10
BATCH: Final = 256
RATE: Final = 0.05


def train(arguments: argparse.Namespace) -> None:
    """Train on this process's share of every batch."""
    rank = jax.process_index()
    planted = faults.from_arguments(arguments)
    planted.check(jax.process_count())
    mesh = Mesh(np.array(jax.devices()), ("data",))
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    step = _compiled(mesh)
    draw, teacher = np.random.default_rng(rank), _normal(9, (INPUTS, OUTPUTS))
    weights = jax.device_put([_normal(1, (INPUTS, HIDDEN)), _normal(2, (HIDDEN, OUTPUTS))], whole)
    losses = []
    for number in range(arguments.steps):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            inputs = draw.normal(size=(BATCH, INPUTS)).astype("f4")
            planted.slow_down(rank, "data", number)
            shares = (inputs, np.tanh(inputs @ teacher))
            batch = [jax.make_array_from_process_local_data(split, share) for share in shares]
            weights, loss = step(weights, *batch)
            losses.append(float(loss))
    if rank == 0:
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")


def _compiled(mesh: Mesh) -> Any:
    everywhere, share = PartitionSpec(), PartitionSpec("data")

    def loss(weights: Any, inputs: Any, targets: Any) -> Any:
        hidden = jnp.maximum(inputs @ weights[0], 0)
        return jnp.mean((hidden @ weights[1] - targets) ** 2)

    @jax.jit
    @partial(
        shard_map,
        mesh=mesh,
        in_specs=(everywhere, share, share),
        out_specs=(everywhere, everywhere),
    )
    def step(weights: Any, inputs: Any, targets: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, inputs, targets)
        gradients = jax.lax.pmean(gradients, "data")
        moved = jax.tree.map(lambda weight, gradient: weight - RATE * gradient, weights, gradients)
        return moved, jax.lax.pmean(value, "data")

    return step


def _normal(seed: int, size: tuple[int, int]) -> Any:
    return np.random.default_rng(seed).normal(0, size[0] ** -0.5, size).astype("f4")


def _launch(processes: int) -> int:
    """Start the processes; return the worst exit code."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv, f"--coordinator={address}", f"--rank={rank}"])
        for rank in range(processes)
    ]
    return max(abs(rank.wait()) for rank in ranks)


def main() -> None:
    """Read the command line; start the processes, or be one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", "--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    faults.add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.coordinator is None:
        sys.exit(_launch(arguments.processes))
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(arguments.coordinator, arguments.processes, arguments.rank)
    train(arguments)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()

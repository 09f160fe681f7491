"""TensorFlow's ParameterServerStrategy over gRPC, on one machine: a chief, workers and servers.

    tracelens record -- python tf_parameter_server.py --workers 2 --servers 2

Nothing here knows of TraceLens: what workers and servers do in TensorFlow's own runtime is taken from
its profiler by `tracelens record`. Variables are placed round robin, as TensorFlow does by default, so
with two servers one gets both matrices. ``--even`` splits every variable over all servers.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

INPUTS, OUTPUTS, BATCH = 64, 10, 128
RATE = 0.05


def serve(arguments: argparse.Namespace) -> None:
    """Be a worker or a server, until the chief ends it."""
    import tensorflow as tf  # noqa: PLC0415 - it takes seconds, and the servers start meanwhile

    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    threads = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=4
    )
    tf.distribute.Server(
        cluster.cluster_spec(),
        job_name=arguments.job,
        task_index=arguments.task,
        protocol="grpc",
        config=threads,
    ).join()


def lead(arguments: argparse.Namespace) -> None:
    """Be the chief: hand out steps to the workers, and tell how the loss fell."""
    import tensorflow as tf  # noqa: PLC0415 - as above

    partitioner = None
    if arguments.even:
        partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(
            arguments.servers
        )
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver(), variable_partitioner=partitioner
    )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        step = _training_step(tf, arguments.hidden)
    losses = []
    until = time.monotonic() + arguments.seconds
    while time.monotonic() < until:
        values = [coordinator.schedule(step) for _ in range(20)]
        coordinator.join()
        losses += [float(value.fetch()) for value in values]
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {len(losses)} steps")


def _training_step(tf: Any, hidden: int) -> Callable[[], Any]:
    """Make the variables, and the function that a worker runs once a step."""
    sizes = {
        "hidden": (INPUTS, hidden),
        "hidden-bias": (hidden,),
        "out": (hidden, OUTPUTS),
        "out-bias": (OUTPUTS,),
    }
    variables = [
        tf.Variable(_draw(tf, seed, size) * size[0] ** -0.5, name=name)
        for seed, (name, size) in enumerate(sizes.items())
    ]
    teacher = _draw(tf, len(sizes), (INPUTS, OUTPUTS))

    @tf.function
    def step() -> Any:
        inputs = tf.random.normal((BATCH, INPUTS))
        with tf.GradientTape() as tape:
            matrix, bias, out, last = (tf.convert_to_tensor(variable) for variable in variables)
            outputs = tf.matmul(tf.nn.relu(tf.matmul(inputs, matrix) + bias), out) + last
            loss = tf.reduce_mean((outputs - tf.tanh(tf.matmul(inputs, teacher))) ** 2)
        parts = [
            part for variable in variables for part in getattr(variable, "variables", [variable])
        ]
        for part, gradient in zip(parts, tape.gradient(loss, parts), strict=True):
            part.assign_sub(RATE * gradient)
        return loss

    return step


def _draw(tf: Any, seed: int, size: tuple[int, ...]) -> Any:
    return tf.random.stateless_normal(size, (seed, 0))


def launch(arguments: argparse.Namespace) -> None:
    """Start workers and servers, lead them, end them."""
    counts = {"chief": 1, "worker": arguments.workers, "ps": arguments.servers}
    ports = _free_ports(sum(counts.values()))
    cluster = {job: [f"localhost:{next(ports)}" for _ in range(n)] for job, n in counts.items()}
    others = [
        subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], f"--job={job}", f"--task={task}"],
            env=os.environ | {"TF_CONFIG": _config(cluster, job, task)},
        )
        for job in ("worker", "ps")
        for task in range(counts[job])
    ]
    os.environ["TF_CONFIG"] = _config(cluster, "chief", 0)
    try:
        lead(arguments)
    finally:
        for other in others:
            other.terminate()
        for other in others:
            other.wait()


def _config(cluster: dict[str, list[str]], job: str, task: int) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": task}})


def _free_ports(count: int) -> Iterator[int]:
    """Find ports, and hold all of them until the last is found."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return iter(ports)


def main() -> None:
    """Read the command line; be the chief, or what the chief says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--even", action="store_true", help="split every variable over all servers")
    parser.add_argument("--seconds", type=float, default=8, help="train for so long")
    parser.add_argument("--job", default="chief", help=argparse.SUPPRESS)
    parser.add_argument("--task", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    (launch if arguments.job == "chief" else serve)(arguments)


if __name__ == "__main__":
    main()

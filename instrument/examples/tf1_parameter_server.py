"""TensorFlow 1 style parameter servers over gRPC, on one machine: workers with sessions, and servers.

    tracelens record -- python tf1_parameter_server.py --workers 2 --servers 2

Every worker builds its own graph, with variables where `replica_device_setter` puts them, and runs its
training operation in a `MonitoredTrainingSession`; gradients are summed by `SyncReplicasOptimizer`.
Variables are placed round robin, so with two servers one gets both matrices; ``--even`` places each on
the server that has fewest bytes, after a matrix was cut in two.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

INPUTS, OUTPUTS = 64, 10
RATE = 0.05


def build(v1: Any, arguments: argparse.Namespace) -> tuple[Any, Any, list[Any]]:
    """Make a worker's graph; return what to run, the loss, and hooks of the session."""
    setter = v1.train.replica_device_setter(
        cluster=arguments.cluster,
        worker_device=f"/job:worker/task:{arguments.task}",
        ps_strategy=_strategy(arguments),
    )
    with v1.device(setter):
        step = v1.train.get_or_create_global_step()
        inputs = v1.random_normal((arguments.batch, INPUTS), seed=arguments.task)
        hidden = v1.nn.relu(_dense(v1, inputs, "hidden", arguments.hidden, even=arguments.even))
        outputs = _dense(v1, hidden, "out", OUTPUTS, even=False)
        teacher = v1.reduce_sum(inputs, axis=1, keepdims=True)
        loss = v1.reduce_mean((outputs - v1.tanh(teacher)) ** 2)
        optimizer = v1.train.GradientDescentOptimizer(RATE)
        hooks = []
        if arguments.synchronous:
            optimizer = v1.train.SyncReplicasOptimizer(optimizer, arguments.workers)
            hooks.append(optimizer.make_session_run_hook(arguments.task == 0, num_tokens=0))
        train = optimizer.minimize(loss, global_step=step)
    return train, loss, hooks


def _strategy(arguments: argparse.Namespace) -> Any:
    """Return what chooses a server; None: each in turn."""
    if not arguments.even:
        return None
    loads = [0] * arguments.servers

    def fewest_bytes(operation: Any) -> int:
        chosen = loads.index(min(loads))
        loads[chosen] += 4 * (operation.outputs[0].shape.num_elements() or 0)
        return chosen

    return fewest_bytes


def _dense(v1: Any, inputs: Any, name: str, width: int, *, even: bool) -> Any:
    """Return a layer; `even`: its matrix is cut in two."""
    parts = 2 if even else 1
    columns = [
        v1.get_variable(
            f"{name}-{part}" if even else name,
            (inputs.shape[1], width // parts),
            initializer=v1.random_normal_initializer(
                stddev=int(inputs.shape[1]) ** -0.5, seed=part
            ),
        )
        for part in range(parts)
    ]
    bias = v1.get_variable(f"{name}-bias", (width,), initializer=v1.zeros_initializer())
    return v1.concat([v1.matmul(inputs, matrix) for matrix in columns], axis=1) + bias


def be(arguments: argparse.Namespace) -> None:
    """Be a worker or a server."""
    import tensorflow as tf  # noqa: PLC0415 - it takes seconds, and others start meanwhile

    v1 = tf.compat.v1
    v1.disable_v2_behavior()
    config = v1.ConfigProto(
        intra_op_parallelism_threads=1,
        inter_op_parallelism_threads=4,
        device_filters=["/job:ps", f"/job:{arguments.job}/task:{arguments.task}"],
    )
    server = v1.train.Server(
        arguments.cluster, job_name=arguments.job, task_index=arguments.task, config=config
    )
    if arguments.job == "ps":
        server.join()
    train, loss, hooks = build(v1, arguments)
    with v1.train.MonitoredTrainingSession(
        master=server.target, is_chief=arguments.task == 0, hooks=hooks, config=config
    ) as session:
        if arguments.task == 0:
            print("variables are initialised", flush=True)
        turns = range(arguments.steps) if arguments.task == 0 else count()
        losses = [float(session.run([train, loss])[1]) for _ in turns]
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}", flush=True)


def launch(arguments: argparse.Namespace) -> int:
    """Start servers and workers, wait until the chief has done its steps, end all."""
    counts = {"ps": arguments.servers, "worker": arguments.workers}
    ports = _free_ports(sum(counts.values()))
    cluster = {job: [f"localhost:{next(ports)}" for _ in range(n)] for job, n in counts.items()}

    def start(job: str, task: int, **streams: int) -> subprocess.Popen[str]:
        words = [f"--cluster={json.dumps(cluster)}", f"--job={job}", f"--task={task}"]
        return subprocess.Popen([sys.executable, *sys.argv, *words], text=True, **streams)

    servers = [start("ps", task) for task in range(arguments.servers)]
    chief = start("worker", 0, stdout=subprocess.PIPE)
    assert chief.stdout
    chief.stdout.readline()  # others that found no variables yet would look again after half a minute
    others = [start("worker", task) for task in range(1, arguments.workers)]
    last = chief.stdout.readline()
    print(last, end="")
    # A chief that closes its session may wait two minutes for gradients that are not sent any more.
    for process in (chief, *others, *servers):
        process.terminate()
        process.wait()
    return 0 if last else 1


def _free_ports(count: int) -> Iterator[int]:
    """Find ports, and hold all of them until the last is found."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return iter(ports)


def main() -> int:
    """Read the command line; start all processes, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--even", action="store_true", help="give all servers as many bytes")
    parser.add_argument("--asynchronous", dest="synchronous", action="store_false")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--job", default="", help=argparse.SUPPRESS)
    parser.add_argument("--task", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--cluster", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.job:
        return launch(arguments)
    be(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())

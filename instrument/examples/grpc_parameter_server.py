"""Training with a sharded parameter server over gRPC: synchronous, asynchronous, or pipelined by chunks.

    tracelens record -- python grpc_parameter_server.py --workers 2 --shards 2 --mode sync

Starts the shards and workers as processes of this machine and waits for them.

sync       every worker pushes its gradient to all shards; a shard applies the mean of all, and tokens
           from shard 0 let the workers go on together (as TensorFlow's SyncReplicasOptimizer)
async      a shard applies each gradient as it comes; nobody waits for anybody else
pipelined  gradients go in chunks of 32 KiB, each bound to a core of its shard and optimised by itself; a
           layer of the next step waits for its own chunks only (as PHub)

The ranks of the fault switches are workers; but with ``--slow-phase update`` it is a shard that is slow.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import faults
import grpc
import grpc_messages as wire
import numpy as np
from grpc_pipeline import PipelinedShard
from grpc_pipelined_worker import PipelinedWorker
from grpc_shard import Shard, Tokens
from grpc_state import flat_variables, view_piece
from grpc_worker import Worker
from mlp import Perceptron

import tracelens as tl
from tracelens.placement import STRATEGIES, sum_shard_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.placement import Piece

MODES: Final = ("sync", "async", "pipelined")
POLL_S: Final = 0.05
OWN_HOST: Final = ("unshare", "--uts", "sh", "-c", 'hostname "ps$0" && exec "$@"')
SHIFT_CLOCK: Final = Path(__file__).with_name("shift_clock.py")


def place_variables(model: Perceptron, strategy: str, shards: int) -> list[Piece]:
    """Return the pieces of the model's variables, each with the shard that holds it."""
    return STRATEGIES[strategy]([weight.nbytes for weight in model.weights], shards)


def serve(arguments: argparse.Namespace, model: Perceptron, pieces: Sequence[Piece]) -> None:
    """Be a shard: say the address on a line, learn the others' addresses, serve until stopped."""
    number, planted = arguments.index, faults.from_arguments(arguments)
    tl.start(role="ps", rank=number, world=arguments.workers, shard=number)
    variables = flat_variables(model)
    own_pieces = [piece for piece in pieces if piece.shard_index == number]
    methods: dict[str, grpc.RpcMethodHandler] = {}
    shard: Shard | PipelinedShard
    if arguments.mode == "pipelined":
        chunks = {
            (piece.variable_index, piece.offset_bytes): view_piece(variables, piece)
            for piece in own_pieces
        }
        shard = PipelinedShard(number, chunks, arguments.workers, planted)
    else:
        own_weights = [view_piece(variables, piece) for piece in own_pieces]
        weights = np.concatenate([np.empty(0, "f4"), *own_weights])
        asynchronous = arguments.mode == "async"
        shard = Shard(
            number, weights, arguments.workers, asynchronous=asynchronous, planted=planted
        )
        tokens = Tokens(arguments.shards)
        methods |= tokens.methods() if number == 0 else {}
    server = grpc.server(ThreadPoolExecutor(4 * arguments.workers, "handler"))
    handlers = {
        name.rpartition("/")[2]: method for name, method in (shard.methods() | methods).items()
    }
    server.add_registered_method_handlers(wire.SERVICE, handlers)
    host = f"127.0.0.{number + 2}" if arguments.own_addresses else "127.0.0.1"
    port = server.add_insecure_port(f"{host}:0")
    server.start()
    print(f"{host}:{port}", flush=True)
    first_address = sys.stdin.readline().strip()
    if isinstance(shard, Shard) and arguments.mode == "sync":
        shard.applied.append(tokens.applied if number == 0 else _make_teller(first_address))
    _stop_with_parent(shard)
    shard.run()
    server.stop(grace=1).wait()


def _make_teller(address: str) -> Any:
    """Return what tells shard 0 that a step has been applied."""
    tell = wire.channel(address).unary_unary(wire.APPLIED)
    return lambda step: tell(b"", metadata=wire.headers(step=step))


def _stop_with_parent(shard: Shard | PipelinedShard) -> None:
    """Stop when the parent closes our standard input, as it does in the end."""

    def wait() -> None:
        sys.stdin.read()
        shard.stop()

    ThreadPoolExecutor(1, "until the end").submit(wait)


def train(arguments: argparse.Namespace, model: Perceptron, pieces: Sequence[Piece]) -> None:
    """Be a worker."""
    rank, planted = arguments.index, faults.from_arguments(arguments)
    tl.start(role="worker", rank=rank, world=arguments.workers)
    servers = [wire.channel(address) for address in arguments.servers.split(",")]
    if arguments.mode == "pipelined":
        losses = PipelinedWorker(rank, model, pieces, servers, planted).train(arguments.steps)
    else:
        worker = Worker(rank, model, pieces, servers, planted)
        losses = worker.train(arguments.steps, asynchronous=arguments.mode == "async")
    print(f"worker {rank}: loss {losses[0]:.4f} -> {losses[-1]:.4f}")


def launch(arguments: argparse.Namespace) -> int:
    """Start shards and workers, and wait for them; return the first exit code that is not 0."""
    shifts = arguments.shift.split(",") if arguments.shift else []

    def start(role: str, index: int, *options: str, **streams: int) -> subprocess.Popen[str]:
        command = [sys.executable, *sys.argv, f"--role={role}", f"--index={index}", *options]
        process_index = index if role == "ps" else arguments.shards + index
        if process_index < len(shifts):
            command = [sys.executable, str(SHIFT_CLOCK), shifts[process_index], *command]
        if arguments.own_addresses and role == "ps":
            command = [*OWN_HOST, str(index), *command]
        return subprocess.Popen(command, text=True, **streams)

    pipe = subprocess.PIPE
    shards = [start("ps", index, stdin=pipe, stdout=pipe) for index in range(arguments.shards)]
    addresses = [shard.stdout.readline().strip() for shard in shards if shard.stdout]
    for shard in shards:
        if shard.stdin:
            shard.stdin.write(f"{addresses[0]}\n")
            shard.stdin.flush()
    servers = f"--servers={','.join(addresses)}"
    workers = [start("worker", index, servers) for index in range(arguments.workers)]
    code = _wait(workers)
    for process in workers if code else ():
        process.terminate()  # the others would wait for the one that failed
    for shard in shards:
        shard.communicate()
    return code


def _wait(workers: list[subprocess.Popen[str]]) -> int:
    """Wait until all have ended or one has failed; return its exit code, or 0."""
    while True:
        codes = [worker.poll() for worker in workers]
        failed = [code for code in codes if code]
        if failed or None not in codes:
            return abs(failed[0]) if failed else 0
        time.sleep(POLL_S)


def main() -> int:
    """Read the command line; start all processes, or be one of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mode", choices=MODES, default="sync")
    parser.add_argument("--placement", choices=sorted(STRATEGIES), help="of variables on shards")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=4, help="hidden ones")
    parser.add_argument(
        "--shift",
        default="",
        metavar="SECONDS,...",
        help="that each process's clock is ahead, shards first; needs root",
    )
    parser.add_argument(
        "--own-addresses",
        action="store_true",
        help="a loopback address, from 127.0.0.2 on, and a host name for each shard: tc can limit its "
        "link; needs root",
    )
    parser.add_argument("--role", choices=("ps", "worker"), help=argparse.SUPPRESS)
    parser.add_argument("--index", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--servers", default="", help=argparse.SUPPRESS)
    faults.add_arguments(parser)
    arguments = parser.parse_args()
    if min(arguments.workers, arguments.shards) < 1:
        parser.error("at least one worker and one shard are needed")
    planted = faults.from_arguments(arguments)
    shards_are_slow = planted.slow_phase == "update"
    planted.check(arguments.workers, arguments.shards if shards_are_slow else arguments.workers)
    model = Perceptron.with_hidden(arguments.hidden, arguments.layers)
    default = "chunked" if arguments.mode == "pipelined" else "round_robin"
    pieces = place_variables(model, arguments.placement or default, arguments.shards)
    if arguments.role is None:
        print(f"bytes on the shards: {sum_shard_bytes(pieces, arguments.shards)}", flush=True)
        return launch(arguments)
    (serve if arguments.role == "ps" else train)(arguments, model, pieces)
    return 0


if __name__ == "__main__":
    sys.exit(main())

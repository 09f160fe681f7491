"""A DDP training whose ranks `torch.multiprocessing.spawn` starts, and what rank 0 alone does beside it.

Usage: spawned_ddp.py WHAT [--steps N], where WHAT is nothing, evaluate (0.5 s after each fifth of the
steps), log (30 ms after each update) or inspect (30 ms between forward and backward). Nothing marks it.
"""

from __future__ import annotations

import argparse
import os
import socket
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

PARTS, EVALUATION_S, LOGGING_S = 5, 0.5, 0.03
RANKS = 3


def evaluate(model: nn.Module, images: torch.Tensor) -> None:
    """Run the model for a while."""
    end = time.perf_counter() + EVALUATION_S
    with torch.no_grad():
        while time.perf_counter() < end:
            model(images)


def write_log() -> None:
    """Take as long as a slow disk does."""
    time.sleep(LOGGING_S)


def train(rank: int, what: str, steps: int, port: int) -> None:
    """Train on random numbers."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.manual_seed(rank)
    layers = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(128, 128), torch.randint(0, 10, (128,))
    doing = what if rank == 0 else "nothing"
    for step in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        if doing == "inspect":
            write_log()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if doing == "log":
            write_log()
        if doing == "evaluate" and step % (steps // PARTS) == steps // PARTS - 1:
            evaluate(layers, images)
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("nothing", "evaluate", "log", "inspect"))
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    spawn(train, args=(options.what, options.steps, port), nprocs=RANKS)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()

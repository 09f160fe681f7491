"""A small network whose weights are spread over the ranks by FSDP2 (`fully_shard`), on gloo.

    tracelens record -- torchrun --standalone --nproc-per-node 2 fsdp_mlp.py

Nothing here knows of TraceLens.
"""

from __future__ import annotations

import argparse
import os
from typing import Final

import faults
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH: Final = 128
CLASSES: Final = 4
BATCH: Final = 32
LAYERS: Final = 3


def train(arguments: argparse.Namespace) -> None:
    """Train, and tell on rank 0 how the loss fell."""
    rank = dist.get_rank()
    planted = faults.from_arguments(arguments)
    planted.check(dist.get_world_size())
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)]
    model = nn.Sequential(*blocks, nn.Linear(WIDTH, CLASSES))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(arguments.steps):
        inputs = torch.randn(BATCH, WIDTH, generator=draw)
        planted.slow_down(rank, "data", step)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :CLASSES].argmax(dim=1))
        planted.slow_down(rank, "forward", step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if rank == 0:
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")


def main() -> None:
    """Read the command line, join the group, train, leave."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    faults.add_arguments(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    train(arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

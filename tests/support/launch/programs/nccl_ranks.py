"""Two ranks of NCCL on one GPU: every collective, waited for and not; FSDP; a CUDA graph.

NCCL refuses two ranks on one device of a host; each says that it is a host of its own, so that messages
go through sockets.

Run: torchrun --nproc-per-node 2 nccl_ranks.py
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

VALUES = 1 << 22
WIDTH = 1024
LAYERS = 4
STEPS = 8


def collectives(*, async_op: bool) -> None:
    """Call each collective once, and wait for those that say what to wait for."""
    ranks, values = dist.get_world_size(), torch.ones(VALUES, device="cuda")
    shard, gathered = (
        torch.empty(VALUES // ranks, device="cuda"),
        torch.empty(VALUES * ranks, device="cuda"),
    )
    shards = [torch.empty_like(values) for _ in range(ranks)]
    works = [
        dist.all_reduce(values, async_op=async_op),
        dist.broadcast(values, 0, async_op=async_op),
        dist.reduce(values, 0, async_op=async_op),
        dist.all_gather(shards, values, async_op=async_op),
        dist.all_gather_into_tensor(gathered, values, async_op=async_op),
        dist.reduce_scatter(shard, list(values.chunk(ranks)), async_op=async_op),
        dist.reduce_scatter_tensor(shard, values, async_op=async_op),
        dist.all_to_all_single(torch.empty_like(values), values, async_op=async_op),
    ]
    for work in works:
        if work is not None:
            work.wait()
    torch.cuda.synchronize()


def captured() -> None:
    """Capture a collective into a graph, and replay it."""
    values = torch.ones(VALUES, device="cuda")
    dist.all_reduce(values)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(values)
        work = dist.all_reduce(values, async_op=True)
        work.wait()
    graph.replay()
    torch.cuda.synchronize()
    sys.stdout.write(f"captured {values[0].item():.0f}\n")


def sharded() -> None:
    """Train what is sharded layer by layer."""
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers).cuda()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(64, WIDTH, device="cuda")
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()


def main() -> None:
    """Run all."""
    os.environ["NCCL_HOSTID"] = os.environ["RANK"]
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    collectives(async_op=False)
    collectives(async_op=True)
    dist.barrier()
    sharded()
    captured()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A training that attaches TraceLens to a DistributedDataParallel; run by torchrun."""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import tracelens as tl

STEPS = 4
BATCH = 8


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.Linear(128, 4))
    model = DistributedDataParallel(network, bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    inputs = torch.randn(STEPS * BATCH, 32, generator=generator)
    loader = DataLoader(TensorDataset(inputs), BATCH)
    tl.attach(model, optimizer=optimizer, loader=loader)
    for (batch,) in loader:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with model.no_sync():
        model(inputs).square().mean().backward()
    del model, optimizer
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


main()

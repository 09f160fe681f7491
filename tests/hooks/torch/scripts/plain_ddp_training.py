"""A training that has never heard of TraceLens: DDP, a data loader with a worker, evaluation."""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 2
STEPS = 3
BATCH = 8


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(32, 128)
        self.head = nn.Linear(128, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.body(inputs).relu()
        outputs: torch.Tensor = self.head(hidden)
        return outputs


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Network())
    optimizer = torch.optim.AdamW(model.parameters())
    generator = torch.Generator().manual_seed(dist.get_rank())
    inputs = torch.randn(STEPS * BATCH, 32, generator=generator)
    loader = DataLoader(TensorDataset(inputs), BATCH, num_workers=1)
    for _ in range(EPOCHS):
        model.train()
        for (batch,) in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            model(inputs)
    del model, optimizer
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


main()

"""DDP with a DataLoader. Faulty: each sample of rank 0 takes 0.1 ms to read, as from a slow disk."""

from __future__ import annotations

import time

import torch
from shared import BATCH, FAULTY, RANK, WIDTH, make_network, start_torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Samples(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 25 * BATCH * torch.distributed.get_world_size()

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if FAULTY and RANK == 0:
            time.sleep(0.0001)
        return torch.ones(WIDTH), index % 10


start_torch()
samples = Samples()
sampler: DistributedSampler[tuple[Tensor, int]] = DistributedSampler(samples)
loader = DataLoader(samples, batch_size=BATCH, sampler=sampler)
model = DistributedDataParallel(make_network())
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.distributed.destroy_process_group()

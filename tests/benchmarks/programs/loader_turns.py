"""DDP over a stream of batches. Faulty: the storage stalls for 0.2 s each 12 steps, ranks in turns."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from shared import BATCH, FAULTY, RANK, WIDTH, WORLD, make_network, start_torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

if TYPE_CHECKING:
    from collections.abc import Iterator


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for i in range(108):
            if FAULTY and i % 12 == 12 * RANK // WORLD + 1:
                time.sleep(0.2)
            yield torch.ones(BATCH, WIDTH), torch.full((BATCH,), i % 10)


start_torch()
model = DistributedDataParallel(make_network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for inputs, labels in DataLoader(Stream(), batch_size=None):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.distributed.destroy_process_group()

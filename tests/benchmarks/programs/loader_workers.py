"""DDP with loader workers. Faulty: they start anew at each epoch, and open an archive for a second."""

from __future__ import annotations

import time

import torch
from shared import BATCH, FAULTY, WIDTH, make_network, start_torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Batches(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return 25

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.ones(BATCH, WIDTH), torch.full((BATCH,), index % 10)


def open_archive(_: int) -> None:
    time.sleep(1.0 if FAULTY else 0.01)


start_torch()
loader = DataLoader(
    Batches(),
    batch_size=None,
    num_workers=2,
    worker_init_fn=open_archive,
    persistent_workers=not FAULTY,
)
model = DistributedDataParallel(make_network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(4):
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.distributed.destroy_process_group()

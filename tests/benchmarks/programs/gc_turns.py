"""DDP beside a data set kept in Python lists. Faulty: each rank collects garbage in steps of its own."""

from __future__ import annotations

import gc

import torch
from shared import BATCH, FAULTY, RANK, WIDTH, WORLD, make_network, start_torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

start_torch()
data = [[i] for i in range(1_000_000)]
gc.disable()
model = DistributedDataParallel(make_network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(108):
    optimizer.zero_grad()
    inputs = torch.full((BATCH, WIDTH), float(data[step][0]) / 100)
    nn.functional.cross_entropy(model(inputs), torch.randint(10, (BATCH,))).backward()
    optimizer.step()
    if step == 0 and not FAULTY:
        gc.freeze()
    if step % 12 == 12 * RANK // WORLD + 2:
        gc.collect()
torch.distributed.destroy_process_group()

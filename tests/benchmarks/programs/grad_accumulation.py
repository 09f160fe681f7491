"""DDP with eight micro-batches a step. Faulty: `no_sync` is missing, so gradients go out each time."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from shared import FAULTY, WIDTH, make_network, start_torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES = 8

start_torch()
network = nn.Sequential(nn.Linear(4096, WIDTH, bias=False), make_network())
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(60):
    optimizer.zero_grad()
    for micro_batch in range(MICRO_BATCHES):
        last = micro_batch == MICRO_BATCHES - 1
        with nullcontext() if FAULTY or last else model.no_sync():
            outputs = model(torch.ones(32, 4096))
            loss = nn.functional.cross_entropy(outputs, torch.randint(10, (32,)))
            (loss / MICRO_BATCHES).backward()
    optimizer.step()
torch.distributed.destroy_process_group()

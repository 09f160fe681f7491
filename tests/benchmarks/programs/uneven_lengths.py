"""DDP on sequences of changing lengths. Faulty: each rank draws its own; else they are alike."""

from __future__ import annotations

import random

import torch
from shared import FAULTY, RANK, WIDTH, make_network, start_torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

start_torch()
lengths = random.Random(RANK if FAULTY else 0)
model = DistributedDataParallel(make_network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(100):
    tokens = round(min(1000, 220 * lengths.lognormvariate(0, 0.6)))
    optimizer.zero_grad()
    outputs = model(torch.ones(tokens, WIDTH))
    nn.functional.cross_entropy(outputs, torch.randint(10, (tokens,))).backward()
    optimizer.step()
torch.distributed.destroy_process_group()

"""DDP with an average of the weights (EMA). Faulty: its copy to the host takes 30 ms in each step."""

from __future__ import annotations

import copy
import time

import torch
from shared import BATCH, FAULTY, WIDTH, make_network, start_torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module) -> None:
    if FAULTY:
        time.sleep(0.03)
    for mean, value in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(value, 0.01)


start_torch()
network = make_network()
average = copy.deepcopy(network)
model = DistributedDataParallel(network)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
for _ in range(100):
    optimizer.zero_grad()
    outputs = model(torch.ones(BATCH, WIDTH))
    nn.functional.cross_entropy(outputs, torch.randint(10, (BATCH,))).backward()
    optimizer.step()
    update_average(average, network)
torch.distributed.destroy_process_group()

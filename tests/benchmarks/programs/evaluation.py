"""DDP with an evaluation after each epoch of 25 steps. Faulty: each evaluation sleeps for a second."""

from __future__ import annotations

import time

import torch
from shared import BATCH, FAULTY, WIDTH, make_network, start_torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def evaluate(model: nn.Module) -> float:
    model.eval()
    correct = torch.zeros(1)
    with torch.no_grad():
        for _ in range(3):
            outputs = model(torch.ones(BATCH, WIDTH))
            correct += (outputs.argmax(1) == torch.randint(10, (BATCH,))).sum()
    if FAULTY:
        time.sleep(1.0)
    distributed.all_reduce(correct)
    model.train()
    return correct.item()


start_torch()
model = DistributedDataParallel(make_network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(4):
    for _ in range(25):
        optimizer.zero_grad()
        outputs = model(torch.randn(BATCH, WIDTH))
        nn.functional.cross_entropy(outputs, torch.randint(10, (BATCH,))).backward()
        optimizer.step()
    evaluate(model)
distributed.destroy_process_group()

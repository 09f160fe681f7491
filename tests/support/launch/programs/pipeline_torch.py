"""Three stages of a pipeline by PyTorch's send and recv, with a fault in rank 1 or without, unmarked.

Usage: pipeline_torch.py FAULT, where FAULT is none, uneven (its stage has five times the work) or stall
(150 ms a step for a part of the run).
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

STEPS, MICRO_BATCHES, WORK_S = 48, 3, 0.006
fault = sys.argv[1]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, last = dist.get_rank(), dist.get_world_size() - 1
stage = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(stage.parameters(), 0.01)


def work() -> None:
    """Take as long as the fault says; asleep, so that ranks do not share the cores."""
    time.sleep(WORK_S * (5 if fault == "uneven" and rank == 1 else 1))


for step in range(STEPS):
    passed = []
    for _ in range(MICRO_BATCHES):
        given = torch.randn(8, 64)
        if rank:
            dist.recv(given, rank - 1)
        given.requires_grad_()
        work()
        made = stage(given)
        if rank < last:
            dist.send(made.detach(), rank + 1)
        passed.append((given, made))
    if fault == "stall" and rank == 1 and 16 <= step < 34:
        time.sleep(0.15)
    for given, made in reversed(passed):
        gradient = torch.ones_like(made)
        if rank < last:
            dist.recv(gradient, rank + 1)
        work()
        made.backward(gradient)
        if rank:
            dist.send(given.grad, rank - 1)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()

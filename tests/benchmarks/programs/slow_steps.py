"""An all-reduce of flat gradients by hand. Faulty: each 7th step rank 1 logs to a slow disk, 0.18 s."""

from __future__ import annotations

import time

import torch
from shared import BATCH, FAULTY, RANK, WIDTH, make_network, start_torch
from torch import distributed, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

start_torch()
model = make_network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(100):
    optimizer.zero_grad()
    outputs = model(torch.ones(BATCH, WIDTH))
    nn.functional.cross_entropy(outputs, torch.randint(10, (BATCH,))).backward()
    flat = parameters_to_vector(p.grad for p in model.parameters() if p.grad is not None)
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    gradients = [torch.empty_like(p) for p in model.parameters()]
    vector_to_parameters(flat, gradients)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    if FAULTY and RANK == 1 and step % 7 == 3:
        time.sleep(0.18)
distributed.destroy_process_group()

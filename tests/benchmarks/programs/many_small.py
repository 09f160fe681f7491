"""The tutorial's `average_gradients`, for many layers. Faulty: one all-reduce for each parameter."""

from __future__ import annotations

import torch
from shared import BATCH, FAULTY, WIDTH, make_network, start_torch
from torch import distributed, nn


def average_gradients(model: nn.Module) -> None:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if FAULTY:
        for gradient in gradients:
            distributed.all_reduce(gradient)
            gradient.div_(distributed.get_world_size())
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    parts = (flat / distributed.get_world_size()).split([g.numel() for g in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


start_torch()
small = [layer for _ in range(50) for layer in (nn.Linear(16, 16), nn.Tanh())]
model = nn.Sequential(make_network(), nn.Linear(10, 16), *small)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
for _ in range(60):
    optimizer.zero_grad()
    output = model(torch.ones(BATCH, WIDTH))
    nn.functional.cross_entropy(output, torch.randint(16, (BATCH,))).backward()
    average_gradients(model)
    optimizer.step()
distributed.destroy_process_group()

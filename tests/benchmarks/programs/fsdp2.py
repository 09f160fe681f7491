"""FSDP2 on processors. Faulty: the forward of rank 1 takes 40 ms longer in all steps."""

from __future__ import annotations

import time

import torch
from shared import BATCH, FAULTY, RANK, WIDTH, make_network, start_torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = make_network(0.02)

    def forward(self, x: Tensor) -> Tensor:
        if FAULTY and RANK == 1:
            time.sleep(0.04)
        result: Tensor = self.network(x)
        return result


start_torch()
mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block())
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
for _ in range(60):
    optimizer.zero_grad()
    outputs = model(torch.ones(BATCH, WIDTH))
    nn.functional.cross_entropy(outputs, torch.randint(10, (BATCH,))).backward()
    optimizer.step()
torch.distributed.destroy_process_group()

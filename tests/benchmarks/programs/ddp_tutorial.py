"""PyTorch's tutorial of DDP. Faulty: the forward of rank 1 sleeps from step 60 on."""

from __future__ import annotations

import time

import torch
from shared import BATCH, FAULTY, RANK, WIDTH, make_network, start_torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = make_network()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if FAULTY and RANK == 1 and self.calls > 60:
            time.sleep(0.03)
        result: Tensor = self.network(x)
        return result


start_torch()
model = DistributedDataParallel(Model())
loss_function = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(120):
    optimizer.zero_grad()
    outputs = model(torch.randn(BATCH, WIDTH))
    loss_function(outputs, torch.randint(10, (BATCH,))).backward()
    optimizer.step()
torch.distributed.destroy_process_group()

"""DDP. Faulty: from step 50 on all ranks check each layer's output (debug mode), 10 ms a layer."""

from __future__ import annotations

import time

import torch
from shared import BATCH, FAULTY, WIDTH, make_network, start_torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def check_output(_: nn.Module, __: object, output: Tensor) -> None:
    time.sleep(0.01)
    assert torch.isfinite(output).all()


start_torch()
network = make_network()
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(100):
    if FAULTY and step == 50:
        for layer in network.children():
            layer.register_forward_hook(check_output)
    optimizer.zero_grad()
    outputs = model(torch.ones(BATCH, WIDTH))
    nn.functional.cross_entropy(outputs, torch.randint(10, (BATCH,))).backward()
    optimizer.step()
torch.distributed.destroy_process_group()

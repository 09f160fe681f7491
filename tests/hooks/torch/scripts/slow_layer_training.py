"""A plain DDP training in which one layer is slow on rank 1; it knows nothing of TraceLens."""

import time
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 50
SLOW_S = 0.03


class Slow(nn.Module):
    """Hands its input on; rank 1 thinks about it."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() == 1:
            time.sleep(SLOW_S)
        return values


def main() -> None:
    """Train on random numbers."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = {"first": nn.Linear(256, 256), "middle": Slow(), "last": nn.Linear(256, 1)}
    model = DistributedDataParallel(nn.Sequential(OrderedDict(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        model(torch.randn(256, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()

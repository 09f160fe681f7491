"""A DDP training that goes on until it is ended; it says when it trains.

Run: torchrun --nproc-per-node 2 endless_ddp.py
"""

from __future__ import annotations

import itertools
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TRAINS = 5  # steps, after which it says so


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in itertools.count():
        optimizer.zero_grad()
        model(torch.ones(8, 64)).mean().backward()
        optimizer.step()
        time.sleep(0.01)
        if step == TRAINS and dist.get_rank() == 0:
            sys.stdout.write("trains\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

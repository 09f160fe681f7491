"""The small convolutional network of ddp_cnn.py, trained by Horovod's DistributedOptimizer.

    tracelens record -- horovodrun -np 2 --gloo python horovod_cnn.py

Horovod's last release sets C++14 and PyTorch needs C++17: make test-horovod builds it.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import faults
import horovod.torch as hvd
import torch
from ddp_cnn import BATCH, Images, Network
from torch import nn
from torch.utils.data import DataLoader

import tracelens as tl


def train(arguments: argparse.Namespace) -> None:
    """Train, and tell on rank 0 how the loss fell."""
    rank = hvd.rank()
    planted = faults.from_arguments(arguments)
    planted.check(hvd.size())
    torch.manual_seed(rank)  # the ranks begin apart, and broadcasting brings them together
    network = Network(rank, planted)
    optimizer: Any = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=network.named_parameters())
    tl.attach(
        network, optimizer=optimizer
    )  # Horovod wraps no model, so nobody else tells its forward
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    losses = []
    for step, (images, labels) in enumerate(
        DataLoader(Images(arguments.steps, rank, planted), batch_size=BATCH)
    ):
        network.step = step
        loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    total = sum(float(weight.detach().double().sum()) for weight in network.parameters())
    totals = hvd.allgather(torch.tensor([total], dtype=torch.float64))
    if rank == 0:
        same = float(totals.max() - totals.min()) < 1e-3
        print(
            f"loss {losses[0]:.4f} -> {sum(losses[-5:]) / 5:.4f}, same weights on all ranks: {same}"
        )


def main() -> None:
    """Read the command line, join, train."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    faults.add_arguments(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    hvd.init()
    train(arguments)
    hvd.shutdown()


if __name__ == "__main__":
    main()

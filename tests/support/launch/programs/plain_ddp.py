"""A plain DDP training as people write it, with a fault in rank 1 or in all, or without.

Usage: plain_ddp.py FAULT [--all] [--steps N] [--traceml], where FAULT is none, backward, forward or
loader (so much longer there), stalls (250 ms every ninth step, in no phase) or apart (40 ms between
backward and `optimizer.step()`). Only --traceml marks steps, as TraceML asks for in a loop of one's own.
"""

from __future__ import annotations

import argparse
import time
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FAULTS = ("none", "backward", "forward", "loader", "stalls", "apart")
LONGER_S = 0.03
BATCH, SIDE = 4, 32

parser = argparse.ArgumentParser()
parser.add_argument("fault", choices=FAULTS)
parser.add_argument("--all", action="store_true", help="on all ranks, from step 30 to 59")
parser.add_argument("--steps", type=int, default=90)
parser.add_argument("--traceml", action="store_true")
given = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
step = 0


def delay(where: str, seconds: float) -> None:
    """Sleep, so that ranks do not share the cores, where the fault is."""
    here = 30 <= step < 60 if given.all else dist.get_rank() == 1
    if where == given.fault and here:
        time.sleep(seconds)


def resample_bicubic(image: np.ndarray) -> np.ndarray:
    """Do some work, and more of it if the loader is to be slow."""
    delay("loader", LONGER_S / BATCH)
    return np.kron(image, np.ones((2, 2), np.float32))


def decode_image(number: int) -> np.ndarray:
    """Make an image of its number."""
    noise = np.random.default_rng(number).standard_normal((3, SIDE // 2, SIDE // 2))
    return resample_bicubic(noise.astype(np.float32))


class Images(Dataset[tuple[np.ndarray, int]]):
    """Pictures that are decoded when they are asked for."""

    def __len__(self) -> int:
        return int(given.steps) * BATCH

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        return decode_image(number), number % 10


class Gate(torch.autograd.Function):
    """Does nothing, forward and backward."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        delay("backward", LONGER_S / 2)
        return gradient


class Block(nn.Module):
    """A convolution with a gate behind it."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, out, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        delay("forward", LONGER_S / 2)
        y: torch.Tensor = Gate.apply(torch.relu(self.convolution(x)))  # type: ignore[no-untyped-call]
        return y


def mark_step() -> AbstractContextManager[Any]:
    """Return a step, if these are marked."""
    return traceml.trace_step(model) if given.traceml else nullcontext()


if given.traceml:
    traceml = import_module("traceml_ai")
    traceml.init(mode="auto")

head = nn.Linear(16 * SIDE * SIDE, 10)
model = DistributedDataParallel(nn.Sequential(Block(3, 16), Block(16, 16), nn.Flatten(), head))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()

for images, labels in DataLoader(Images(), batch_size=BATCH):
    with mark_step():
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        delay("apart", 0.04)
        optimizer.step()
        if step % 9 == 4:
            delay("stalls", 0.25)
    step += 1
dist.destroy_process_group()

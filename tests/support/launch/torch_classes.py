"""Layers and datasets of trainings in tests: their classes cannot be defined without PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from support.launch.torch_training import loader
from torch.utils import data
from torch.utils.checkpoint import checkpoint

ROWS = 10


class OwnOperators(torch.nn.Module):
    """A layer whose own forward calls operators, in place or not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, values: Any) -> Any:
        scaled = torch.nn.functional.layer_norm(self.linear(values) * 2, (8,))
        return scaled.relu_()


class Checkpointed(torch.nn.Module):
    """Three layers, of which the second is computed anew in the backward pass."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.again = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        self.last = torch.nn.Linear(8, 1)
        self.reentrant = reentrant
        self.broken = False

    def inner(self, values: Any) -> Any:
        if self.broken:
            values = values[:, :3]
        return self.again(values)

    def forward(self, values: Any) -> Any:
        hidden = checkpoint(self.inner, self.first(values), use_reentrant=self.reentrant)
        return self.last(hidden)


class Rows(data.Dataset[Any]):
    """Ten rows, by their number."""

    first = 0

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return torch.full((8,), float(self.first + index))


class Stream(data.IterableDataset[Any]):
    """The same as a stream, of which each worker takes its part."""

    def __iter__(self) -> Any:
        worker = data.get_worker_info()
        assert worker is not None
        return iter(Rows()[i] for i in range(worker.id, ROWS, worker.num_workers))


class Nested(Rows):
    """Reads from a loader of its own."""

    def __getitem__(self, index: int) -> Any:
        return next(iter(loader(1, 1)))[0] * index


class Shift:
    """A user's own initialization of a worker."""

    def __call__(self, _worker: int) -> None:
        Rows.first = 100

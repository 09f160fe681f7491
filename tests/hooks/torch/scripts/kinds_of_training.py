"""Trains in the ways that programs do, and prints the weights; the same whether it is recorded or not.

Gradient accumulation, two optimizers, mixed precision, a compiled model, the user's own communication
hook, and the gradients' norm by a collective of the program's own. The variable TRAINING_WAYS lists
the ways to train.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 4
ACCUMULATED = 3


class Setting:
    """A model of two parts, its batches, and the optimizers of its parts."""

    def __init__(self, bucket_mb: float = 0.005) -> None:
        torch.manual_seed(0)
        modules = nn.Sequential(nn.Linear(32, 64), nn.ReLU()), nn.Linear(64, 4)
        self.model: Any = DistributedDataParallel(nn.Sequential(*modules), bucket_cap_mb=bucket_mb)
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(modules[0].parameters(), lr=0.01),
            torch.optim.SGD(modules[1].parameters(), lr=0.1),
        ]
        self._draw = torch.Generator().manual_seed(dist.get_rank())

    def loss(self) -> torch.Tensor:
        inputs = torch.randn(8, 32, generator=self._draw)
        return self.model(inputs).float().square().mean()

    def update(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()


def accumulated(setting: Setting) -> None:
    for _ in range(STEPS):
        with setting.model.no_sync():
            for _ in range(ACCUMULATED - 1):
                setting.loss().backward()
        setting.loss().backward()
        setting.update()


def two_optimizers(setting: Setting) -> None:
    for _ in range(STEPS):
        setting.loss().backward()
        setting.update()


def mixed_precision(setting: Setting) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for _ in range(STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = setting.loss()
        scaler.scale(loss).backward()
        for optimizer in setting.optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()


def compiled(setting: Setting) -> None:
    setting.model = torch.compile(setting.model, backend="aot_eager")
    two_optimizers(setting)


def reduce(_state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001 - DDP refuses texts
    gradient = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(gradient, async_op=True).get_future().then(lambda f: f.value()[0])


def own_hook(setting: Setting) -> None:
    setting.model.register_comm_hook(None, reduce)
    two_optimizers(setting)


def clipped(setting: Setting) -> None:
    for _ in range(STEPS):
        setting.loss().backward()
        norm = nn.utils.clip_grad_norm_(setting.model.parameters(), 0.1)
        norms = [torch.empty(()) for _ in range(dist.get_world_size())]
        dist.all_gather(norms, norm)
        setting.update()


WAYS: dict[str, Callable[[Setting], None]] = {
    "accumulated": accumulated,
    "two optimizers": two_optimizers,
    "mixed precision": mixed_precision,
    "own hook": own_hook,
    "clipped": clipped,
    "compiled": compiled,
}


def digest(model: nn.Module) -> str:
    """Return a hash that differs if any bit of the weights differs."""
    weights = [weight.detach().numpy().tobytes() for weight in model.parameters()]
    return hashlib.sha256(b"".join(weights)).hexdigest()


def trained(way: str) -> str:
    setting = Setting(25 if way == "compiled" else 0.005)
    WAYS[way](setting)
    return digest(setting.model)


def main() -> None:
    dist.init_process_group("gloo")
    weights = {}
    for way in os.environ["TRAINING_WAYS"].split(","):
        weights[way] = trained(way)
        gc.collect()
    sys.stdout.write(json.dumps(weights) + "\n")
    dist.barrier()
    dist.destroy_process_group()


main()

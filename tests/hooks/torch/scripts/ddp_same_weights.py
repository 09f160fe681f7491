"""Trains the same models with and without TraceLens attached; every rank prints what differed.

Three ranks show what two would hide: multiplying by 1/3 is not dividing by 3.
"""

from __future__ import annotations

import gc
import json
import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import BuiltinCommHookType
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import tracelens as tl

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 4


def network() -> nn.Module:
    return nn.Sequential(nn.Embedding(50, 16), nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 3))


def sparse_network() -> nn.Module:
    return nn.Sequential(nn.Embedding(50, 16, sparse=True), nn.Flatten(), nn.Linear(64, 3))


def compress_before(model: Any) -> None:
    model.register_comm_hook(None, fp16_compress_hook)


def built_in_hook(model: Any) -> None:
    model._register_builtin_comm_hook(BuiltinCommHookType.FP16_COMPRESS)


def no_hook(model: Any) -> None:
    del model


def train(
    make: Callable[[], nn.Module] = network,
    hook: Callable[[Any], None] = no_hook,
    *,
    attach: bool = False,
    late: bool = False,
    **options: Any,
) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = DistributedDataParallel(make(), bucket_cap_mb=0.01, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    if attach:
        tl.attach(model, optimizer=optimizer)
    if late:  # after a first forward pass, which PyTorch allows
        model(torch.zeros(1, 4, dtype=torch.long))
    hook(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        words = torch.randint(0, 50, (8, 4), generator=generator)
        model(words).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def are_equal(weights: list[torch.Tensor], other_weights: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights, other_weights, strict=True))


def main() -> None:
    dist.init_process_group("gloo")
    cases: dict[str, dict[str, Any]] = {
        "default": {},
        "hook": {"hook": compress_before},
        "built-in hook": {"hook": built_in_hook},
        "sparse": {"make": sparse_network},
        "views": {"gradient_as_bucket_view": True},
        "unused": {"find_unused_parameters": True},
        "static": {"static_graph": True},
    }
    plain = {name: train(**case) for name, case in cases.items()}  # before anything is attached
    equal_by_case = {
        name: are_equal(plain[name], train(**case, attach=True)) for name, case in cases.items()
    }
    late = train(hook=compress_before, attach=True, late=True)
    equal_by_case |= {
        "late hook": are_equal(plain["hook"], late),
        "hooks differ": not are_equal(plain["default"], plain["hook"]),
    }
    sys.stdout.write(json.dumps(equal_by_case) + "\n")
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


main()

"""PyTorch: DistributedDataParallel and plain modules, optimizers and data loaders."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
import wrapt
from torch.nn.parallel import DistributedDataParallel

from tracelens_instrument import recorder
from tracelens_instrument.hooks import (
    torch_backward,
    torch_buckets,
    torch_collectives,
    torch_data,
    torch_fsdp,
    torch_modules,
    torch_optimizer,
)
from tracelens_instrument.hooks.base import attempt, note_attached
from tracelens_instrument.hooks.torch_steps import LOOK

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn import Module

__all__ = ["attach", "install", "matches"]

_MODELS: Final[weakref.WeakSet[Module]] = weakref.WeakSet()


def matches(obj: object) -> bool:
    """Tell whether this is a model."""
    return isinstance(obj, torch.nn.Module)


def attach(
    model: Module, *, optimizer: Any = None, loader: Any = None, detail: str | None = None
) -> Module:
    """Record the training of a model; returns the model.

    Args:
        model: A DistributedDataParallel, or any module of a training without one.
        optimizer: Whose steps are the weight updates.
        loader: The DataLoader whose batches are waited for.
        detail: ``step``, ``phase``, ``layer`` or ``op``, each with those before it; default: that of
            the recording (`tl.start`, ``tracelens record --detail``), which is ``phase`` if nobody says.

    Raises:
        InvalidArgument: an unknown detail, or a loader that is no DataLoader.
    """
    level = recorder.detail(detail)
    if loader is not None:
        torch_data.record_batches(loader)
    if optimizer is not None:
        torch_optimizer.record_updates(optimizer)
    _record_phases(level)
    _record(model, level)
    return model


def install(_framework: Any) -> None:
    """Record every DistributedDataParallel, optimizer, DataLoader and backward pass."""
    torch_data.install()
    torch_optimizer.install()
    torch_fsdp.install()
    _record_phases(recorder.detail())
    wrapt.wrap_function_wrapper(
        "torch.nn.parallel.distributed", "DistributedDataParallel.__init__", _around_init
    )


def _record_phases(level: str) -> None:
    """Record what belongs to no single model."""
    if level != "step":
        LOOK.phases = True
        torch_backward.install()
        torch_buckets.install()
        torch_collectives.install()


def _record(model: Module, level: str) -> None:
    if model in _MODELS:
        return
    _MODELS.add(model)
    for parallel in _parallel_parts(model):
        recorder.identify(dist.get_rank(), dist.get_world_size())
        torch_buckets.look_for_hook(parallel)
    torch_modules.record_modules(model, level)
    note_attached(f"{type(model).__name__} with {sum(1 for _ in model.parameters())} parameters")


def _parallel_parts(model: Module) -> list[DistributedDataParallel]:
    return [part for part in model.modules() if isinstance(part, DistributedDataParallel)]


def _around_init(
    init: Callable[..., Any], model: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    init(*args, **kwargs)
    attempt(_record, model, recorder.detail())

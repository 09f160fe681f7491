"""PyTorch: DistributedDataParallel, FSDP2 and plain modules, optimizers and data loaders.

With FSDP2 (`fully_shard`), the forward pass of the outermost sharded module is recorded. Inner
modules are sharded first and the model last, and nothing tells which one is the model. So each
takes over from those inside it. Collectives are seen in the dispatcher (`operations`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
import wrapt
from torch.nn.parallel import DistributedDataParallel

from tracelens_instrument import lifecycle, recorder
from tracelens_instrument.core.attachments import note_attached
from tracelens_instrument.hooks.base import Switch, attempt, guarded
from tracelens_instrument.hooks.torch import (
    backward,
    buckets,
    data_loaders,
    operations,
    process_groups,
    steps,
)
from tracelens_instrument.hooks.torch.modules import RecordedModel
from tracelens_instrument.hooks.torch.steps import DETAIL

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn import Module

__all__ = ["attach", "install", "install_fsdp", "matches"]


# Since PyTorch 2.6, and before.
_FSDP_MODULES: Final = ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")
_FULLY_SHARD: Final = "fully_shard"
# What runs beside compiled code, which is not to be compiled with it. Not `modules`: its hooks are part
# of a model's graph, and know by themselves that they are compiled.
_TRACE_RULES: Final = "torch._dynamo.trace_rules"
_NEVER_COMPILED: Final = (
    *(f"tracelens_instrument.{name}" for name in ("core", "device", "recorder", "hooks.base")),
    *(
        module.__name__
        for module in (backward, buckets, data_loaders, operations, process_groups, steps)
    ),
)
_sharded: Final[WeakKeyDictionary[Module, RecordedModel]] = WeakKeyDictionary()
_models: Final[WeakKeyDictionary[Module, RecordedModel]] = WeakKeyDictionary()
_requested_levels: Final[list[str]] = []  # the one that is requested while it records, if any
_NOTED: Final = Switch()
_LISTENING: Final = Switch()


def install_fsdp() -> None:
    """Record what is sharded from now on, once FSDP is imported."""
    for place in _FSDP_MODULES:
        wrapt.register_post_import_hook(_patch_fsdp, place)


@guarded
def _patch_fsdp(module: Any) -> None:
    """Record what this module shards, if it can, and is not the other one under its former name."""
    found = getattr(module, _FULLY_SHARD, None)
    if found is not None and not isinstance(found, wrapt.FunctionWrapper):
        wrapt.wrap_function_wrapper(module, _FULLY_SHARD, _around_shard)


def _around_shard(
    shard: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    sharded = shard(*args, **kwargs)
    attempt(_record_sharded, args[0] if args else kwargs.get("module"))
    return sharded


def _record_sharded(sharded: Any) -> None:
    """Record forward passes of the sharded modules, instead of those of the modules inside."""
    roots = sharded if isinstance(sharded, (list, tuple)) else [sharded]
    for root in roots:
        for inner_module in root.modules():
            inner_model = _sharded.pop(inner_module, None)
            if inner_model is not None:
                inner_model.remove()
        _sharded[root] = _record_passes(root, recorder.detail())
    recorder.identify(dist.get_rank(), dist.get_world_size())
    if _NOTED.turn_on_if_off():
        note_attached("FSDP")


def matches(obj: object) -> bool:
    """Return True if this is a model."""
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
            the recording (`tl.start`, ``tracelens record --detail``), which is ``phase`` by default.

    Raises:
        InvalidArgument: an unknown detail, or a loader that is no DataLoader.
    """
    level = recorder.detail(detail)
    if loader is not None:
        data_loaders.record_batches(loader)
    if optimizer is not None:
        steps.record_updates(optimizer)
    _record_phases(level)
    _record_model(model, level)
    return model


def install(_framework: Any) -> None:
    """Record every DistributedDataParallel, optimizer, DataLoader and backward pass."""
    data_loaders.install()
    steps.install_updates()
    install_fsdp()
    _record_phases(recorder.detail())
    wrapt.wrap_function_wrapper(
        "torch.nn.parallel.distributed", "DistributedDataParallel.__init__", _around_init
    )


def _record_phases(level: str) -> None:
    """Record what belongs to no single model."""
    if level != "step":
        DETAIL.records_phases = True
        backward.install()
        buckets.install()
        operations.install()
        wrapt.register_post_import_hook(_keep_out_of_graphs, _TRACE_RULES)


@cache  # Dynamo's list of files would grow with each model that is attached
@guarded
def _keep_out_of_graphs(rules: Any) -> None:
    """Let torch.compile leave our hooks alone: a break of a graph runs them, and it would trace them."""
    for name in _NEVER_COMPILED:
        rules.add(name)


def _record_model(model: Module, level: str) -> None:
    """Record a model's passes by a level of detail, once, and the process's rank if it has a DDP."""
    if model in _models:
        return
    _models[model] = _record_passes(model, level)
    for parallel_module in _parallel_parts(model):
        recorder.identify(dist.get_rank(), dist.get_world_size())
        buckets.warn_of_earlier_hook(parallel_module)
    note_attached(f"{type(model).__name__} with {sum(1 for _ in model.parameters())} parameters")


def _record_passes(model: Module, level: str) -> RecordedModel:
    """Record the passes of a model at `level`, and closer while that is requested."""
    if _LISTENING.turn_on_if_off():
        lifecycle.on_detail(_change_detail)
    recorded_model = RecordedModel(model, level)
    for requested_level in _requested_levels:
        recorded_model.look_closer(requested_level)
    return recorded_model


def _change_detail(requested_level: str | None) -> bool:
    """Record all models at a requested level, or with None each at its own; False without models."""
    _requested_levels[:] = [requested_level] if requested_level is not None else []
    recorded_models = [*_sharded.values(), *_models.values()]
    for recorded_model in recorded_models:
        attempt(recorded_model.look_closer, requested_level)
    return bool(recorded_models)


def _parallel_parts(model: Module) -> list[DistributedDataParallel]:
    return [part for part in model.modules() if isinstance(part, DistributedDataParallel)]


def _around_init(
    init: Callable[..., Any], model: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    init(*args, **kwargs)
    attempt(_record_model, model, recorder.detail())

"""FSDP2 (`fully_shard`): the forward pass of what is sharded as a whole.

Modules inside are sharded first, the model itself last, and nothing tells which one that is: so each
takes over from those inside it. Collectives are seen in the dispatcher (torch_dispatch), as all are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import torch
import wrapt

from tracelens_instrument import recorder
from tracelens_instrument.hooks import torch_modules
from tracelens_instrument.hooks.base import attempt, guarded, note_attached

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn import Module
    from torch.utils.hooks import RemovableHandle

__all__ = ["install"]

# Since PyTorch 2.6, and before.
_PLACES: Final = ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")
_NAME: Final = "fully_shard"
_recorded: Final[WeakKeyDictionary[Module, list[RemovableHandle]]] = WeakKeyDictionary()
_said: Final[list[bool]] = []


def install() -> None:
    """Record what is sharded from now on, once FSDP is imported."""
    for place in _PLACES:
        wrapt.register_post_import_hook(_patch, place)


@guarded
def _patch(module: Any) -> None:
    """Record what this module shards, if it can, and is not the other one under its former name."""
    found = getattr(module, _NAME, None)
    if found is not None and not isinstance(found, wrapt.FunctionWrapper):
        wrapt.wrap_function_wrapper(module, _NAME, _around)


def _around(
    shard: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    sharded = shard(*args, **kwargs)
    attempt(_record, args[0] if args else kwargs.get("module"))
    return sharded


def _record(given: Any) -> None:
    for root in given if isinstance(given, (list, tuple)) else [given]:
        for inside in root.modules():
            for handle in _recorded.pop(inside, []):
                handle.remove()
        _recorded[root] = torch_modules.record_modules(root, recorder.detail())
    group = torch.distributed
    recorder.identify(group.get_rank(), group.get_world_size())
    if not _said:
        _said.append(True)
        note_attached("FSDP")

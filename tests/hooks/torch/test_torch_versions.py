"""A PyTorch that lacks what a hook looks for is used as ever."""

from types import ModuleType
from typing import Any

import pytest
from support.launch.torch_training import network

import tracelens as tl
from tracelens_instrument.hooks.torch import hook


@pytest.mark.filterwarnings("error")
def test_without_fsdp2_nothing_is_patched() -> None:
    """`torch.distributed.fsdp` of PyTorch 2.4 has no `fully_shard`: it is imported as ever."""
    module = ModuleType("torch.distributed.fsdp")
    hook._patch_fsdp(module)
    assert not hasattr(module, "fully_shard")


@pytest.mark.usefixtures("trace")
def test_where_fsdp2_was_before_it_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, however often it is looked at; it returns what it returned."""
    recorded: list[Any] = []
    monkeypatch.setattr(hook, "_record_sharded", recorded.append)
    module: Any = ModuleType("torch.distributed._composable.fsdp")
    module.fully_shard = lambda model: ("sharded", model)
    for _ in range(2):
        hook._patch_fsdp(module)
    model = network()
    assert module.fully_shard(model) == ("sharded", model)
    assert recorded == [model]
    tl.stop()

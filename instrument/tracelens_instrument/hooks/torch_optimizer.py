"""Weight updates: a span around each step of an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch.optim import optimizer as torch_optimizer

from tracelens_instrument import recorder
from tracelens_instrument.hooks.base import guarded
from tracelens_instrument.hooks.torch_steps import STEPS

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tracelens_instrument.span import Token

__all__ = ["install", "record_updates"]

_open: Final[dict[int, Token]] = {}
_everywhere: Final[list[bool]] = []
_ATTRIBUTE: Final = "_tracelens_recorded"


def install() -> None:
    """Record the steps of every optimizer in this process."""
    if not _everywhere:
        _everywhere.append(True)
        torch_optimizer.register_optimizer_step_pre_hook(_begin)
        torch_optimizer.register_optimizer_step_post_hook(_end)


def record_updates(optimizer: Optimizer) -> None:
    """Record the steps of one optimizer."""
    if not _everywhere and _ATTRIBUTE not in vars(optimizer):
        setattr(optimizer, _ATTRIBUTE, True)
        optimizer.register_step_pre_hook(_begin)
        optimizer.register_step_post_hook(_end)


def _begin(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    guarded(_begin_update)(optimizer)


def _end(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    guarded(_end_update)(optimizer)


def _begin_update(optimizer: Optimizer) -> None:
    stale = _open.pop(id(optimizer), None)
    if stale is not None:
        stale.end(failed=True)  # a step that raised: PyTorch calls no hook then
    span = recorder.span(type(optimizer).__name__, kind="update")
    _open[id(optimizer)] = span.begin()


def _end_update(optimizer: Optimizer) -> None:
    token = _open.pop(id(optimizer), None)
    if token is not None:
        token.end()
        STEPS.updated(optimizer)

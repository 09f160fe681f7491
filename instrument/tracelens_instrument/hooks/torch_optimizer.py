"""Weight updates: a span around each step of an optimizer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from torch.optim import optimizer as torch_optimizer

from tracelens_instrument import recorder
from tracelens_instrument.hooks.base import attempt
from tracelens_instrument.hooks.torch_device import Placed
from tracelens_instrument.hooks.torch_steps import LOOK, STEPS

if TYPE_CHECKING:
    from types import FrameType

    from torch.optim import Optimizer

    from tracelens_instrument.device_span import DeviceSpan, DeviceToken
    from tracelens_instrument.span import Span, Token

__all__ = ["install", "record_updates"]

_open: Final[dict[int, _Update]] = {}
_everywhere: Final[list[bool]] = []
_spans: Final[WeakKeyDictionary[Optimizer, Span | DeviceSpan]] = WeakKeyDictionary()
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


class _Update:
    """A step under way; `caller` is the frame that makes it, which tells whether it still runs."""

    def __init__(self, token: Token | DeviceToken | None, caller: int) -> None:
        self._token = token
        self.depth = 1
        self._caller = caller

    def is_around(self, frame: FrameType) -> bool:
        """Tell whether `frame` runs inside this step."""
        outer = frame.f_back
        while outer is not None and id(outer) != self._caller:
            outer = outer.f_back
        return outer is not None

    def end(self) -> None:
        """It is done."""
        if self._token is not None:
            self._token.end()

    def forget(self) -> None:
        """It raised: PyTorch calls no hook then, so nobody knows when."""
        if self._token is not None:
            self._token.discard()


def _begin(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    attempt(_begin_update, optimizer, sys._getframe(1))  # noqa: SLF001 - that of the step


def _end(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    attempt(_end_update, optimizer)


def _begin_update(optimizer: Optimizer, caller: FrameType) -> None:
    before = _open.get(id(optimizer))
    if before is not None and before.is_around(caller):
        before.depth += 1  # the step of a class that calls its base's
        return
    if before is not None:
        before.forget()
    token = _span_of(optimizer).begin() if LOOK.phases else None
    _open[id(optimizer)] = _Update(token, id(caller))


def _end_update(optimizer: Optimizer) -> None:
    update = _open.get(id(optimizer))
    if update is None:
        return
    update.depth -= 1
    if update.depth == 0:
        del _open[id(optimizer)]
        update.end()
        STEPS.updated(optimizer)


def _span_of(optimizer: Optimizer) -> Span | DeviceSpan:
    """Return its handle: on a device if its weights are there when it makes its first step."""
    span = _spans.get(optimizer)
    if span is None:
        placed = Placed(recorder.span(type(optimizer).__name__, kind="update"))
        span = _spans[optimizer] = placed.at(_first_weight(optimizer))
    return span


def _first_weight(optimizer: Optimizer) -> Any:
    weights = (weight for group in optimizer.param_groups for weight in group["params"])
    return next(weights, None)

"""Training steps as they show from outside, from batch to batch, and the weight update in each."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

from torch.optim import optimizer as torch_optimizer

from tracelens_instrument import recorder
from tracelens_instrument.core.clock import now
from tracelens_instrument.core.state import STATE
from tracelens_instrument.core.steps import drop_step, put_work
from tracelens_instrument.hooks.base import Switch, warn_failed
from tracelens_instrument.hooks.torch.devices import Placed
from tracelens_instrument.recorder import active, begin_step, end_step, on_stop

if TYPE_CHECKING:
    from types import FrameType

    from torch.optim import Optimizer

    from tracelens_instrument.core.spans import Token
    from tracelens_instrument.device.spans import DeviceToken

__all__ = [
    "DETAIL",
    "IMPLICIT_STEPS",
    "Detail",
    "ImplicitSteps",
    "install_updates",
    "record_updates",
]
_RECORDED_ATTRIBUTE: Final = "_tracelens_recorded"


class Detail:
    """How closely this process's training is looked at: at its phases, or at its steps only."""

    def __init__(self) -> None:
        self.records_phases = False


DETAIL: Final = Detail()


class ImplicitSteps:
    """Numbers the steps of a program that does not say where its steps are.

    The first begins with the first batch or forward pass that is recorded. A program may have several
    optimizers: each step holds one step of the optimizer that was the first to make one, and lasts
    until the next batch is fetched, or trained on if that was fetched before. So what else is updated
    with this batch is part of it. Where no batch is fetched, the first message to or from another rank
    after the update begins a step, too: a stage of a pipeline is sent what it computes on. The last ends
    with the last update; a step without computation does not count.
    """

    def __init__(self) -> None:
        self._first_optimizer: weakref.ref[Any] | None = None
        self._batch_samples: int | None = None
        self._last_update_ns: int | None = None
        self._forget()

    def note_fetch_begin(self) -> None:
        """Called when a batch is fetched."""
        self._has_fetched = self._has_new_batch = True
        self._advance()

    def note_fetched_samples(self, sample_count: int | None) -> None:
        """Note how many samples the batch has; they count if the model is then trained on it."""
        self._batch_samples = sample_count

    def note_forward_begin(self) -> None:
        """Called when a forward pass of the training begins."""
        self._has_seen_forward = True
        self._note_computation()

    def note_backward_begin(self) -> None:
        """Called when a backward pass begins; its forward pass, if that was seen, has said it all."""
        if not self._has_seen_forward:
            self._note_computation()
        self._has_seen_forward = False

    def note_message_begin(self) -> None:
        """Called when a message between ranks begins."""
        if self._last_update_ns is not None and not self._has_fetched:
            self._advance()

    def _note_computation(self) -> None:
        if self._has_new_batch or not self._has_fetched or not self._has_begun:
            self._advance()
        self._has_new_batch = False
        self._has_computed = True
        samples, self._batch_samples = self._batch_samples, None
        if samples is not None:
            put_work("samples", samples)

    def note_update(self, optimizer: Any) -> None:
        """Called when an optimizer has made its step."""
        if not self._has_begun:
            return
        if self._first_optimizer is None or self._first_optimizer() is None:
            self._first_optimizer = weakref.ref(optimizer)
        if self._last_update_ns is not None or self._first_optimizer() is optimizer:
            self._last_update_ns = now()

    def _advance(self) -> None:
        """Begin the first step, or the next one if this one has had its update."""
        if not self._has_begun:
            if active():
                on_stop(self._stop)
                self._begin()
        elif self._last_update_ns is not None:
            self._step_number += 1
            self._begin()

    def _begin(self) -> None:
        self._has_begun = True
        self._has_computed = False
        self._last_update_ns = None
        begin_step(self._step_number)

    def _stop(self) -> None:
        if not self._has_computed:
            drop_step()
        elif self._last_update_ns is not None:
            end_step(self._last_update_ns)
        self._forget()

    def _forget(self) -> None:
        self._first_optimizer = None
        self._step_number = 0
        self._has_begun = False
        self._has_computed = False
        self._batch_samples = None
        self._has_fetched = self._has_new_batch = self._has_seen_forward = False
        self._last_update_ns = None


IMPLICIT_STEPS: Final = ImplicitSteps()

_updates: Final[dict[int, _Updates]] = {}  # by id, which is found without a call of Python
_INSTALLED: Final = Switch()


def install_updates() -> None:
    """Record the steps of every optimizer in this process."""
    if _INSTALLED.turn_on_if_off():
        torch_optimizer.register_optimizer_step_pre_hook(_before_update)
        torch_optimizer.register_optimizer_step_post_hook(_after_update)


def record_updates(optimizer: Optimizer) -> None:
    """Record the steps of one optimizer."""
    if not _INSTALLED.is_on and _RECORDED_ATTRIBUTE not in vars(optimizer):
        setattr(optimizer, _RECORDED_ATTRIBUTE, True)
        optimizer.register_step_pre_hook(_before_update)
        optimizer.register_step_post_hook(_after_update)


class _Updates:
    """The steps of one optimizer; one under way has a depth."""

    __slots__ = (
        "_call_depth",
        "_caller_frame_id",
        "_span_token",
        "_update_span",
        "optimizer_reference",
    )

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer_reference = weakref.ref(optimizer, _forget)
        placed = Placed(recorder.span(type(optimizer).__name__, kind="update"))
        self._update_span = placed.handle_for(_first_weight(optimizer))
        self._span_token: Token | DeviceToken | None = None
        self._call_depth = 0
        self._caller_frame_id = 0  # the frame that makes the step, as long as that runs

    def begin(self, caller: FrameType) -> None:
        """A step begins, or one inside it: that of a class that calls its base's."""
        if self._call_depth and self._is_around(caller):
            self._call_depth += 1
            return
        if self._call_depth and self._span_token is not None:
            self._span_token.discard()  # it raised: PyTorch calls no hook then, so its end is not known
        self._span_token = self._update_span.begin() if DETAIL.records_phases else None
        self._call_depth = 1
        self._caller_frame_id = id(caller)

    def end(self, optimizer: Optimizer) -> None:
        """It is done."""
        if not self._call_depth:
            return
        self._call_depth -= 1
        if self._call_depth:
            return
        if self._span_token is not None:
            self._span_token.end()
        if STATE.infers_steps:
            IMPLICIT_STEPS.note_update(optimizer)

    def _is_around(self, frame: FrameType) -> bool:
        outer = frame.f_back
        while outer is not None and id(outer) != self._caller_frame_id:
            outer = outer.f_back
        return outer is not None


def _before_update(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    try:
        optimizer_updates = _updates.get(id(optimizer))
        if optimizer_updates is None or optimizer_updates.optimizer_reference() is not optimizer:
            optimizer_updates = _updates[id(optimizer)] = _Updates(optimizer)
        optimizer_updates.begin(sys._getframe(1))  # noqa: SLF001 - that of the step
    except Exception as error:  # noqa: BLE001 - the border to the user's training code
        warn_failed(_before_update, error)


def _after_update(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    try:
        known = _updates.get(id(optimizer))
        if known is not None:
            known.end(optimizer)
    except Exception as error:  # noqa: BLE001 - as above
        warn_failed(_after_update, error)


def _forget(dropped: weakref.ref[Optimizer]) -> None:
    for key, known in list(_updates.items()):
        if known.optimizer_reference is dropped:
            del _updates[key]


def _first_weight(optimizer: Optimizer) -> Any:
    """Return a weight, which says whether the optimizer works on a device."""
    weights = (weight for group in optimizer.param_groups for weight in group["params"])
    return next(weights, None)

"""Hugging Face's Trainer: steps, evaluation and checkpoints; the rest is PyTorch's (`hooks.torch`).

    Trainer(..., callbacks=[TraceLensCallback()])

``tracelens record`` adds it to every trainer.
"""

from __future__ import annotations

from typing import Any, Final

import wrapt
from transformers.trainer import Trainer
from transformers.trainer_callback import TrainerCallback

from tracelens_instrument import recorder
from tracelens_instrument.core.attachments import note_attached
from tracelens_instrument.hooks.base import attempt
from tracelens_instrument.hooks.trainers.callbacks import CallbackSteps

__all__ = ["TraceLensCallback", "attach", "install", "matches"]

_PAUSES: Final = {"evaluate": "user", "_save_checkpoint": "checkpoint"}


class TraceLensCallback(TrainerCallback):  # type: ignore[misc]  # transformers may be missing: Any
    """Records the steps of a training, by the trainer's `global_step`."""

    def __init__(self) -> None:
        self._steps = CallbackSteps()

    def on_step_begin(self, _arguments: Any, state: Any, _control: Any, **_others: Any) -> None:
        """Begin a step; micro steps, for which gradients are gathered, are within it."""
        attempt(self._steps.step, state.global_step)

    def on_train_end(self, *_arguments: Any, **_others: Any) -> None:
        """End the last one."""
        attempt(self._steps.end_step)


def matches(obj: object) -> bool:
    """Return True if this is a trainer."""
    return isinstance(obj, Trainer)


def attach(trainer: Any) -> Any:
    """Record the steps of this trainer; returns it."""
    callbacks = trainer.callback_handler.callbacks
    if not any(isinstance(callback, TraceLensCallback) for callback in callbacks):
        trainer.add_callback(TraceLensCallback())
        note_attached("Hugging Face's Trainer")
    return trainer


def install(_transformers: Any) -> None:
    """Record every trainer's steps, evaluations and checkpoints."""
    wrapt.wrap_function_wrapper("transformers.trainer", "Trainer.__init__", _around_init)
    for method, kind in _PAUSES.items():
        wrapt.wrap_function_wrapper(
            "transformers.trainer", f"Trainer.{method}", _pause(method.strip("_"), kind)
        )


def _around_init(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    attempt(attach, trainer)


def _pause(name: str, kind: str) -> Any:
    def record_call(wrapped: Any, _trainer: Any, args: Any, kwargs: Any) -> Any:
        with recorder.span(name.replace("_", " "), kind=kind):
            return wrapped(*args, **kwargs)

    return record_call

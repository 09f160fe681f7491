"""Lightning: steps, validation and checkpoints by a callback; the rest is PyTorch's (`hooks.torch`).

    Trainer(callbacks=[TraceLensCallback()])

``tracelens record`` adds it to every trainer.
"""

from __future__ import annotations

from typing import Any

import wrapt
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback

from tracelens_instrument import recorder
from tracelens_instrument.core.attachments import note_attached
from tracelens_instrument.hooks.base import attempt
from tracelens_instrument.hooks.trainers.callbacks import CallbackSteps

__all__ = ["TraceLensCallback", "attach", "install", "matches"]


class TraceLensCallback(Callback):  # type: ignore[misc]  # Lightning may be missing: Any
    """Records a fit's steps, by the trainer's `global_step`, and its validations."""

    def __init__(self) -> None:
        self._steps = CallbackSteps()

    def on_train_batch_start(self, trainer: Trainer, *_others: Any) -> None:
        """Begin a step, unless gradients are still gathered for the one before."""
        attempt(self._steps.step, trainer.global_step)

    def on_train_end(self, *_others: Any) -> None:
        """End the last one."""
        attempt(self._steps.end_step)

    def on_validation_start(self, *_others: Any) -> None:
        """Begin a validation."""
        attempt(self._steps.begin, "validation")

    def on_validation_end(self, *_others: Any) -> None:
        """End it."""
        attempt(self._steps.end, "validation")


def matches(obj: object) -> bool:
    """Return True if this is a trainer."""
    return isinstance(obj, Trainer)


def attach(trainer: Trainer) -> Trainer:
    """Record the fits of this trainer; returns it."""
    if not any(isinstance(callback, TraceLensCallback) for callback in trainer.callbacks):
        trainer.callbacks.append(TraceLensCallback())
        note_attached("Lightning's Trainer")
    return trainer


def install(_lightning: Any) -> None:
    """Record every trainer's fits and checkpoints."""
    wrapt.wrap_function_wrapper(
        "lightning.pytorch.trainer.trainer", "Trainer.__init__", _around_init
    )
    wrapt.wrap_function_wrapper(
        "lightning.pytorch.trainer.trainer", "Trainer.save_checkpoint", _around_checkpoint
    )


def _around_init(wrapped: Any, trainer: Trainer, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    attempt(attach, trainer)


def _around_checkpoint(wrapped: Any, _trainer: Trainer, args: Any, kwargs: Any) -> Any:
    with recorder.span("checkpoint", kind="checkpoint"):
        return wrapped(*args, **kwargs)

"""Training steps as they show from outside: up to the end of an optimizer's step, then the next."""

from __future__ import annotations

import weakref
from typing import Any, Final

from tracelens_instrument.recorder import active, begin_step, end_step, on_stop
from tracelens_instrument.steps import drop_step, put_work

__all__ = ["LOOK", "STEPS", "ImplicitSteps"]


class Look:
    """How closely this process's training is looked at: at its phases, or at its steps only."""

    def __init__(self) -> None:
        self.phases = False


LOOK: Final = Look()


class ImplicitSteps:
    """Numbers the steps of a program that does not say where its steps are.

    The first begins with the first batch or forward pass that is recorded. Each ends with the step of
    the optimizer that was the first to make one (a program may have several), and the next begins
    there. A last one in which nothing was computed is none.
    """

    def __init__(self) -> None:
        self._optimizer: weakref.ref[Any] | None = None
        self._samples: int | None = None
        self._forget()

    def fetching(self) -> None:
        """Be told that a batch is fetched."""
        if not self._begun and active():
            on_stop(self._stop)
            self._begin()

    def fetched(self, samples: int | None) -> None:
        """Be told how many samples the batch has; they count if the model is then trained on it."""
        self._samples = samples

    def computing(self) -> None:
        """Be told that a forward pass of the training begins."""
        self.fetching()
        self._used = True
        samples, self._samples = self._samples, None
        if samples is not None:
            put_work("samples", samples)

    def updated(self, optimizer: Any) -> None:
        """Be told that an optimizer has made its step."""
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._begun and self._optimizer() is optimizer:
            end_step()
            self._number += 1
            self._begin()

    def _begin(self) -> None:
        self._begun = True
        self._used = False
        begin_step(self._number)

    def _stop(self) -> None:
        if not self._used:
            drop_step()
        self._forget()

    def _forget(self) -> None:
        self._optimizer = None
        self._number = 0
        self._begun = False
        self._used = False
        self._samples = None


STEPS: Final = ImplicitSteps()

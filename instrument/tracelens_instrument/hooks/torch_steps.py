"""Training steps as they show from outside: from batch to batch, with an optimizer's step in each."""

from __future__ import annotations

import weakref
from typing import Any, Final

from tracelens_instrument.clock import now
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

    The first begins with the first batch or forward pass that is recorded. A program may have several
    optimizers: each step holds one step of the optimizer that was the first to make one, and lasts
    until the next batch is fetched, or trained on if that was fetched before. So what else is updated
    with this batch is part of it. The last ends with the last update; one in which nothing was computed
    is none.
    """

    def __init__(self) -> None:
        self._optimizer: weakref.ref[Any] | None = None
        self._samples: int | None = None
        self._updated_ns: int | None = None
        self._forget()

    def fetching(self) -> None:
        """Be told that a batch is fetched."""
        self._fetches = self._fresh = True
        self._advance()

    def fetched(self, samples: int | None) -> None:
        """Be told how many samples the batch has; they count if the model is then trained on it."""
        self._samples = samples

    def computing(self) -> None:
        """Be told that a forward pass of the training begins."""
        self._forward = True
        self._compute()

    def propagating(self) -> None:
        """Be told that a backward pass begins; its forward pass, if that was seen, has said it all."""
        if not self._forward:
            self._compute()
        self._forward = False

    def _compute(self) -> None:
        if self._fresh or not self._fetches or not self._begun:
            self._advance()
        self._fresh = False
        self._used = True
        samples, self._samples = self._samples, None
        if samples is not None:
            put_work("samples", samples)

    def updated(self, optimizer: Any) -> None:
        """Be told that an optimizer has made its step."""
        if not self._begun:
            return
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._updated_ns is not None or self._optimizer() is optimizer:
            self._updated_ns = now()

    def _advance(self) -> None:
        """Begin the first step, or the next one if this one has had its update."""
        if not self._begun:
            if active():
                on_stop(self._stop)
                self._begin()
        elif self._updated_ns is not None:
            end_step()
            self._number += 1
            self._begin()

    def _begin(self) -> None:
        self._begun = True
        self._used = False
        self._updated_ns = None
        begin_step(self._number)

    def _stop(self) -> None:
        if not self._used:
            drop_step()
        elif self._updated_ns is not None:
            end_step(self._updated_ns)
        self._forget()

    def _forget(self) -> None:
        self._optimizer = None
        self._number = 0
        self._begun = False
        self._used = False
        self._samples = None
        self._fetches = self._fresh = self._forward = False
        self._updated_ns = None


STEPS: Final = ImplicitSteps()

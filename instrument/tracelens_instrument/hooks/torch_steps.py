"""Training steps as they show from outside: up to the end of an optimizer's step, then the next."""

from __future__ import annotations

import weakref
from typing import Any, Final

from tracelens_instrument.recorder import begin_step, end_step

__all__ = ["STEPS", "ImplicitSteps"]


class ImplicitSteps:
    """Numbers the steps of a program that does not say where its steps are.

    The first begins with the first batch or forward pass. Each ends with the step of the optimizer
    that was the first to make one (a program may have several), and the next begins there.
    """

    def __init__(self) -> None:
        self._number = 0
        self._begun = False
        self._optimizer: weakref.ref[Any] | None = None

    def working(self) -> None:
        """Be told that a batch is fetched or a forward pass begins."""
        if not self._begun:
            self._begun = True
            begin_step(self._number)

    def updated(self, optimizer: Any) -> None:
        """Be told that an optimizer has made its step."""
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is optimizer:
            end_step()
            self._number += 1
            self._begun = True
            begin_step(self._number)


STEPS: Final = ImplicitSteps()

"""Events of a trainer's callbacks: where its steps begin and end, and work other than training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_instrument import recorder

if TYPE_CHECKING:
    from tracelens_instrument.core.spans import Token
    from tracelens_instrument.recorder import Step

__all__ = ["CallbackSteps"]


class CallbackSteps:
    """A trainer's steps and pauses, one of each at a time."""

    def __init__(self) -> None:
        self._step_number: int | None = None
        self._step: Step | None = None
        self._token_by_pause_name: dict[str, Token] = {}

    def step(self, number: int) -> None:
        """Begin a step; micro steps of one step are all in it."""
        if number != self._step_number:
            self.end_step()
            self._step_number, self._step = number, recorder.step(number)
            self._step.__enter__()

    def end_step(self) -> None:
        """End the step."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
        self._step_number = self._step = None

    def begin(self, name: str, kind: str = "user") -> None:
        """Begin work other than training."""
        self._token_by_pause_name[name] = recorder.span(name, kind=kind).begin()

    def end(self, name: str) -> None:
        """End the work that `begin` began under this name, if any."""
        token = self._token_by_pause_name.pop(name, None)
        if token is not None:
            token.end()

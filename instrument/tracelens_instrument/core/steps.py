"""Training steps: a step's span, the work done in it, and the number that events are stamped with."""

from __future__ import annotations

import struct

from tracelens.schema.record import VALUE
from tracelens_instrument.core.arguments import fits_step
from tracelens_instrument.core.backend import NATIVE
from tracelens_instrument.core.clock import now
from tracelens_instrument.core.failures import reraise_if_handlers
from tracelens_instrument.core.registry import REGISTRY
from tracelens_instrument.core.spans import Span, Token
from tracelens_instrument.core.state import NO_STEP, STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, Self

__all__ = [
    "PythonStep",
    "Step",
    "begin_step",
    "drop_step",
    "end_step",
    "forget_steps",
    "put_counter",
    "put_work",
]

_STEP: Final = Span(REGISTRY.definition_id("step", "step"))
_SPAN_BY_WORK: Final = {
    name: Span(REGISTRY.definition_id(name, "step", "counter")) for name in ("samples", "tokens")
}
_AS_REQUEST: Final = struct.Struct("@Q")


class PythonStep:
    """One training step: ``with tl.step(i, samples=len(batch)):``."""

    __slots__ = ("_previous_step", "_sample_count", "_step_number", "_step_token", "_token_count")

    def __init__(self, number: int, samples: float | None, tokens: float | None) -> None:
        self._step_number = number
        self._sample_count = samples
        self._token_count = tokens
        self._step_token: Token | None = None
        self._previous_step = NO_STEP

    def __enter__(self) -> Self:
        if STATE.is_on:
            if STATE.infers_steps:
                _IMPLICIT.give_way()
            self._previous_step = STATE.step
            self._step_token = _enter(self._step_number)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        token, self._step_token = self._step_token, None
        if token is None:
            return
        token.end(failed=kind is not None)
        if kind is None:
            if self._sample_count is not None:
                put_counter(_SPAN_BY_WORK["samples"], self._sample_count)
            if self._token_count is not None:
                put_counter(_SPAN_BY_WORK["tokens"], self._token_count)
        _leave(self._previous_step)


class _Implicit:
    """Steps inferred by hooks, until the user marks steps."""

    def __init__(self) -> None:
        self.step_token: Token | None = None
        self._step_number = NO_STEP
        self._start_ns = 0

    def begin(self, number: int) -> None:
        if STATE.infers_steps and STATE.is_on:
            self.end()
            self._step_number, self._start_ns = number, now()
            self.step_token = _enter(number)

    def end(self, end_ns: int | None = None) -> None:
        token, self.step_token = self.step_token, None
        if token is None:
            return
        if end_ns is None:
            token.end()
        else:
            token.discard()
            _STEP.complete(self._start_ns, end_ns, step=self._step_number)
        _leave(NO_STEP)

    def give_way(self) -> None:
        STATE.infers_steps = False
        self.drop()

    def drop(self) -> None:
        token, self.step_token = self.step_token, None
        if token is not None:
            token.discard()
            STATE.set_step(NO_STEP)


_IMPLICIT: Final = _Implicit()


def begin_step(number: int) -> None:
    """Begin a step that a hook infers, ending the one before; the user's own `step` rules it out."""
    _IMPLICIT.begin(number)


def end_step(end_ns: int | None = None) -> None:
    """End the step that a hook began: now, or as of a moment that has turned out to be its end."""
    _IMPLICIT.end(end_ns)


def drop_step() -> None:
    """Remove the step that a hook began: nothing was computed in it."""
    _IMPLICIT.drop()


def forget_steps() -> None:
    """Leave any step, and accept steps inferred by hooks again."""
    _IMPLICIT.step_token = None
    STATE.infers_steps = True
    STATE.set_step(NO_STEP)


def put_work(name: str, amount: float) -> None:
    """Record the work done in a step that a hook began; the user's own `tl.step` carries it itself."""
    if _IMPLICIT.step_token is not None:
        put_counter(_SPAN_BY_WORK[name], amount)


def put_counter(handle: Span, value: Any) -> None:
    """Record the value of a counter at this moment."""
    try:
        (bits,) = _AS_REQUEST.unpack(VALUE.pack(value))
    except Exception as error:  # noqa: BLE001 - training code hands in anything, and must not fail
        reraise_if_handlers(error)
        if STATE.recording is not None:
            STATE.recording.clipped_events.add()
        return
    handle.begin(request=bits)


def _enter(number: int) -> Token:
    token = _STEP.begin(step=number)
    step = fits_step(number)
    STATE.set_step(NO_STEP if step is None else step)
    return token


def _leave(previous_step: int) -> None:
    STATE.set_step(previous_step)
    if STATE.recording is not None and not STATE.pass_boundary():
        STATE.recording.at_step_boundary()


if TYPE_CHECKING or not NATIVE:
    Step = PythonStep
else:
    from tracelens_instrument._native import Step, install_steps

    install_steps(_STEP, *_SPAN_BY_WORK.values(), put_counter, PythonStep)

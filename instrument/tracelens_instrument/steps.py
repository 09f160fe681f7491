"""Training steps: the span of a step, the work done in it, and the number that events are stamped with."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Self

from tracelens.schema.record import NO_REQUEST, VALUE
from tracelens_instrument.clock import now
from tracelens_instrument.registry import REGISTRY
from tracelens_instrument.span import Span, Use
from tracelens_instrument.state import NO_STEP, STATE

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Step", "begin_step", "end_step", "forget_steps", "put_counter"]

_STEP: Final = Span(REGISTRY.definition("step", "step"))
_WORK: Final = {
    name: REGISTRY.definition(name, "step", "counter") for name in ("samples", "tokens")
}
_AS_REQUEST: Final = struct.Struct("@Q")


class Step:
    """One training step: ``with tl.step(i, samples=len(batch)):``."""

    __slots__ = ("_before", "_number", "_use", "_work")

    def __init__(self, number: int, samples: float | None, tokens: float | None) -> None:
        self._number = number
        self._work = {"samples": samples, "tokens": tokens}
        self._use: Use | None = None
        self._before = NO_STEP

    def __enter__(self) -> Self:
        if STATE.segment is not None or STATE.waiting is not None:
            _IMPLICIT.give_way()
            self._before = STATE.step
            self._use = _STEP.begin(step=self._number)
            STATE.set_step(self._number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._use is None:
            return
        self._use.end(failed=kind is not None)
        if kind is None:
            self._put_work()
        self._use = None
        STATE.set_step(self._before)
        _housekeeping()

    def _put_work(self) -> None:
        for name, amount in self._work.items():
            if amount is not None:
                put_counter(_WORK[name], amount)


class _Implicit:
    """The step that hooks believe to see, until the user says where steps begin and end."""

    def __init__(self) -> None:
        self.use: Use | None = None
        self.heeded = True

    def begin(self, number: int) -> None:
        if self.heeded and (STATE.segment is not None or STATE.waiting is not None):
            self.end()
            self.use = _STEP.begin(step=number)
            STATE.set_step(number)

    def end(self) -> None:
        use, self.use = self.use, None
        if use is not None:
            use.end()
            STATE.set_step(NO_STEP)
            _housekeeping()

    def give_way(self) -> None:
        self.heeded = False
        use, self.use = self.use, None
        if use is not None:
            use.discard()
            STATE.set_step(NO_STEP)


_IMPLICIT: Final = _Implicit()


def begin_step(number: int) -> None:
    """Begin a step that a hook infers, ending the one before; the user's own `step` rules it out."""
    _IMPLICIT.begin(number)


def end_step() -> None:
    """End the step that a hook began."""
    _IMPLICIT.end()


def forget_steps() -> None:
    """Be outside of any step, and heed hooks again."""
    _IMPLICIT.use = None
    _IMPLICIT.heeded = True
    STATE.set_step(NO_STEP)


def put_counter(definition: int, value: Any) -> None:
    """Record the value of a counter at this moment."""
    try:
        (bits,) = _AS_REQUEST.unpack(VALUE.pack(value))
    except Exception:  # noqa: BLE001 - training code hands in anything, and must not fail
        bits = NO_REQUEST
        if STATE.recording is not None:
            STATE.recording.clipped.add()
    moment = now()
    Span(definition).complete(moment, moment, request=bits)


def _housekeeping() -> None:
    recording = STATE.recording
    if recording is not None:
        recording.at_step_boundary()

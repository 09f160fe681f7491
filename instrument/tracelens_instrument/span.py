"""Spans: handles that are made once and used many times.

The methods that run inside training (`__enter__`, `__exit__`) are written flat: every call and every
attribute that they do without is time that the training keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from tracelens.schema.record import (
    NO_BYTES,
    NO_INDEX,
    NO_REQUEST,
    NO_SEQ,
    NO_SHORT,
    RECORD,
)
from tracelens_instrument.clock import now
from tracelens_instrument.lifecycle import first_use
from tracelens_instrument.state import OPEN, STATE

if TYPE_CHECKING:
    from types import TracebackType

    from tracelens_instrument.segments import Segment

__all__ = ["Span", "Use", "Values"]

_open = OPEN.pack_into
_write = RECORD.pack_into


class Values(TypedDict, total=False):
    """What may be said of one use of a span."""

    nbytes: int
    seq: int
    bucket: int
    peer: int
    key: int
    request: int
    queue_depth: int
    micro_step: int
    step: int | None


class Span:
    """A kind of work, named once: ``with SPAN:`` or ``with SPAN(nbytes=n):`` records one piece of it.

    May be used from any thread, inside itself, and in signal handlers. Interleaved use of one
    handle by coroutines of a thread needs the second form, whose state is its own.
    """

    __slots__ = ("definition",)

    def __init__(self, definition: int) -> None:
        self.definition = definition

    def __enter__(self) -> Self:
        segment = STATE.segment
        if segment is None:
            if STATE.waiting is None:
                return self
            segment = first_use()
            if segment is None:
                return self
        offset = segment.take()
        if offset >= segment.limit:
            segment, offset = segment.owner.rotate(segment)
        try:
            here = STATE.local.here
        except AttributeError:
            here = segment.owner.arrive()
        here.stack.append((self, segment, offset))
        _open(segment.memory, offset, now(), STATE.blank, here.block, self.definition)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        end = now()
        try:
            stack = STATE.local.here.stack
            span, segment, offset = stack.pop()
            if span is not self:
                segment, offset = _pull(stack, self, (span, segment, offset))
        except (AttributeError, IndexError):
            return  # it was entered before recording began
        segment.words[(offset >> 3) + 1] = end if kind is None else -end

    def __call__(
        self,
        *,
        nbytes: int = NO_BYTES,
        seq: int = NO_SEQ,
        bucket: int = NO_INDEX,
        peer: int = NO_INDEX,
        key: int = NO_INDEX,
        request: int = NO_REQUEST,
        queue_depth: int = NO_SHORT,
        micro_step: int = NO_SHORT,
        step: int | None = None,
    ) -> Use:
        """Say more about the next use: ``with SPAN(nbytes=n):``."""
        return Use(
            self.definition,
            (nbytes, request, seq),
            step,
            (key, bucket, peer),
            (micro_step, queue_depth),
        )

    def begin(self, track: int | None = None, **values: Unpack[Values]) -> Use:
        """Open a span that `end` of what is returned closes, in any thread."""
        return self(**values).begin(track)

    def complete(
        self, start_ns: int, end_ns: int, track: int | None = None, **values: Unpack[Values]
    ) -> None:
        """Record a span that is already over (monotonic clock)."""
        self(**values).put(start_ns, end_ns, track)


def _pull(
    stack: list[tuple[Span, Segment, int]], span: Span, top: tuple[Span, Segment, int]
) -> tuple[Segment, int]:
    """Find `span` further down, where uses did not nest; IndexError if it is not there."""
    stack.append(top)
    for at in range(len(stack) - 1, -1, -1):
        if stack[at][0] is span:
            return stack.pop(at)[1:]
    raise IndexError


class Use:
    """One use of a span with values of its own; also what `Span.begin` returns."""

    __slots__ = ("_definition", "_first", "_offset", "_second", "_segment", "_step", "_third")

    def __init__(
        self,
        definition: int,
        first: tuple[int, int, int],
        step: int | None,
        second: tuple[int, int, int],
        third: tuple[int, int],
    ) -> None:
        self._definition = definition
        self._first = first
        self._step = step
        self._second = second
        self._third = third
        self._segment: Segment | None = None
        self._offset = 0

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end(failed=kind is not None)

    def begin(self, track: int | None = None) -> Self:
        """Write the open record."""
        self.put(now(), 0, track)
        return self

    def end(self, *, failed: bool = False) -> None:
        """Close it, as failed if it ended by an exception."""
        end = now()
        segment = self._segment
        if segment is not None:
            segment.words[(self._offset >> 3) + 1] = -end if failed else end
            self._segment = None

    def discard(self) -> None:
        """Make as if it had never begun."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.memory[self._offset + 60 : self._offset + 64] = b"\0\0\0\0"

    def put(self, start_ns: int, end_ns: int, track: int | None = None) -> None:
        """Write the record."""
        segment = STATE.segment
        if segment is None:
            segment = first_use()
            if segment is None:
                return
        offset = segment.take()
        if offset >= segment.limit:
            segment, offset = segment.owner.rotate(segment)
        if track is None:
            try:
                track = STATE.local.here.index
            except AttributeError:
                track = segment.owner.arrive().index
        step = STATE.step if self._step is None else self._step
        fields = (*self._first, step, *self._second, track, *self._third)
        try:
            _write(segment.memory, offset, start_ns, end_ns, *fields, 0, self._definition)
        except Exception:  # noqa: BLE001 - training code hands in anything, and must not fail
            repair(segment, offset, start_ns, end_ns, fields, self._definition)
        self._segment = segment
        self._offset = offset


def repair(
    segment: Segment,
    offset: int,
    start_ns: int,
    end_ns: int,
    fields: tuple[Any, ...],
    definition: int,
) -> None:
    """Write a record some values of which do not fit, without those."""
    fit = [_fitting(value, *rule) for value, rule in zip(fields, _RULES, strict=True)]
    if any(value is not None and not ok for value, (_, ok) in zip(fields, fit, strict=True)):
        segment.owner.clipped.add()
    numbers = [number for number, _ in fit]
    _write(segment.memory, offset, start_ns, end_ns, *numbers, 0, definition)


# Per field of a record from `bytes` to `queue_depth`: lowest, highest, and "does not apply".
_I32 = (-(2**31), 2**31 - 1, NO_INDEX)
_U16 = (0, 2**16 - 1, NO_SHORT)
_RULES = (
    (-(2**63), 2**63 - 1, NO_BYTES),
    (0, 2**64 - 1, NO_REQUEST),
    (0, 2**32 - 1, NO_SEQ),
    _I32,
    _I32,
    _I32,
    _I32,
    (0, 2**16 - 1, 0),
    _U16,
    _U16,
)


def _fitting(value: Any, lowest: int, highest: int, absent: int) -> tuple[int, bool]:
    try:
        number = int(value)
    except Exception:  # noqa: BLE001 - a tensor, an array, anything may fail in its own way
        return absent, False
    fits = lowest <= number <= highest
    return (number if fits else absent), fits

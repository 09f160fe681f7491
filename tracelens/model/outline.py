"""What of each process's events all ranks must know: its steps, its calls, and little else.

Made in the first pass over a run (`tracelens.distil.outline`). Times are nanoseconds of the process's
own clock, steps as they were recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from tracelens.model.calls import CallFacts

if TYPE_CHECKING:
    from tracelens.arrays import Array, Flags, Floats, Int32s, Ints

__all__ = ["NO_CALLS", "NO_COUNTERS", "NO_STEPS", "CallRows", "Counters", "Outline", "StepSpans"]

_OWN: Final = ("start_ns", "end_ns")  # times, which no two processes share


@dataclass(frozen=True, kw_only=True, eq=False)
class CallRows(CallFacts):
    """Calls of collectives, by begin; `op` and `status` are words, `communicator` uids by number.

    What is missing is negative (`tracelens.model.columns`); `end_ns` is `FOREVER` if still open.
    Where work was timed on a device, its times count.
    """

    communicator_uids: tuple[str, ...]
    communicator: Array
    ops: tuple[str, ...]
    statuses: tuple[str, ...]


_NONE: Final[Any] = np.zeros(0, np.int32)
_NO_FACTS: Final[dict[str, Any]] = {field.name: _NONE for field in fields(CallFacts)}
NO_CALLS: Final = CallRows(
    communicator_uids=(), communicator=_NONE, ops=(), statuses=(), **_NO_FACTS
)


@dataclass(frozen=True, eq=False)
class StepSpans:
    """Spans of kind step, by begin, all [span]."""

    step: Int32s
    start_ns: Ints
    end_ns: Ints
    depth: Array
    is_on_training_thread: Flags


@dataclass(frozen=True, eq=False)
class Counters:
    """Readings of counters, by time, all [reading]; `name_codes` are indices of `names`."""

    names: tuple[str, ...]
    name_codes: Array
    step: Int32s
    thread: Int32s
    times_ns: Ints
    values: Floats


NO_STEPS: Final = StepSpans(*(_NONE for _ in fields(StepSpans)))
NO_COUNTERS: Final = Counters((), *(_NONE for _ in fields(Counters)[1:]))


@dataclass(frozen=True, eq=False)
class Outline:
    """What of one process's events all ranks must know.

    `implied_steps` (numbers, begins in ns) are steps by the numbers that other spans of the training
    thread carry, of a process that recorded none; `training_last_ns` is that thread's last moment.
    Requests go to servers, or to a center; messages are between ranks; open spans had not ended when the
    recording did; unnumbered calls are collectives without communicator or number. `device_extent_ns` is
    when devices began their first and ended their last work.
    """

    event_count: int
    span_count: int
    first_ns: int | None
    last_ns: int | None
    step_event_count: int  # of kind step, spans or not
    training_thread: int | None
    training_last_ns: int
    step_spans: StepSpans
    implied_steps: tuple[Int32s, Ints]
    calls: CallRows
    request_count: int
    message_count: int
    open_span_count: int
    device_span_count: int
    device_extent_ns: tuple[int, int] | None
    counters: Counters
    span_names: tuple[str, ...]
    unnumbered_call_count: int

    def share_arrays_of(self, other: Outline | None) -> Outline:
        """Return the outline with the arrays of another one where they are equal, so that one is kept.

        Ranks of one program make the same calls in the same steps.
        """
        if other is None:
            return self
        shared = {
            "calls": _share_arrays(self.calls, other.calls),
            "step_spans": _share_arrays(self.step_spans, other.step_spans),
            "counters": _share_arrays(self.counters, other.counters),
            "span_names": other.span_names
            if self.span_names == other.span_names
            else self.span_names,
        }
        return Outline(**(vars(self) | shared))


_Table = TypeVar("_Table", CallRows, StepSpans, Counters)


def _share_arrays(table: _Table, other: _Table) -> _Table:
    """Return a table with the arrays of a similar one where they are equal."""
    shared_values = {
        name: other_value
        for name, value in vars(table).items()
        for other_value in [getattr(other, name)]
        if name not in _OWN and _is_equal(value, other_value)
    }
    return type(table)(**(vars(table) | shared_values))


def _is_equal(value: Any, other_value: Any) -> bool:
    if value is other_value:
        return True
    if isinstance(value, np.ndarray):
        alike = value.dtype == other_value.dtype and value.shape == other_value.shape
        return alike and bool((value == other_value).all())
    return bool(value == other_value)

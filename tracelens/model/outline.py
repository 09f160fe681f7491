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

    uids: tuple[str, ...]
    communicator: Array
    ops: tuple[str, ...]
    statuses: tuple[str, ...]


_NONE: Final[Any] = np.zeros(0, np.int32)
_NO_FACTS: Final[dict[str, Any]] = {field.name: _NONE for field in fields(CallFacts)}
NO_CALLS: Final = CallRows(uids=(), communicator=_NONE, ops=(), statuses=(), **_NO_FACTS)


@dataclass(frozen=True, eq=False)
class StepSpans:
    """Spans of kind step, by begin; `on_training` says which are on the training thread."""

    step: Int32s
    start_ns: Ints
    end_ns: Ints
    depth: Array
    on_training: Flags


@dataclass(frozen=True, eq=False)
class Counters:
    """Readings of counters, by time; `name` is a place in `names`."""

    names: tuple[str, ...]
    name: Array
    step: Int32s
    thread: Int32s
    at_ns: Ints
    value: Floats


NO_STEPS: Final = StepSpans(*(_NONE for _ in fields(StepSpans)))
NO_COUNTERS: Final = Counters((), *(_NONE for _ in fields(Counters)[1:]))


@dataclass(frozen=True, eq=False)
class Outline:
    """What of one process's events all ranks must know.

    `implied` are steps by the numbers that other spans of the training thread carry (step, begin), for
    a process that recorded none; `training_last_ns` is the last moment of the training thread. Of some
    spans it is told how many there are: requests to servers and exchanges with a center, messages
    between ranks, those that were open at the end, those that a device timed, and collectives without
    communicator or number. `device_ns` is when devices began their first and ended their last work.
    """

    rows: int
    spans: int
    first_ns: int | None
    last_ns: int | None
    of_steps: int
    training_thread: int | None
    training_last_ns: int
    steps: StepSpans
    implied: tuple[Int32s, Ints]
    calls: CallRows
    requests: int
    messages: int
    opened: int
    on_device: int
    device_ns: tuple[int, int] | None
    counters: Counters
    names: tuple[str, ...]
    numberless: int

    def sharing(self, other: Outline | None) -> Outline:
        """Return it with the arrays of another outline where they are equal, so that one is kept.

        Ranks of one program make the same calls in the same steps.
        """
        if other is None:
            return self
        shared = {
            "calls": _sharing(self.calls, other.calls),
            "steps": _sharing(self.steps, other.steps),
            "counters": _sharing(self.counters, other.counters),
            "names": other.names if self.names == other.names else self.names,
        }
        return Outline(**(vars(self) | shared))


_Table = TypeVar("_Table", CallRows, StepSpans, Counters)


def _sharing(table: _Table, other: _Table) -> _Table:
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

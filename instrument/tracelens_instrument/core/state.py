"""What the hot path reads: one object, so that a span looks up as little as possible."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from operator import length_hint
from threading import local

from tracelens.schema.record import NO_BYTES, NO_INDEX, NO_REQUEST, NO_SEQ, NO_SHORT
from tracelens_instrument.core.backend import NATIVE
from tracelens_instrument.core.clock import now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any, Final, Protocol, TypeAlias

    from tracelens.schema.side import ClockReading, Retention
    from tracelens_instrument.core.identity import Identity

    Slot: TypeAlias = tuple[int, int]
    Entry: TypeAlias = tuple[object, "OpenSegment", int, "Entry | None"]

    class Count(Protocol):
        """A counter of lost events, `failures.Counter`."""

        @property
        def add(self) -> Callable[[], int]:
            """Count one more."""

    class OpenSegment(Protocol):
        """What spans need of the segment in use, `segments.Segment`."""

        slots: Iterator[Slot]
        memory: memoryview
        ends: memoryview[int]
        recording: OpenRecording

    class OpenRecording(Protocol):
        """What spans and steps need of the recording under way, `recording.Recording`."""

        retention: Retention

        @property
        def clipped_events(self) -> Count:
            """Counts events that are kept without a value that does not fit."""

        @property
        def failed_events(self) -> Count:
            """Counts events that the recorder failed at."""

        @property
        def devices(self) -> Any:
            """The devices it has met, `times.Devices`."""

        def reserve_slot_after(self, full: OpenSegment) -> tuple[OpenSegment, Slot]:
            """Reserve a slot in the segment after `full`."""

        def register_thread(self) -> ThreadState:
            """Enter the calling thread into the thread table."""

        def count_unusable_time(self) -> None:
            """Count an event that was left out because its times were no integers."""

        def write_clock_reading(self, reading: ClockReading) -> None:
            """Write down a reading of clocks."""

        def at_step_boundary(self) -> None:
            """Do the housekeeping that is due between two steps."""

        def keep(self) -> None:
            """Keep the steps in the ring permanently."""


__all__ = ["NO_STEP", "OPEN", "OPEN_WITH_BYTES", "STATE", "WORD", "State", "ThreadState", "Waiting"]

NO_STEP: Final = -1

# The machine's own word, which Python reads and writes quicker than what is 8 bytes everywhere.
WORD: Final = "l" if struct.calcsize("l") == 8 else "q"

# Most records say nothing but bytes, or not even these, so they are written in few pieces: start,
# (bytes,) what changes with the step (up to byte 52), what belongs to the thread (52..60), definition.
OPEN: Final = struct.Struct(f"@{WORD}8x36s8sI")
OPEN_WITH_BYTES: Final = struct.Struct(f"@{WORD}8x{WORD}28s8sI")
_BY_STEP: Final = struct.Struct("@qQIiiii")
_BY_THREAD: Final = struct.Struct("@HHHH")


class _ThreadState:
    """A thread in a recording: its row in the thread table, and the spans that `with SPAN:` opened.

    `latest_use` is the last of these, and holds the one before, and so on.
    """

    __slots__ = ("block", "index", "latest_use")

    latest_use: Entry | None

    def __init__(self, index: int) -> None:
        self.index = index
        self.block = _BY_THREAD.pack(index, NO_SHORT, NO_SHORT, 0)
        self.latest_use = None


class _Fields:
    __slots__ = (
        "_armed_segment",
        "_max_step_slots",
        "_min_slots_left",
        "_until_ns",
        "blank",
        "blank_beside_bytes",
        "infers_steps",
        "left",
        "local",
        "recording",
        "segment",
        "step",
        "waiting",
    )

    segment: OpenSegment | None
    waiting: Waiting | None
    recording: OpenRecording | None
    local: local
    step: int
    infers_steps: bool
    blank: bytes
    blank_beside_bytes: bytes
    left: int  # slots of the segment, at the latest boundary between steps
    _armed_segment: OpenSegment | None
    _min_slots_left: int
    _max_step_slots: int
    _until_ns: int

    def arm(self, duration_ns: int, max_step_slots: int, min_slots_left: int) -> bool:
        """Pass over the boundaries until then, as long as there is nothing to do in the segment.

        That is so while no step takes more than `max_step_slots`, and `min_slots_left` remain.
        """
        segment = self._armed_segment = self.segment
        if segment is None:
            return False
        self.left = length_hint(segment.slots)
        self._max_step_slots, self._min_slots_left = max_step_slots, min_slots_left
        self._until_ns = now() + duration_ns
        return True

    def disarm(self) -> None:
        """Pass over no boundary until `arm` is called again."""
        self._armed_segment = None

    def pass_boundary(self) -> bool:
        """Note a boundary between steps at which there is nothing to do; False if there may be.

        `arm` has named the segment for which that holds, the time until then, and the limits in slots.
        """
        segment = self.segment
        if segment is None or segment is not self._armed_segment or now() >= self._until_ns:
            return False
        slots_left = length_hint(segment.slots)
        slots_used = self.left - slots_left  # since the boundary before
        if slots_used > self._max_step_slots or slots_left < self._min_slots_left:
            return False
        self.left = slots_left
        return True


# In C, spans find these without asking Python.
if TYPE_CHECKING or not NATIVE:
    ThreadState = _ThreadState
    Fields = _Fields
else:
    from tracelens_instrument._native import Fields, ThreadState


@dataclass(frozen=True)
class Waiting:
    """A recording that opens at its first event: where, how, and whose if that is known already."""

    directory: Path
    open_recording: Callable[[], OpenSegment | None]
    identity: Identity | None = None


class State(Fields):
    """The recorder of this process.

    `segment` is None while nothing is recorded. `waiting` says where to open a recording at the
    first event, if one is wanted. `step` holds for all threads.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self.segment = None
        self.waiting = None
        self.recording = None
        self.local = local()
        self.infers_steps = True
        self.disarm()
        self.set_step(NO_STEP)

    @property
    def is_on(self) -> bool:
        """Whether events are recorded, now or from the first one on."""
        return self.segment is not None or self.waiting is not None

    def set_step(self, step: int) -> None:
        """Stamp later events with `step`."""
        self.step = step
        if not NATIVE:  # in C they are made when they are asked for
            blank = _BY_STEP.pack(NO_BYTES, NO_REQUEST, NO_SEQ, step, NO_INDEX, NO_INDEX, NO_INDEX)
            self.blank, self.blank_beside_bytes = blank, blank[8:]

    def forget(self) -> None:
        """Record nothing from now on."""
        self.segment = None
        self.disarm()
        self.recording = None
        self.waiting = None
        self.local = local()


STATE: Final = State()

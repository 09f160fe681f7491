"""A recording's segments: the one in use, those ready to follow, and which of the full ones stay."""

from __future__ import annotations

import errno
import itertools
import os
from threading import RLock
from weakref import ref

from tracelens.schema.record import RECORD_BYTES
from tracelens.schema.side import Kept, format_line, summarize_steps
from tracelens.schema.vocabulary import BUDGET_REACHED, CROWDED_OUT, NO_ROOM, OUTDATED
from tracelens_instrument.core.clock import now
from tracelens_instrument.core.failures import Tolerated, cannot_write, reraise_if_handlers
from tracelens_instrument.core.registry import REGISTRY
from tracelens_instrument.core.state import STATE
from tracelens_instrument.storage import segments
from tracelens_instrument.storage.segments import Segment, count_records, create_segment, sink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Final

    from tracelens.schema.side import Retention
    from tracelens_instrument.core.state import OpenRecording, OpenSegment, Slot
    from tracelens_instrument.retention.last_steps import Ring
    from tracelens_instrument.storage.side_file import Losses, SideFile

__all__ = ["Storage"]

_MAX_SPARE_SEGMENTS: Final = 16  # segments: what a step of 65,000 events needs
_MAX_UNRELEASED_SEGMENTS: Final = 8
_MEASURE_EVERY_NS: Final = 10**9
_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)
_WRITE_ERRORS: Final = (OSError, ValueError, MemoryError)


class _OverBudget(OSError):
    """The user's own limit is reached, not the disk's."""


class Storage:
    """Gives segments to a recording, within its budget.

    Segments are made ahead of time between steps, so that no span waits for one. Where none can be
    made any more, a sink counts what comes.
    """

    def __init__(
        self, folder: Path, recording: OpenRecording, side: SideFile, losses: Losses
    ) -> None:
        retention: Retention = recording.retention
        self._folder = folder
        self._recording = recording
        self._side_file = side
        self._losses = losses
        self._budget_bytes = retention.budget_bytes
        self._ring = None if retention.last is None else _make_ring(retention.last)
        self._lock = RLock()
        self._segment_numbers = itertools.count()
        self._unused_numbers: list[int] = []
        self._segment_references: set[ref[Segment]] = set()
        self._spare_segments: list[Segment] = []
        self._full_segments: list[Segment] = []
        self._step_count = 0
        self._used_segments = 0
        self._used_slots = 0
        # Slots before the end of the segment whose boundaries may be passed over; 0 without one.
        self._slots_to_armed_end = 0
        self._max_step_slots = 0  # of the biggest step so far
        self._segment_bytes = 0
        self._measure_due_ns = 0
        self._freeze_wanted = False
        self._is_closed = False
        self.segment = self._take_into_use(self._make_or_stop())
        self._count_used_slots()
        if not self.is_stopped:
            self._prepare()

    def reserve_slot_after(self, full: OpenSegment) -> tuple[Segment, Slot]:
        """Reserve a slot in the segment after `full`."""
        while True:
            with self._lock:
                if self.segment is full:
                    self._advance()
                segment = self.segment
            try:
                return segment, next(segment.slots)
            except StopIteration:
                full = segment

    def at_step_boundary(self) -> None:
        """Release full segments, and prepare those that the next step needs."""
        self._step_count += 1
        used_slots = self._count_used_slots()
        if self._ring is None and not self._full_segments and self._has_room(used_slots):
            return
        with self._lock:
            self._max_step_slots = max(self._max_step_slots, used_slots)
            self._release()
            if self.is_stopped:
                return
            if self._ring is not None:
                self._drop_outdated(self._ring)
            self._prepare()

    def pass_boundaries(self, duration_ns: int) -> None:
        """Skip calls of `at_step_boundary` for some time, while steps stay as they were.

        Not where only the last steps are kept, nor where a full segment waits for the end of a span.
        """
        if self._ring is None and not self._full_segments and STATE.segment is self.segment:
            # With fewer left than this `_prepare` would make one more.
            spare_slots = (len(self._spare_segments) - 1) * _segment_slots()
            min_slots_left = 2 * self._max_step_slots - spare_slots + 1
            STATE.arm(duration_ns, self._max_step_slots, min_slots_left)
            self._slots_to_armed_end = self._used_segments * _segment_slots()

    @property
    def is_stopped(self) -> bool:
        """Whether events are only counted, because there was no room for them."""
        return self.segment.path is None

    def freeze(self) -> None:
        """Keep the steps that the ring holds permanently; may be called in a signal handler."""
        self._freeze_wanted = True

    def close(self) -> None:
        """Accept no more events."""
        with self._lock:
            STATE.forget()
            self._is_closed = True

    def abandon(self) -> None:
        """Release everything, in a forked child: it all belongs to the parent."""
        for reference in list(self._segment_references):
            segment = reference()
            if segment is not None:
                segment.detach()

    def _advance(self) -> None:
        """Continue in a spare segment, and only then make the next spare, if it was the last.

        A signal handler that records meanwhile finds a segment with room, however long that takes.
        """
        self._full_segments.append(self.segment)
        if len(self._full_segments) > _MAX_UNRELEASED_SEGMENTS:
            self._release()
        try:
            segment = self._spare_segments.pop(0)
        except IndexError:
            segment = self._make_or_stop()
        self.segment = self._take_into_use(segment)
        if STATE.recording is self._recording:
            STATE.segment = self.segment
        if not self._spare_segments and segment.path is not None:
            self._add_spare()

    def _release(self) -> None:
        """Unmap full segments, but those with an open span.

        It holds on to the slots alone, and a forked child must find the segment to detach it.
        """
        full, self._full_segments = self._full_segments, []
        self._full_segments += [segment for segment in full if segment.is_held()]

    def _take_into_use(self, segment: Segment) -> Segment:
        if segment.path is not None:
            self._used_segments += 1
            if self._ring is not None:
                self._ring.add(segment.path, self._step_count)
        return segment

    def _count_used_slots(self) -> int:
        """Count the slots that were used since the last time."""
        earlier_used_slots = self._used_slots
        if self._slots_to_armed_end:
            earlier_used_slots, self._slots_to_armed_end = self._slots_to_armed_end - STATE.left, 0
        self._used_slots = self._used_segments * _segment_slots() - self.segment.count_free_slots()
        return self._used_slots - earlier_used_slots

    def _has_room(self, used_slots: int) -> bool:
        """Return True if there is room for steps as they have been so far, this one included."""
        max_slots = self._max_step_slots
        return used_slots <= max_slots and self.segment.count_free_slots() >= 2 * max_slots

    def _prepare(self) -> None:
        """Make spare segments, so that even a step of the largest size so far leaves one over."""
        missing_slots = 2 * self._max_step_slots - self.segment.count_free_slots()
        spare_count = missing_slots // _segment_slots() + 2
        while (
            len(self._spare_segments) < min(spare_count, _MAX_SPARE_SEGMENTS) and self._add_spare()
        ):
            pass
        for segment in (self.segment, *self._spare_segments):
            segment.touch()

    def _add_spare(self) -> bool:
        """Make a segment ahead of time; if that fails now, it may not when it is needed."""
        try:
            self._spare_segments.append(self._make_segment())
        except _WRITE_ERRORS as error:
            reraise_if_handlers(error)
            return False
        return True

    def _make_or_stop(self) -> Segment:
        """Make a segment; where that fails return a sink, which counts events and keeps none."""
        try:
            return self._make_segment()
        except _WRITE_ERRORS as error:
            reraise_if_handlers(error)
            if not self._is_closed:
                cannot_write("recording stopped", self._folder, error)
            reason = BUDGET_REACHED if isinstance(error, _OverBudget) else NO_ROOM
            segment = sink(self._recording, self._losses.counter(reason))
        self._remember(segment)
        return segment

    def _remember(self, segment: Segment) -> None:
        """Remember a segment for as long as it is referred to."""
        self._segment_references.add(ref(segment, self._segment_references.discard))

    def _make_segment(self) -> Segment:
        """Make a segment, if need be in place of the oldest.

        Raises:
            OSError: there is no room, also within the budget, or the folder cannot be written.
        """
        while True:
            try:
                segment = self._create_segment()
            except OSError as error:
                if error.errno not in _FULL_ERRNOS or not self._drop_oldest():
                    raise
            else:
                self._remember(segment)
                self._segment_bytes += segments.SEGMENT_BYTES
                return segment

    def _create_segment(self) -> Segment:
        if self._is_closed:
            raise OSError(errno.EBADF, "the recording has ended")
        if self._budget_bytes is not None and not self._fits(self._budget_bytes):
            raise _OverBudget(
                errno.EDQUOT, f"the budget of {self._budget_bytes:,} bytes is used up"
            )
        number = self._unused_numbers.pop() if self._unused_numbers else next(self._segment_numbers)
        try:
            return create_segment(self._folder, number, self._recording)
        except BaseException:  # a signal handler may raise anything here
            self._unused_numbers.append(number)  # a gap means that events are missing
            raise

    def _fits(self, budget_bytes: int) -> bool:
        """Return True if another segment does; others may have turned some of ours into less."""
        max_bytes = budget_bytes - segments.SEGMENT_BYTES - self._side_file.size_bytes
        if self._segment_bytes > max_bytes and now() >= self._measure_due_ns:
            self._measure_due_ns = now() + _MEASURE_EVERY_NS
            self._segment_bytes = _bytes_in(self._folder)
        return self._segment_bytes <= max_bytes

    def _drop_outdated(self, ring: Ring) -> None:
        self._apply_freeze(ring)
        for path in ring.drop_outdated(self._step_count):
            self._drop(path, OUTDATED)

    def _drop_oldest(self) -> bool:
        """Make room for new steps in the place of old ones; False if nothing may go."""
        if self._ring is None:
            return False
        self._apply_freeze(self._ring)
        oldest = self._ring.drop_oldest()
        if oldest is not None:
            self._drop(oldest, CROWDED_OUT)
        return oldest is not None

    def _apply_freeze(self, ring: Ring) -> None:
        if self._freeze_wanted:
            self._freeze_wanted = False
            self._side_file.append(format_line("kept", Kept(now(), self.segment.number)))
            ring.freeze()

    def _drop(self, path: Path, reason: str) -> None:
        """Unlink a segment, which never hurts those who still write to it, and count its events."""
        from tracelens_instrument.retention.last_steps import read_finished_steps  # noqa: PLC0415 - few drop any

        with Tolerated(OSError):  # removed by another program: its content is not known
            content = path.read_bytes()
            event_count = count_records(content)
            path.unlink()
            step_definition = REGISTRY.definition_id("step", "step")
            for step in summarize_steps(read_finished_steps(content, step_definition)):
                self._side_file.append(format_line("past", step))
            self._segment_bytes -= segments.SEGMENT_BYTES
            self._losses.counter(reason).add_many(event_count)


def _make_ring(last: int) -> Ring:
    from tracelens_instrument.retention.last_steps import Ring  # noqa: PLC0415 - few keep only the last steps

    return Ring(last)


def _segment_slots() -> int:
    """Count the records that a segment holds; the first describes the segment itself."""
    return segments.SEGMENT_BYTES // RECORD_BYTES - 1


def _bytes_in(folder: Path) -> int:
    total_bytes = 0
    for entry in os.scandir(folder):
        with Tolerated(FileNotFoundError):  # it has just been turned into Arrow
            total_bytes += entry.stat().st_size
    return total_bytes

"""A recording's segments: the one in use, those ready to follow, and which of the full ones stay."""

from __future__ import annotations

import errno
import itertools
import os
from threading import RLock
from weakref import ref

from tracelens.schema.record import RECORD_BYTES
from tracelens.schema.side import Kept, summarized, to_line
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

_MOST_AHEAD: Final = 16  # segments: what a step of 65,000 events needs
_MOST_UNRELEASED: Final = 8
_MEASURE_EVERY_NS: Final = 10**9
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_CANNOT: Final = (OSError, ValueError, MemoryError)


class _OverBudget(OSError):
    """The user's own limit is reached, not the disk's."""


class Storage:
    """Gives segments to a recording, within its budget.

    Segments are made ahead of time between steps, so that no span waits for one. Where none can be
    made any more, a sink counts what comes.
    """

    def __init__(self, folder: Path, owner: OpenRecording, side: SideFile, losses: Losses) -> None:
        retention: Retention = owner.retention
        self._folder = folder
        self._owner = owner
        self._side = side
        self._losses = losses
        self._budget = retention.budget_bytes
        self._ring = None if retention.last is None else _ring(retention.last)
        self._lock = RLock()
        self._numbers = itertools.count()
        self._unused: list[int] = []
        self._known: set[ref[Segment]] = set()
        self._spares: list[Segment] = []
        self._full: list[Segment] = []
        self._steps = 0
        self._taken = 0
        self._position = 0
        self._passed_at = (
            0  # slots before the end of the segment whose boundaries may be passed over
        )
        self._biggest = 0  # step so far, in slots
        self._bytes = 0
        self._measure_due = 0
        self._freeze_wanted = False
        self._closed = False
        self.segment = self._taken_into_use(self._make_or_stop())
        self._count_used_slots()
        if not self.is_stopped:
            self._prepare()

    def rotate(self, full: OpenSegment) -> tuple[Segment, Slot]:
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
        self._steps += 1
        used = self._count_used_slots()
        if self._ring is None and not self._full and self._has_room(used):
            return
        with self._lock:
            self._biggest = max(self._biggest, used)
            self._release()
            if self.is_stopped:
                return
            if self._ring is not None:
                self._tend(self._ring)
            self._prepare()

    def pass_boundaries(self, ns: int) -> None:
        """Skip calls of `at_step_boundary` for some time, while steps stay as they were.

        Where only the last steps are kept, or a full segment waits for the end of a span, it is called.
        """
        if self._ring is None and not self._full and STATE.segment is self.segment:
            # With fewer left than this `_prepare` would make one more.
            least = 2 * self._biggest - (len(self._spares) - 1) * _slots() + 1
            STATE.arm(ns, self._biggest, least)
            self._passed_at = self._taken * _slots()

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
            self._closed = True

    def abandon(self) -> None:
        """Release everything, in a forked child: it all belongs to the parent."""
        for known in list(self._known):
            segment = known()
            if segment is not None:
                segment.detach()

    def _advance(self) -> None:
        """Continue in a spare segment, and only then make the next spare, if it was the last.

        A signal handler that records meanwhile finds a segment with room, however long that takes.
        """
        self._full.append(self.segment)
        if len(self._full) > _MOST_UNRELEASED:
            self._release()
        try:
            segment = self._spares.pop(0)
        except IndexError:
            segment = self._make_or_stop()
        self.segment = self._taken_into_use(segment)
        if STATE.recording is self._owner:
            STATE.segment = self.segment
        if not self._spares and segment.path is not None:
            self._add_spare()

    def _release(self) -> None:
        """Unmap full segments, but those with an open span.

        It holds on to the slots alone, and a forked child must find the segment to detach it.
        """
        full, self._full = self._full, []
        self._full += [segment for segment in full if segment.is_held()]

    def _taken_into_use(self, segment: Segment) -> Segment:
        if segment.path is not None:
            self._taken += 1
            if self._ring is not None:
                self._ring.take(segment.path, self._steps)
        return segment

    def _count_used_slots(self) -> int:
        """Count the slots that were used since the last time."""
        earlier_position = self._position
        if self._passed_at:
            earlier_position, self._passed_at = self._passed_at - STATE.left, 0
        self._position = self._taken * _slots() - self.segment.count_free_slots()
        return self._position - earlier_position

    def _has_room(self, used: int) -> bool:
        """Return True if there is room for steps as they have been so far, this one included."""
        return used <= self._biggest and self.segment.count_free_slots() >= 2 * self._biggest

    def _prepare(self) -> None:
        """Make spare segments, so that even a step of the largest size so far leaves one over."""
        wanted = (2 * self._biggest - self.segment.count_free_slots()) // _slots() + 2
        while len(self._spares) < min(wanted, _MOST_AHEAD) and self._add_spare():
            pass
        for segment in (self.segment, *self._spares):
            segment.touch()

    def _add_spare(self) -> bool:
        """Make a segment ahead of time; if that fails now, it may not when it is needed."""
        try:
            self._spares.append(self._make())
        except _CANNOT as error:
            reraise_if_handlers(error)
            return False
        return True

    def _make_or_stop(self) -> Segment:
        try:
            return self._make()
        except _CANNOT as error:
            reraise_if_handlers(error)
            if not self._closed:
                cannot_write("recording stopped", self._folder, error)
            reason = BUDGET_REACHED if isinstance(error, _OverBudget) else NO_ROOM
            segment = sink(self._owner, self._losses.counter(reason))
        self._know(segment)
        return segment

    def _know(self, segment: Segment) -> None:
        """Remember a segment for as long as it is referred to."""
        self._known.add(ref(segment, self._known.discard))

    def _make(self) -> Segment:
        """Make a segment, if need be in place of the oldest.

        Raises:
            OSError: there is no room, also within the budget, or the folder cannot be written.
        """
        while True:
            try:
                segment = self._create()
            except OSError as error:
                if error.errno not in _FULL or not self._drop_oldest():
                    raise
            else:
                self._know(segment)
                self._bytes += segments.SEGMENT_BYTES
                return segment

    def _create(self) -> Segment:
        if self._closed:
            raise OSError(errno.EBADF, "the recording has ended")
        if self._budget is not None and not self._fits(self._budget):
            raise _OverBudget(errno.EDQUOT, f"the budget of {self._budget:,} bytes is used up")
        number = self._unused.pop() if self._unused else next(self._numbers)
        try:
            return create_segment(self._folder, number, self._owner)
        except BaseException:  # a signal handler may raise anything here
            self._unused.append(number)  # a gap in the numbers means that events are missing
            raise

    def _fits(self, budget: int) -> bool:
        """Return True if another segment does; others may have turned some of ours into less."""
        max_bytes = budget - segments.SEGMENT_BYTES - self._side.size
        if self._bytes > max_bytes and now() >= self._measure_due:
            self._measure_due = now() + _MEASURE_EVERY_NS
            self._bytes = _bytes_in(self._folder)
        return self._bytes <= max_bytes

    def _tend(self, ring: Ring) -> None:
        self._apply_freeze(ring)
        for path in ring.outdated(self._steps):
            self._drop(path, OUTDATED)

    def _drop_oldest(self) -> bool:
        """Make room for new steps in the place of old ones; False if nothing may go."""
        if self._ring is None:
            return False
        self._apply_freeze(self._ring)
        oldest = self._ring.oldest()
        if oldest is not None:
            self._drop(oldest, CROWDED_OUT)
        return oldest is not None

    def _apply_freeze(self, ring: Ring) -> None:
        if self._freeze_wanted:
            self._freeze_wanted = False
            self._side.append(to_line("kept", Kept(now(), self.segment.number)))
            ring.freeze()

    def _drop(self, path: Path, reason: str) -> None:
        """Unlink a segment, which never hurts those who still write to it, and count its events."""
        from tracelens_instrument.retention.last_steps import steps_in  # noqa: PLC0415 - as in `_ring`

        with Tolerated(OSError):  # removed by another program: its content is not known
            content = path.read_bytes()
            count = count_records(content)
            path.unlink()
            for row in summarized(steps_in(content, REGISTRY.definition("step", "step"))):
                self._side.append(to_line("past", row))
            self._bytes -= segments.SEGMENT_BYTES
            self._losses.counter(reason).add_many(count)


def _ring(last: int) -> Ring:
    from tracelens_instrument.retention.last_steps import Ring  # noqa: PLC0415 - few keep only the last steps

    return Ring(last)


def _slots() -> int:
    """Count the records that a segment holds; the first describes the segment itself."""
    return segments.SEGMENT_BYTES // RECORD_BYTES - 1


def _bytes_in(folder: Path) -> int:
    total_bytes = 0
    for entry in os.scandir(folder):
        with Tolerated(FileNotFoundError):  # it has just been turned into Arrow
            total_bytes += entry.stat().st_size
    return total_bytes

"""One process's open recording: its folder, segments, side file and threads."""

from __future__ import annotations

import itertools
import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tracelens.schema.record import RECORD_BYTES
from tracelens.schema.side import END_LINE, ClockReading, Thread, dropped_line, to_line
from tracelens.schema.vocabulary import SEGMENTS_SUFFIX, TRACE_SUFFIX, stem
from tracelens_instrument.clock import now, read_clocks
from tracelens_instrument.failures import Counter, warn_once
from tracelens_instrument.identity import process_row
from tracelens_instrument.registry import REGISTRY
from tracelens_instrument.segments import SEGMENT_BYTES, Segment, create_segment, sink
from tracelens_instrument.side_file import SideFile
from tracelens_instrument.state import STATE, Here

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.schema.side import Retention
    from tracelens_instrument.identity import Identity

__all__ = ["Recording"]

_CLOCK_EVERY_NS: Final = 10 * 10**9
_LOSSES_EVERY_NS: Final = 10**9
_TOUCH_BELOW: Final = SEGMENT_BYTES // RECORD_BYTES // 2
_NO_ROOM: Final = "no room or no permission for a segment"
_CLIPPED: Final = "value out of range"


class Recording:
    """Where this process's events go.

    It never raises into training code: where it cannot go on, it warns once and counts.
    """

    def __init__(self, directory: Path, who: Identity, retention: Retention) -> None:
        """Create the folder, write down who records, and tie the clocks together.

        Raises:
            OSError: the folder cannot be made or written.
        """
        self.who = who
        self.directory = directory
        self.retention = retention
        self.process = process_row(who)
        self.folder = _new_folder(directory, who, self.process.pid)
        self.clipped = Counter()
        self._lost = Counter()
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._segments: weakref.WeakSet[Segment] = weakref.WeakSet()
        self._closed = False
        self._losses_due = 0
        self._told = {_NO_ROOM: 0, _CLIPPED: 0}
        self._side = SideFile(self.folder)
        self._side.append(to_line("process", self.process))
        self._side.append(to_line("retention", retention))
        REGISTRY.listen(self._side.append, who.job)
        self.read_clocks()
        self.segment = self._make_segment()
        self._spare = self._make_spare()

    def rotate(self, full: Segment) -> tuple[Segment, int]:
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

    def count_unusable_time(self) -> None:
        """Count an event that was left out because its times were no integers."""
        self.clipped.add()

    def arrive(self) -> Here:
        """Enter the calling thread into the thread table."""
        local = STATE.local
        thread = threading.current_thread()
        here = Here(REGISTRY.thread_index())
        row = Thread(here.index, thread.name, threading.get_native_id())
        self._side.append(to_line("threads", row))
        local.here = here
        return here

    def rename(self, who: Identity) -> None:
        """Be somebody else, from a time before anybody knew better; the last word counts."""
        self.who = who
        self.process = replace(process_row(who), incarnation=self.process.incarnation)
        self._side.append(to_line("process", self.process))

    def clock_reading(self, reading: ClockReading) -> None:
        """Write down a reading of clocks."""
        self._side.append(to_line("clocks", reading))

    def read_clocks(self) -> None:
        """Tie the monotonic clock to the wall clock, again."""
        self._clock_due = now() + _CLOCK_EVERY_NS
        self.clock_reading(read_clocks())

    def at_step_boundary(self) -> None:
        """Do what has to be done now and then, where it disturbs least: between two steps."""
        if self._spare is not None and self.segment.remaining() < _TOUCH_BELOW:
            self._spare.touch()
        moment = now()
        if moment >= self._losses_due:
            self._losses_due = moment + _LOSSES_EVERY_NS
            self._tell_losses()
        if moment >= self._clock_due:
            self.read_clocks()

    def close(self) -> None:
        """Take no more events, and write what is to be said at the end."""
        with self._lock:
            STATE.forget()
            self._closed = True
        REGISTRY.deafen()
        self.read_clocks()
        self._tell_losses()
        self._side.append(END_LINE)
        self._side.close()

    def abandon(self) -> None:
        """Let go of everything, in a forked child: it all belongs to the parent."""
        for segment in list(self._segments):
            segment.detach()
        self._side.close()

    def _advance(self) -> None:
        """Go on in the spare segment, and only then make the next spare.

        A signal handler that records meanwhile finds a segment with room, however long that takes.
        """
        self.segment = self._spare or self._make_segment()
        self._spare = None
        if STATE.recording is self:
            STATE.segment = self.segment
        self._spare = self._make_spare()

    def _make_segment(self) -> Segment:
        try:
            segment = create_segment(self.folder, next(self._numbers), self)
        except (OSError, ValueError) as error:
            segment = sink(self, self._lost)
            if not self._closed:
                warn_once(f"recording stopped, the training goes on ({self.folder}: {error})")
        self._segments.add(segment)
        return segment

    def _make_spare(self) -> Segment | None:
        """Make a segment ahead of time; if that fails now, it may not when it is needed."""
        try:
            segment = create_segment(self.folder, next(self._numbers), self)
        except (OSError, ValueError):
            return None
        self._segments.add(segment)
        return segment

    def _tell_losses(self) -> None:
        for reason, counter in ((_NO_ROOM, self._lost), (_CLIPPED, self.clipped)):
            count = counter.total()
            if count != self._told[reason]:
                self._told[reason] = count
                self._side.append(dropped_line(reason, count))


def _new_folder(directory: Path, who: Identity, pid: int) -> Path:
    """Make a folder that nobody else has: a pid may come again, after a restart or in a second run."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in itertools.chain([pid], (pid * 1000 + again for again in range(1, 1000))):
        name = stem(who.role, who.rank, number)
        folder = directory / f"{name}{SEGMENTS_SUFFIX}"
        if (directory / f"{name}{TRACE_SUFFIX}").exists():
            continue
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{directory} holds a thousand recordings of process {pid}")

"""One process's open recording: its folder, segments, side file and threads."""

from __future__ import annotations

import threading
from dataclasses import replace

from tracelens.schema.side import (
    END_LINE,
    MAX_NAME,
    ClockReading,
    DetailChange,
    Thread,
    format_line,
)
from tracelens.schema.vocabulary import CLIPPED, DETAILS, FAILED, TOO_MANY_NAMES, UNFINISHED_FILE
from tracelens_instrument.core.arguments import any_text
from tracelens_instrument.core.clock import now, read_clocks
from tracelens_instrument.core.failures import contain, contained
from tracelens_instrument.core.identity import describe_process
from tracelens_instrument.core.registry import LAST_THREAD, REGISTRY
from tracelens_instrument.core.state import STATE, ThreadState
from tracelens_instrument.endings import EndNotes
from tracelens_instrument.retention.policy import DEFAULT_DETAIL
from tracelens_instrument.storage.placement import Location, discard_location, make_segments_folder
from tracelens_instrument.storage.rotation import Storage
from tracelens_instrument.storage.segments import MIN_CONVERTED_SEGMENTS
from tracelens_instrument.storage.side_file import Losses, SideFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Final

    from tracelens.schema.side import Retention
    from tracelens_instrument.core.identity import Identity
    from tracelens_instrument.core.state import OpenSegment, Slot
    from tracelens_instrument.device.times import Devices
    from tracelens_instrument.retention.detail_switch import DetailSwitch
    from tracelens_instrument.retention.last_steps import KeepRequest
    from tracelens_instrument.storage.conversion import Background
    from tracelens_instrument.storage.segments import Segment

__all__ = ["Recording"]

_LOOK_EVERY_NS: Final = 10**8
_CLOCK_EVERY_NS: Final = 10 * 10**9
_MOST_FOREIGN_THREADS: Final = 1024
_NO_STEPS: Final = 32  # segments since one ended: then the converter hears of them in between


class Recording:
    """Where this process's events go.

    It never raises into training code: where it cannot go on, it warns once and counts.
    """

    def __init__(self, directory: Path, identity: Identity, retention: Retention) -> None:
        """Create the folder, write down who records, and tie the clocks together.

        Raises:
            OSError: the folder cannot be made or written.
        """
        self.identity = identity
        self.directory = directory
        self.retention = retention
        self._detail = retention.detail or DEFAULT_DETAIL
        self.process = describe_process(identity)
        location = make_segments_folder(directory, identity, self.process.pid)
        self.folder, self.note_path = location.folder, location.note_path
        self._side_file = self._new_side_file()
        self._losses = Losses(self._side_file.append)
        self.clipped_events = self._losses.counter(CLIPPED)
        self.failed_events = self._losses.counter(FAILED)
        self._losses.adopt(TOO_MANY_NAMES, REGISTRY.overflow_counter)
        self._side_file.append(format_line("process", self.process))
        self._side_file.append(format_line("retention", retention))
        self.end_notes = EndNotes(self.folder, self._side_file.append)
        REGISTRY.listen(self._side_file.append, identity.job)
        self.read_clocks()
        self._foreign_threads: dict[int, ThreadState] = {}
        self._look_due_ns = 0
        self._lock = threading.RLock()  # a signal handler may come in between
        self._devices: Devices | None = None
        self.storage = Storage(self.folder, self, self._side_file, self._losses)
        self._background: Background | None = None
        self._inform_lock = threading.Lock()
        self._request = self._keep_request()
        self.detail_switch: DetailSwitch | None = None
        self._boundary_segment_number = 0  # segment that was in use then

    @property
    def readable_path(self) -> Path:
        """Where a reader finds it: the segments folder, or the note that leads there."""
        return self.note_path or self.folder

    def _keep_request(self) -> KeepRequest | None:
        """Watch for requests to keep the last steps, where only those are kept."""
        if self.retention.last is None:
            return None
        from tracelens_instrument.retention.last_steps import KeepRequest  # noqa: PLC0415 - few need it

        return KeepRequest(self.directory, self.keep)

    @property
    def devices(self) -> Devices:
        """The devices in use; the code for them is loaded on first access."""
        from tracelens_instrument.device.times import Devices  # noqa: PLC0415 - see above

        with self._lock:
            if self._devices is None:
                STATE.disarm()  # they are asked at each boundary
                self._devices = Devices(self.write_clock_reading, self._losses)
            return self._devices

    def _new_side_file(self) -> SideFile:
        try:
            return SideFile(self.folder)
        except OSError:
            discard_location(Location(self.folder, self.note_path))
            raise

    @property
    def segment(self) -> Segment:
        """What is written to now."""
        return self.storage.segment

    def reserve_slot_after(self, full: OpenSegment) -> tuple[Segment, Slot]:
        """Reserve a slot in the segment after `full`."""
        slot = self.storage.reserve_slot_after(full)
        if self.segment.number > self._boundary_segment_number + _NO_STEPS:
            self._inform_converter(self.segment.number)
        return slot

    def _inform_converter(self, number: int) -> None:
        """Inform the converter, once a recording has grown, of how many segments are full."""
        if number < MIN_CONVERTED_SEGMENTS or not self._inform_lock.acquire(blocking=False):
            return  # or another thread is saying it just now, or this one, in a signal handler
        try:
            if self._background is None:
                from tracelens_instrument.storage.conversion import Background  # noqa: PLC0415 - few grow so

                self._background = Background(self.readable_path, self.retention)
            self._background.inform(number)
        finally:
            self._inform_lock.release()

    def keep(self) -> None:
        """Keep the steps that a recording of the last steps holds, permanently."""
        self.storage.freeze()

    def count_unusable_time(self) -> None:
        """Count an event that was left out because its times were no integers."""
        self.clipped_events.add()

    def register_thread(self) -> ThreadState:
        """Return the calling thread's state; enter the thread into the thread table if it is new.

        A thread that Python did not start is new to Python at each call; its native id is known.
        """
        python_thread = threading.current_thread()
        is_foreign = isinstance(python_thread, threading._DummyThread)  # noqa: SLF001 - nothing public tells it
        native_id = threading.get_native_id()
        thread = self._foreign_threads.get(native_id) if is_foreign else None
        if thread is None:
            thread = ThreadState(REGISTRY.thread_index())
            if thread.index != LAST_THREAD:
                row = Thread(thread.index, any_text(python_thread.name)[:MAX_NAME], native_id)
                self._side_file.append(format_line("threads", row))
            if is_foreign:
                self._remember(native_id, thread)
        STATE.local.thread_state = thread
        return thread

    def _remember(self, native_id: int, thread: ThreadState) -> None:
        if (
            len(self._foreign_threads) == _MOST_FOREIGN_THREADS
        ):  # which of them have ended is not known
            self._foreign_threads.clear()
        self._foreign_threads[native_id] = thread

    def rename(self, identity: Identity) -> None:
        """Change the identity of the process, which was not known before; the last one counts."""
        self.identity = identity
        self.process = replace(describe_process(identity), incarnation=self.process.incarnation)
        self._side_file.append(format_line("process", self.process))

    def look(self, level: str) -> None:
        """Write down that a hook looks so closely, if that is closer than what is written so far."""
        if DETAILS.index(level) > DETAILS.index(self._detail):
            self._detail = level
            self._side_file.append(format_line("retention", replace(self.retention, detail=level)))

    def note_detail(self, level: str | None, sampling_hz: int | None) -> None:
        """Write down that hooks look closer from now on; with `level` null as before."""
        level = max(level or self._detail, self._detail, key=DETAILS.index)
        self._side_file.append(format_line("details", DetailChange(now(), level, sampling_hz)))

    def write_clock_reading(self, reading: ClockReading) -> None:
        """Write down a reading of clocks."""
        self._side_file.append(format_line("clocks", reading))

    def read_clocks(self) -> None:
        """Tie the monotonic clock to the wall clock, again."""
        self._clock_due_ns = now() + _CLOCK_EVERY_NS
        self.write_clock_reading(read_clocks())

    def at_step_boundary(self) -> None:
        """Do periodic work where it disturbs least: between two steps."""
        try:
            self.storage.at_step_boundary()
            if self._devices is not None:
                self._devices.at_step_boundary()
            self._boundary_segment_number = self.segment.number
            self._inform_converter(self._boundary_segment_number)
            moment = now()
            if self._request is not None:
                self._request.at_step_boundary(moment)
            if moment >= self._look_due_ns:
                self._look_due_ns = moment + _LOOK_EVERY_NS
                self._losses.report_if_due(moment)
                self.end_notes.look()
                if moment >= self._clock_due_ns:
                    self.read_clocks()
                if self.detail_switch is not None:
                    change_due = self.detail_switch.at_step_boundary(moment)
                    self._look_due_ns = min(self._look_due_ns, change_due)
            if self._devices is None and self._request is None:
                self.storage.pass_boundaries(self._look_due_ns - moment)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
            contain(error)

    def close(self) -> None:
        """Accept no more events, and write the last side tables."""
        try:
            contained(self.end_notes.finish)()
            if self._devices is not None:
                self._devices.finish()
        finally:
            self.storage.close()
            REGISTRY.stop_listening()
        self.read_clocks()
        self._losses.report()
        self._side_file.append(END_LINE)
        self._side_file.close()

    def hand_over(self, *, wait: bool) -> bool:
        """Hand the closed recording over to the converter process; False if none is at it any more.

        With `wait` that is as soon as it has ended, unless it comes to a standstill.
        """
        if self._background is None:
            return False
        return self._background.end(self.folder / UNFINISHED_FILE if wait else None)

    def abandon(self) -> None:
        """Release everything, in a forked child: it all belongs to the parent."""
        if self._background is not None:
            self._background.abandon()
        if self._devices is not None:
            self._devices.abandon()
        self.end_notes.abandon()
        self.storage.abandon()
        self._side_file.close()

"""What one process has done so far: its steps, open spans, calls and work, read while it records."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens.conversion.definitions import NO_INDEX
from tracelens.model.columns import FOREVER, NULL
from tracelens.schema.record import NO_SEQ
from tracelens.schema.vocabulary import COLLECTIVES, FULL_COLLECTIVES, POINT_TO_POINT
from tracelens.watch.ended_spans import EndedSpans
from tracelens.watch.pauses import BETWEEN_STEPS, START, STEP, SeenPauses, pause_of
from tracelens.watch.segments import LiveSegments
from tracelens.watch.side import LiveSide

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from tracelens.arrays import Flags, Int8s, Int32s, Ints
    from tracelens.conversion.columns import Records
    from tracelens.schema.endings import Ending
    from tracelens.schema.side import Communicator, DetailChange, Process
    from tracelens.watch.segments import NewRecords

__all__ = ["Call", "CallLog", "LiveRecording", "OpenSpan", "Step"]

# calls of a communicator: ranks are compared over no more [chosen; one decision in CallLog.put,
# LiveRecording._put_calls]
MAX_CALLS_KEPT: Final = 64
MAX_STEPS_KEPT: Final = 200  # steps: the usual step is the median of no more [chosen]
MAX_OPEN_SPANS: Final = 4096  # spans of a process: those of a leak are forgotten [policy]
# steps: until so many are over the process still starts, loads and compiles [chosen]
STEPS_OF_START: Final = 3
# collectives: a program without steps has started when it has made so many [chosen]
CALLS_OF_START: Final = 50
_WORK: Final = ("samples", "tokens")
_FULL_CODES: Final = np.array([COLLECTIVES.index(op) for op in FULL_COLLECTIVES])
_SEQ: Final = attrgetter("seq")


class Step(NamedTuple):
    """A completed step; monotonic times of its process, ns."""

    number: int
    start_ns: int
    end_ns: int


class Call(NamedTuple):
    """A collective call of one rank; `op` is a place in `COLLECTIVES`, `end_ns` `FOREVER` if open.

    `has_failed`: an exception ended it, such as a timeout.
    """

    seq: int
    op: int
    step: int
    bucket: int
    nbytes: int
    thread: int
    peer: int
    start_ns: int
    end_ns: int
    has_failed: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the rank is still in it."""
        return self.end_ns == FOREVER


class OpenSpan(NamedTuple):
    """A span that has not ended; `in_flight` if it is on a track of operations in flight."""

    kind: str
    name: str
    op: str | None
    communicator: str | None
    seq: int
    step: int
    peer: int
    thread: int
    in_flight: bool
    start_ns: int
    pause: str | None


@dataclass(eq=False)
class CallLog:
    """The last calls of a rank in a communicator, by number; `count` is that of all calls.

    `last_entered` has the highest number, `last_completed` that of those that ended without failing.
    `open_seqs` are the numbers of the calls that the rank was in at the last look.
    """

    group: Communicator
    calls: dict[int, Call]
    count: int = 0
    last_entered: Call | None = None
    last_completed: Call | None = None
    open_seqs: set[int] = field(default_factory=set)

    def put(self, calls: Sequence[Call]) -> None:
        """Add calls, at least one, or replace those that have ended."""
        call_by_seq = {call.seq: call for call in calls}
        self.count += len(call_by_seq.keys() - self.calls.keys())
        self.calls |= call_by_seq
        last_call = max(call_by_seq.values(), key=_SEQ)
        if self.last_entered is None or last_call.seq >= self.last_entered.seq:
            self.last_entered = last_call
        completed = [call for call in call_by_seq.values() if not (call.is_open or call.has_failed)]
        if completed:
            last_call = max(completed, key=_SEQ)
            if self.last_completed is None or last_call.seq >= self.last_completed.seq:
                self.last_completed = last_call
        self.open_seqs -= call_by_seq.keys()
        if len(completed) < len(call_by_seq):
            self.open_seqs |= {seq for seq, call in call_by_seq.items() if call.is_open}
        if len(self.calls) > 2 * MAX_CALLS_KEPT:
            for seq in sorted(self.calls)[:-MAX_CALLS_KEPT]:
                if seq not in self.open_seqs:
                    del self.calls[seq]


class LiveRecording:
    """Follows the recording of one process; all times are of its monotonic clock, ns.

    `progress_ns` is when its training thread last began or ended a span, or a collective of it began or
    ended; 0 before the first. `completed_ns` is when it last completed a step or a communication call,
    or any span if it has made neither. `exception` is the last span that an exception closed.
    `pauses` has the spans of each kind of pause (`pauses.py`). `call_logs` and `ended_calls` are by
    communicator. `ended_calls` and `ended_steps` grow until they are forgotten.
    """

    def __init__(self, folder: Path) -> None:
        """Open the segments folder of a process.

        Raises:
            NotATrace, NewerVersion, OSError: as `LiveSide` does.
        """
        self._side = LiveSide(folder)
        self._segments = LiveSegments(folder)
        self._open: dict[int, OpenSpan] = {}
        self._step_thread: int | None = None
        self.call_logs: dict[str, CallLog] = {}
        self.ended_calls: dict[str, EndedSpans] = {}
        self.ended_steps = EndedSpans.empty()
        self.steps: deque[Step] = deque(maxlen=MAX_STEPS_KEPT)
        self.step_count = 0
        self.work: dict[str, deque[tuple[int, float]]] = {
            name: deque(maxlen=MAX_STEPS_KEPT) for name in _WORK
        }
        self.progress_ns = 0
        self.completed_ns = 0
        self._counts_any_span = True
        self.exception: OpenSpan | None = None
        self.pauses: dict[str, SeenPauses] = {}

    @property
    def process(self) -> Process:
        """Who it is."""
        return self._side.process

    @property
    def is_complete(self) -> bool:
        """Whether the process ended its recording itself."""
        return self._side.is_complete

    @property
    def ending(self) -> Ending | None:
        """What ended the process by its own note: an exception, or its exit; None without one."""
        return self._side.ending

    @property
    def detail_changes(self) -> list[DetailChange]:
        """The changes of detail that were requested while it records, by time."""
        return self._side.detail_changes

    @property
    def wall_offset_ns(self) -> int:
        """Wall time minus the process' monotonic time, ns."""
        clock = self._side.clock
        return 0 if clock is None or clock.wall_ns is None else clock.wall_ns - clock.monotonic_ns

    @property
    def open_spans(self) -> list[OpenSpan]:
        """All open spans, by their begin."""
        return sorted(self._open.values(), key=lambda span: span.start_ns)

    @property
    def innermost(self) -> OpenSpan | None:
        """The open span of the training thread that began last; else the last call in flight."""
        spans = self.open_spans
        on_thread = [
            span
            for span in spans
            if not span.in_flight and self._step_thread in {None, span.thread}
        ]
        return next(reversed(on_thread or spans), None)

    @property
    def open_step(self) -> int:
        """The number of the step that it is in; -1 outside of steps."""
        return max((span.step for span in self._open.values() if span.kind == "step"), default=-1)

    @property
    def has_started(self) -> bool:
        """Whether the first steps, or calls of a program without steps, are over."""
        if self.step_count >= STEPS_OF_START:
            return True
        calls_made = sum(log.count for log in self.call_logs.values())
        has_steps = self.step_count or any(span.kind == "step" for span in self._open.values())
        return not has_steps and calls_made >= CALLS_OF_START

    @property
    def pause(self) -> str:
        """The kind of pause that it would be if nothing happened from now on (`pauses.py`)."""
        spans = self._open.values()
        named_pauses = [span.pause for span in self.open_spans if span.pause is not None]
        if not self.has_started:
            return START
        if named_pauses:
            return named_pauses[0]
        return STEP if not self.steps or any(s.kind == "step" for s in spans) else BETWEEN_STEPS

    def look(self) -> None:
        """Read what is new."""
        with suppress(OSError):
            self._side.read_on()
            self._apply(self._segments.read_new(self._side.find_spans))

    def has_new_records(self) -> bool:
        """Check whether it has recorded anything since the last look, without reading it."""
        with suppress(OSError):
            return self._segments.has_new_records()
        return False

    def forget_before(self, step: int) -> None:
        """Drop ended steps before a step, and their calls."""
        self.ended_steps = self.ended_steps.from_step(step)
        self.ended_calls = {uid: calls.from_step(step) for uid, calls in self.ended_calls.items()}

    def close(self) -> None:
        """Close all files."""
        self._side.close()
        self._segments.close()

    def open_messages(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield communicator, operation, peer and step of sends and receives that have not ended."""
        for span in self._open.values():
            if span.op in POINT_TO_POINT and span.peer >= 0:
                yield span.communicator or "", span.op or "", span.peer, span.step

    def _apply(self, news: NewRecords) -> None:
        """Take new records: spans that ended or were dropped are open no more, begun ones are."""
        if self._open:
            closed_origins = {*news.ended_origins.tolist(), *news.dropped_origins.tolist()}
            for origin in closed_origins & self._open.keys():
                del self._open[origin]
        if len(news.ended):
            self._apply_ended(news.ended)
        if len(news.opened):
            self._apply_opened(news.opened, news.opened_origins.tolist())
        if len(self._open) > MAX_OPEN_SPANS:
            for origin in sorted(self._open)[:-MAX_OPEN_SPANS]:
                del self._open[origin]

    def _apply_opened(self, records: Records, origins: Iterable[int]) -> None:
        """Take records of spans that have begun; `origins` are the slots that they are in."""
        rows = self._side.meanings.find_rows(records["definition"])
        self._put_calls(records, rows, is_open=True)
        for origin, span in zip(origins, self._spans_of(records), strict=True):
            if span is not None:
                self._open[origin] = span
                if span.kind == "step":
                    self._step_thread = span.thread
        self._note_progress(records["start_ns"], records, rows)

    def _apply_ended(self, records: Records) -> None:
        """Take records of events that are over: calls, steps, pauses, progress, and an exception."""
        rows = self._side.meanings.find_rows(records["definition"])
        end_ns = np.abs(records["end_ns"])
        is_span = self._side.find_spans(records["definition"])
        self._put_calls(records, rows, is_open=False)
        kinds = self._side.meanings.kind.codes[rows]
        step_code = self._side.kinds.index("step") if "step" in self._side.kinds else -2
        is_step = kinds == step_code
        self._put_steps(records[is_step & is_span])
        self._put_work(records[is_step & ~is_span])
        self._put_pauses(records[is_span], end_ns[is_span])
        self._note_completion(
            records, is_span & (is_step | self._find_communication(rows)), is_span
        )
        failed = records[is_span & (records["end_ns"] < 0)]
        if len(failed):
            innermost = int(failed["start_ns"].argmax())
            self.exception = next(self._spans_of(failed[innermost : innermost + 1]), None)
        self._note_progress(np.maximum(end_ns, records["start_ns"]), records, rows)

    def _put_steps(self, records: Records) -> None:
        """Append the steps that have ended, by end, and note the thread that takes them."""
        if not len(records):
            return
        records = records[np.argsort(records["end_ns"], kind="stable")]
        self._step_thread = int(records["thread"][-1])
        records = records[records["end_ns"] > 0]  # others were ended by an exception
        self.step_count += len(records)
        self.ended_steps = self.ended_steps.joined_with(_to_ended_spans(records, "step"))
        columns = (records[name].tolist() for name in ("step", "start_ns", "end_ns"))
        self.steps.extend(map(Step._make, zip(*columns, strict=True)))

    def _put_work(self, records: Records) -> None:
        """Append the last samples and tokens of steps, with the times at which they were counted."""
        for definition_id in set(records["definition"].tolist()):
            definition = self._side.definition_of(definition_id)
            if definition is not None and definition.name in self.work:
                rows = np.flatnonzero(records["definition"] == definition_id)
                times_ns, amounts = records["start_ns"][rows], records["request"][rows]
                times_and_amounts = zip(
                    times_ns.tolist(), amounts.view(np.float64).tolist(), strict=True
                )
                self.work[definition.name].extend(times_and_amounts)

    def _put_pauses(self, records: Records, end_ns: Ints) -> None:
        """Count the spans of each kind of pause, and keep the length of the longest."""
        lengths_ns = end_ns - records["start_ns"]
        for definition_id in set(records["definition"].tolist()):
            definition = self._side.definition_of(definition_id)
            pause = None if definition is None else pause_of(definition)
            if pause is not None:
                chosen_ns = lengths_ns[records["definition"] == definition_id]
                seen = self.pauses.get(pause, SeenPauses())
                self.pauses[pause] = seen.with_pauses(len(chosen_ns), int(chosen_ns.max()))

    def _put_calls(self, records: Records, rows: Int32s, *, is_open: bool) -> None:
        """Put the last collectives of each communicator into its log, and those that were open in it.

        `is_open`: the records have no end yet; `rows` are those of their definitions, [record].
        """
        op_codes = self._side.op_codes(rows)
        indexes = self._side.meanings.communicator_indices[rows]
        is_call = (op_codes >= 0) & (indexes != NO_INDEX) & (records["seq"] != NO_SEQ)
        if not is_call.any():
            return
        for index in sorted(set(indexes[is_call].tolist())):
            group = self._side.communicators.get(index)
            if group is None:
                continue
            where = np.flatnonzero(is_call & (indexes == index))
            log = self.call_logs.setdefault(group.uid, CallLog(group, {}))
            is_put = np.zeros(len(where), np.bool_)
            is_put[-MAX_CALLS_KEPT:] = True
            if log.open_seqs:
                is_put |= np.isin(records["seq"][where], [*log.open_seqs])
            log.count += int(np.count_nonzero(~is_put))
            put_rows = where[is_put]
            log.put(_to_calls(records[put_rows], op_codes[put_rows], is_open=is_open))
            if not is_open:
                full_calls = records[where[np.isin(op_codes[where], _FULL_CODES)]]
                full_calls = full_calls[full_calls["end_ns"] > 0]  # no exception has ended them
                known_calls = self.ended_calls.get(group.uid, EndedSpans.empty())
                self.ended_calls[group.uid] = known_calls.joined_with(
                    _to_ended_spans(full_calls, "seq")
                )

    def _spans_of(self, records: Records) -> Iterator[OpenSpan | None]:
        """Yield each record as an open span; None for one without a definition."""
        for record in records:
            definition = self._side.definition_of(int(record["definition"]))
            if definition is None:
                yield None
                continue
            group = self._side.communicators.get(definition.communicator or 0)
            thread = int(record["thread"])
            yield OpenSpan(
                kind=definition.kind,
                name=definition.name,
                op=definition.op,
                communicator=None
                if group is None or definition.communicator is None
                else group.uid,
                seq=int(record["seq"]),
                step=int(record["step"]),
                peer=int(record["peer"]),
                thread=thread,
                in_flight=thread in self._side.in_flight_threads,
                start_ns=int(record["start_ns"]),
                pause=pause_of(definition),
            )

    def _find_communication(self, rows: Int32s) -> Flags:
        """Return True for each row of definitions that is of an operation between ranks."""
        has_op = [bool(word) for word in self._side.meanings.op.words.to_pylist()]
        return np.array([*has_op, False])[self._side.meanings.op.codes[rows]]

    def _note_completion(self, records: Records, is_step_or_call: Flags, is_span: Flags) -> None:
        """Update `completed_ns` to the latest end of a completed step, call or span."""
        if is_step_or_call.any() and self._counts_any_span:
            self._counts_any_span, self.completed_ns = False, 0
        counts = is_span if self._counts_any_span else is_step_or_call
        ends_ns = records["end_ns"][counts]
        self.completed_ns = max(self.completed_ns, int(ends_ns.max(initial=0)))

    def _note_progress(self, times_ns: Ints, records: Records, rows: Int32s) -> None:
        """Take the latest time of the training thread and of tracks of operations in flight.

        `rows` are those of the records' definitions; `times_ns`, [record], is when each was noted.
        """
        counts: Flags = np.ones(len(records), np.bool_)
        if "gc" in self._side.kinds:
            counts = self._side.meanings.kind.codes[rows] != self._side.kinds.index("gc")
        if self._step_thread is not None:
            threads = records["thread"]
            is_on_track = threads == self._step_thread
            for thread in self._side.in_flight_threads:
                is_on_track |= threads == thread
            counts = counts & is_on_track
        if counts.any():
            self.progress_ns = max(self.progress_ns, int(times_ns[counts].max()))


def _to_calls(records: Records, op_codes: Int8s, *, is_open: bool) -> list[Call]:
    """Return records as calls, without an end if `is_open`; `op_codes` are indices of `COLLECTIVES`."""
    end_ns = np.full(len(records), FOREVER) if is_open else np.abs(records["end_ns"])
    columns = (
        records["seq"],
        op_codes,
        records["step"],
        np.where(records["bucket"] >= 0, records["bucket"], NULL),
        records["bytes"],
        records["thread"],
        np.where(records["peer"] >= 0, records["peer"], NULL),
        records["start_ns"],
        end_ns,
        records["end_ns"] < 0,
    )
    return list(map(Call._make, zip(*(column.tolist() for column in columns), strict=True)))


def _to_ended_spans(records: Records, number_column: str) -> EndedSpans:
    """Return records as ended spans, whose numbers are in a column."""
    columns = (records[name] for name in (number_column, "step", "start_ns", "end_ns"))
    return EndedSpans(*(column.astype(np.int64) for column in columns))

"""Reads Perfetto's traces: slices of tracks, on the trace's own clock (docs/formats.md).

Processes are ranks if their names say so, else files are. Names may be interned by sequences of packets,
and times be of clocks of a sequence, each the difference to the one before, as its last snapshot of
clocks says.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from tracelens.errors import NotATrace
from tracelens.model.recognition import Gap
from tracelens.readers.files import FileSet, FilesReader
from tracelens.readers.gathered import SpanBuffer, SpanMeaning
from tracelens.readers.json_values import MOST_NS
from tracelens.readers.perfetto.packets import Packets, is_perfetto
from tracelens.readers.processes import FileOfProcesses, build_process_column, rank_processes
from tracelens.readers.words import find_meaning_of_names, parse_step_number
from tracelens.schema.gate import refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_PHASES: Final = {ord("B"): _BEGIN, ord("E"): _END, ord("i"): _INSTANT, ord("I"): _INSTANT}
_COMPLETE: Final = ord("X")
_CLEARED: Final = 1  # of sequence_flags
_BOOT_CLOCK: Final = 6  # the clock of packets that name none
_CLOCKS_OF_SEQUENCES: Final = range(64, 128)
_REAL_CLOCK: Final = 1
_US: Final = 1_000
_MAX_CHARACTERS_OF_NAME: Final = 256
_MAX_OPEN_SLICES: Final = 2_000
_MAX_ANCESTORS: Final = 64


class _Track(NamedTuple):
    """Where slices are."""

    name: str
    pid: int | None  # of its process, None without one
    process_name: str


@dataclass(eq=False)
class Slices(FileOfProcesses):
    """What one file holds."""

    clock_id: int = 0  # the clock of the file's times
    offset_to_real_ns: int = 0  # times of rows minus those of the file


@dataclass(eq=False)
class _Sequence:
    """What packets of a sequence refer to: names by number, defaults, its own clocks by number."""

    name_by_iid: dict[int, str] = field(default_factory=dict)
    category_by_iid: dict[int, str] = field(default_factory=dict)
    default_track: int = 0
    default_clock: int = 0
    clock_by_id: dict[int, _Clock] = field(default_factory=dict)


@dataclass(eq=False)
class _Clock:
    """A clock: its last reading, its unit, and what to add to get times of the trace's clock.

    `is_incremental`: each reading is the difference to the one before.
    """

    last_reading: int  # in units of `unit_ns`
    unit_ns: int
    is_incremental: bool
    offset_to_trace_ns: int


class _Slice(NamedTuple):
    start_ns: int
    name: str
    category: str


def read_slices(path: Path) -> Slices:
    """Read the slices (spans) of a file, as `FilesReader.read_file` says."""
    slices, reading = Slices(), _Reading()
    packets = Packets(path)
    has_packets = False
    for packet in packets:
        has_packets = True
        reading.take_packet(packet, slices)
        refuse_beyond("rows", len(reading.spans))
    if not has_packets:
        raise NotATrace(packets.damage_reason or "there is no packet in it")
    slices.copy_damage(packets)
    return reading.complete_slices(slices)


class _Reading:
    """What is known so far of a file: tracks, sequences, clocks, slices that are open."""

    def __init__(self) -> None:
        self.spans: SpanBuffer[tuple[str, str], int] = SpanBuffer()
        self.descriptor_by_track: dict[int, Any] = {}
        self.sequence_by_id: dict[int, _Sequence] = defaultdict(_Sequence)
        self.open_slices_by_track: dict[int, list[_Slice]] = defaultdict(list)
        self.offset_by_clock_ns: dict[int, int] = {}  # to times of the trace's clock
        self.trace_clock_id = _BOOT_CLOCK
        self.trace_to_real_ns: int | None = None  # from the trace's clock to the real one

    def take_packet(self, packet: Any, slices: Slices) -> None:
        """Take from a packet what its sequence refers to, its clocks, its track and its event."""
        sequence = self.sequence_by_id[packet.sequence]
        if packet.incremental_state_cleared or packet.sequence_flags & _CLEARED:
            sequence.name_by_iid.clear()
            sequence.category_by_iid.clear()
        if packet.previous_packet_dropped and packet.HasField("track_event"):
            slices.left_out_counts["gaps in which packets were dropped"] += 1
        if packet.HasField("defaults"):
            sequence.default_track = packet.defaults.track_event.track_uuid
            sequence.default_clock = packet.defaults.timestamp_clock_id
        if packet.HasField("interned"):
            names, categories = packet.interned.names, packet.interned.categories
            sequence.name_by_iid |= {entry.iid: _decode_text(entry.name) for entry in names}
            sequence.category_by_iid |= {
                entry.iid: _decode_text(entry.name) for entry in categories
            }
        if packet.HasField("clock_snapshot"):
            self._tie_clocks(packet.clock_snapshot, sequence)
        if packet.HasField("track"):
            self.descriptor_by_track[packet.track.uuid] = packet.track
        if packet.HasField("track_event"):
            self._take_event(packet, sequence, slices)

    def _tie_clocks(self, snapshot: Any, sequence: _Sequence) -> None:
        """Learn the offsets of clocks to the trace's: those of a snapshot were read at one time."""
        self.trace_clock_id = snapshot.primary or self.trace_clock_id
        readings_ns = {
            clock.clock_id: clock.timestamp * (clock.unit_multiplier_ns or 1)
            for clock in snapshot.clocks
        }
        trace_ns = readings_ns.get(self.trace_clock_id)
        for clock in snapshot.clocks:
            offset_ns = 0 if trace_ns is None else trace_ns - readings_ns[clock.clock_id]
            if clock.clock_id in _CLOCKS_OF_SEQUENCES:
                sequence.clock_by_id[clock.clock_id] = _Clock(
                    last_reading=clock.timestamp,
                    unit_ns=clock.unit_multiplier_ns or 1,
                    is_incremental=clock.is_incremental,
                    offset_to_trace_ns=offset_ns,
                )
            else:
                self.offset_by_clock_ns[clock.clock_id] = offset_ns
        real_ns = readings_ns.get(_REAL_CLOCK)
        if trace_ns is not None and real_ns is not None and abs(real_ns - trace_ns) < MOST_NS:
            self.trace_to_real_ns = real_ns - trace_ns

    def _event_time(self, packet: Any, sequence: _Sequence) -> int:
        """Return when a packet was written, in ns of the trace's clock."""
        clock_id = packet.timestamp_clock_id or sequence.default_clock
        clock = sequence.clock_by_id.get(clock_id)
        if clock is None:
            return int(packet.timestamp) + self.offset_by_clock_ns.get(clock_id, 0)
        base_reading = clock.last_reading if clock.is_incremental else 0
        clock.last_reading = base_reading + packet.timestamp
        return clock.last_reading * clock.unit_ns + clock.offset_to_trace_ns

    def _take_event(self, packet: Any, sequence: _Sequence, slices: Slices) -> None:
        """Begin or end a slice by an event of a track, or leave the event out, and count it.

        Events of old writers (`legacy`) have the phases of trace events in JSON; a complete one (X) has
        its duration.
        """
        event = packet.track_event
        time_ns = self._event_time(packet, sequence)
        if event.timestamp_absolute_us:
            time_ns = event.timestamp_absolute_us * _US
        legacy = event.legacy_event if event.HasField("legacy_event") else None
        phase = event.type or (_PHASES.get(legacy.phase, 0) if legacy else 0)
        track = event.track_uuid or sequence.default_track
        if not 0 <= time_ns < MOST_NS:
            slices.unusable_count += 1
        elif phase == _BEGIN and len(self.open_slices_by_track[track]) < _MAX_OPEN_SLICES:
            self.open_slices_by_track[track].append(
                _Slice(time_ns, *_find_name_and_categories(event, sequence))
            )
        elif phase == _END and self.open_slices_by_track[track]:
            open_slice = self.open_slices_by_track[track].pop()
            self._add_slice(open_slice, time_ns, track, slices)
        elif legacy is not None and legacy.phase == _COMPLETE:
            open_slice = _Slice(time_ns, *_find_name_and_categories(event, sequence))
            self._add_slice(open_slice, time_ns + legacy.duration_us * _US, track, slices)
        elif phase in {_BEGIN, _END}:
            slices.unusable_count += 1
        else:
            left_out_as = {_INSTANT: "instants", _COUNTER: "values of counters"}.get(phase)
            slices.left_out_counts[left_out_as or "events of other types"] += 1

    def _add_slice(self, open_slice: _Slice, end_ns: int, track: int, slices: Slices) -> None:
        if not open_slice.name or not open_slice.start_ns <= end_ns < MOST_NS:
            slices.unusable_count += 1
            return
        slices.event_counts[open_slice.category] += 1
        self.spans.add(open_slice.start_ns, end_ns, (open_slice.category, open_slice.name), track)

    def complete_slices(self, slices: Slices) -> Slices:
        """Set the rows: each track is a thread of its process, whose name may say a rank."""
        open_count = sum(map(len, self.open_slices_by_track.values()))
        if open_count:
            slices.left_out_counts["slices that do not end"] = open_count
        name_by_pid = {
            descriptor.process.pid: _decode_text(descriptor.process.process_name or descriptor.name)
            for descriptor in self.descriptor_by_track.values()
            if descriptor.HasField("process")
        }
        tracks = {uuid: self._find_track(uuid, name_by_pid) for uuid in self.spans.number_by_thread}
        slices.name_by_process = {track.pid or 0: track.process_name for track in tracks.values()}
        rows = self.spans.to_frame(_translate_key, lambda uuid: tracks[uuid].name)
        steps_of_keys = [parse_step_number(name) for _, name in self.spans.number_by_key]
        key_numbers = pl.Series(self.spans.key_numbers, dtype=pl.UInt32)
        step = pl.Series(steps_of_keys, dtype=pl.Int32).gather(key_numbers)
        rows = rows.with_columns(
            step=pl.when(pl.col("kind") == "step").then(step),
            process=build_process_column(self.spans, [track.pid or 0 for track in tracks.values()]),
        )
        slices.clock_id, slices.offset_to_real_ns = self.trace_clock_id, self.trace_to_real_ns or 0
        slices.rows = rows.with_columns(pl.col("start_ns", "end_ns") + slices.offset_to_real_ns)
        return slices

    def _find_track(self, uuid: int, name_by_pid: Mapping[int, str]) -> _Track:
        """Return a track's name and process: its own, or of the first above it that has one."""
        name, ancestor_uuid = "", uuid
        for _ in range(_MAX_ANCESTORS):
            ancestor = self.descriptor_by_track.get(ancestor_uuid)
            if ancestor is None:
                break
            label = _decode_text(ancestor.name or ancestor.static_name)
            if ancestor.HasField("thread"):
                thread = ancestor.thread
                name = name or _decode_text(thread.thread_name) or f"thread {thread.tid}"
                return _Track(name, thread.pid, name_by_pid.get(thread.pid, ""))
            if ancestor.HasField("process"):
                pid = ancestor.process.pid
                return _Track(name or label or "process", pid, name_by_pid[pid])
            name, ancestor_uuid = name or label, ancestor.parent_uuid
        return _Track(name or f"track {uuid}", pid=None, process_name="")


def _find_name_and_categories(event: Any, sequence: _Sequence) -> tuple[str, str]:
    legacy_iid = event.legacy_event.name_iid if event.HasField("legacy_event") else 0
    name_iid = event.name_iid or legacy_iid
    name = _decode_text(event.name) or sequence.name_by_iid.get(name_iid, "")
    categories = [_decode_text(category) for category in event.categories]
    categories += [sequence.category_by_iid.get(category, "") for category in event.category_iids]
    return name, ",".join(filter(None, categories))[:_MAX_CHARACTERS_OF_NAME]


def _translate_key(category_and_name: tuple[str, str]) -> SpanMeaning:
    """Return the meaning of a slice by its name, else by its category."""
    category, name = category_and_name
    if parse_step_number(name) is not None:
        return SpanMeaning(kind="step", op=None, name=name)
    kind, op = find_meaning_of_names(name, category)
    return SpanMeaning(kind, op, name)


def _decode_text(content: bytes) -> str:
    return content[:_MAX_CHARACTERS_OF_NAME].decode("utf-8", "replace")


class PerfettoReader(FilesReader[Slices]):
    """Reads a file or a folder of Perfetto's protobuf traces."""

    name = "trace of Perfetto"
    suffixes = (".pftrace", ".perfetto-trace", ".pftrace.gz", ".perfetto-trace.gz")
    why_no_rank = "The names of processes do not say ranks ('rank 3'), and there are several"
    advice_if_cut = "Record again, and copy the trace whole."
    is_format = staticmethod(is_perfetto)
    read_file = staticmethod(read_slices)
    rank_processes = staticmethod(rank_processes)

    def list_gaps(self, run: FileSet[Slices]) -> Iterator[Gap]:
        """Yield what no slice is called as."""
        if "step" not in run.kinds:
            yield Gap(
                "no slice is called as a step is",
                "where steps begin, but by the updates or collectives that come back",
                "Put each step into a slice called 'step N'.",
                is_decisive="rank" in run.rows.columns and run.rows["rank"].n_unique() > 1,
            )
        if not run.kinds & {"forward", "backprop", "update"}:
            yield Gap(
                "no slice is called as a phase of training is",
                "which phase ranks compute in",
                "Call slices forward, backward and optimizer.",
                is_decisive=False,
            )
        if "reduction" not in run.kinds:
            yield Gap(
                "no slice is called as a collective is",
                "which rank others wait for",
                "Record the run with 'tracelens record', or profile it with torch.profiler.",
                hides_waits=True,
            )

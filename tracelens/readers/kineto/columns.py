"""Takes trace events apart into columns, a piece at a time, and counts events that become no row.

Complete events (``X``), and begins and ends (``B``, ``E``) of one thread, are rows; what a thread or a
process is called is kept with them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import compress
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.readers.event_stream import EventStream
from tracelens.readers.json_values import as_object, make_column
from tracelens.readers.kineto.events import (
    NO_ARGUMENTS,
    Event,
    collective_facts,
    decode_events,
    merge_arguments,
    names_collective,
    select_communication_arguments,
    to_event,
)
from tracelens.readers.kineto.words import (
    IN_NO_ROW,
    LIBRARIES,
    describe_event_phase,
    translate_category,
)
from tracelens.readers.soundness import NO_LAUNCHES, LostKernels
from tracelens.schema.vocabulary import MOST_RANKS

if TYPE_CHECKING:
    from pathlib import Path

_US: Final = 1_000
_SURELY_NS: Final = 10**17  # as microseconds this would be in the year 5138
_MOST_US: Final = 9.2e15
_MOST_DIGITS: Final = 18
_CATEGORIES_IN_NO_ROW: Final = frozenset(IN_NO_ROW)
_PHASES_READ: Final = frozenset("MBE")  # beside complete events
_TIMES: Final = ("start_ns", "duration_ns")
# What of an event's arguments is a column.
_NUMBERS: Final = ("correlation", "external", "sequence", "stream", "device")
_ROWS_PER_FRAME: Final = 1 << 14
_WORDS: Final = ("category", "name", "pid", "tid")
ROW_COLUMNS: Final[dict[str, pl.DataType]] = {
    "category": pl.Categorical(),
    "name": pl.Categorical(),
    "pid": pl.Categorical(),
    "tid": pl.Categorical(),
    "start_ns": pl.Int64(),
    "duration_ns": pl.Int64(),
    **dict.fromkeys(_NUMBERS, pl.Int64()),
    "call_index": pl.Int32(),  # in `EventTable.call_facts`
}


@dataclass(eq=False)
class EventTable:
    """The rows of one file, in `ROW_COLUMNS`, and what else is known of it."""

    path: Path
    rows: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=ROW_COLUMNS))
    # Arguments of events that name a collective, or may say how large one is; `call_index` of rows.
    call_facts: list[dict[str, Any]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)  # what stands beside its events
    name_by_thread: dict[tuple[str, str], str] = field(default_factory=dict)  # by pid and tid
    name_by_pid: dict[str, str] = field(default_factory=dict)
    # Events of no row, by what they are.
    left_out_counts: Counter[str] = field(default_factory=Counter)
    event_count: int = 0
    unusable_count: int = 0  # events without a name or a time
    negative_count: int = 0  # events that end before they begin
    lost_count: int = 0  # events that cannot be parsed
    is_cut: bool = False  # the file ends within its list of events
    damage_reason: str = ""
    has_lost_metadata: bool = False  # what stands beside its events is no JSON
    impossible_phrases: list[str] = field(default_factory=list)  # what was left out, and how much
    lost_kernels: LostKernels = NO_LAUNCHES
    selected_pid: str | None = None  # the process of these rows, where a file holds several
    stated_rank: int | None = None  # of the process, as its name, its collectives or its device say
    is_rank_of_device: bool = False

    @property
    def file_label(self) -> str:
        """What `--rank-of` calls it: a file, or a process of one."""
        name, pid = self.path.name, self.selected_pid
        return name if pid is None else f"{name}:{pid}"

    @property
    def begin_range_ns(self) -> tuple[int, int]:
        """When its first and its last event begin; 0, 0 without any."""
        first_ns, last_ns = self.rows["start_ns"].min(), self.rows["start_ns"].max()
        if not isinstance(first_ns, int) or not isinstance(last_ns, int):
            return 0, 0
        return self.time_origin_ns + first_ns, self.time_origin_ns + last_ns

    @property
    def time_origin_ns(self) -> int:
        """What times are counted from; 0 if that is 1970, or not said."""
        base = self.metadata.get("baseTimeNanoseconds")
        return base if isinstance(base, int) and 0 <= base < 2**62 else 0

    @property
    def distributed_info(self) -> dict[str, Any]:
        """What the file says of its job; empty if nothing."""
        return as_object(self.metadata.get("distributedInfo"))

    @property
    def rank(self) -> int | None:
        """The rank that the file says it is of; of several processes none is the file's."""
        if self.selected_pid:
            return self.stated_rank
        rank_of_file = _parse_below(self.distributed_info.get("rank"), MOST_RANKS)
        return self.stated_rank if rank_of_file is None else rank_of_file

    @property
    def world_size(self) -> int:
        """How many ranks the job has; 0 if the file does not say so."""
        return _parse_below(self.distributed_info.get("world_size"), MOST_RANKS + 1) or 0

    @property
    def host_name(self) -> str | None:
        """The name of its host."""
        host_name = self.metadata.get("host_name")
        return host_name if isinstance(host_name, str) and host_name else None

    @property
    def main_pid(self) -> int | None:
        """The process that most rows of the host are of; None if it is no number."""
        host_rows = self.rows.filter(~pl.col("category").is_in(["kernel", "copy"]))
        row_counts = host_rows["pid"].value_counts().cast({"pid": pl.String})
        pids = row_counts.sort("count", "pid", descending=[True, False])["pid"]
        return _parse_below(pids[0] if len(pids) else None, 10 ** (_MOST_DIGITS - 1))

    @property
    def is_of_other_tool(self) -> bool:
        """Whether nothing shows that torch.profiler wrote it."""
        known_keys = {"distributedInfo", "schemaVersion", "deviceProperties"} & self.metadata.keys()
        return not known_keys and (self.rows["category"] == "other").all()


def _parse_below(value: object, limit: int) -> int | None:
    """Return a number that may be written as a text; null for another text, or not below `limit`."""
    if isinstance(value, str) and value.isdecimal() and len(value) < _MOST_DIGITS:
        value = int(value)
    return value if type(value) is int and 0 <= value < limit else None


def read_events(path: Path) -> EventTable:
    """Read the trace events of a file, as `FilesReader.read_file` says; begins and ends become one."""
    table, stream = EventTable(path), EventStream(path, decode_list=decode_events)
    open_begins: dict[tuple[str, str], list[Event]] = {}  # by pid and tid, the innermost last
    frames: list[pl.DataFrame] = []
    cells = _Cells()
    for events in stream.read_pieces():
        table.event_count += len(events)
        complete_events = _complete_events(events, table, open_begins)
        cells.append_events(*_categorize(complete_events, table))
        if cells.row_count >= _ROWS_PER_FRAME:
            frames.append(cells.to_frame(table, has_ns_times=stream.has_ns_times))
            cells = _Cells()
    frames.append(cells.to_frame(table, has_ns_times=stream.has_ns_times))
    table.left_out_counts["begins without an end"] += sum(map(len, open_begins.values()))
    table.metadata, table.lost_count = stream.metadata, stream.lost_count
    table.is_cut, table.damage_reason = stream.is_cut, stream.damage_reason
    table.has_lost_metadata = stream.has_lost_metadata
    table.rows = pl.concat(frames, rechunk=True)
    return table


class _Cells:
    """Cells of complete events, column by column, until there are enough for a frame."""

    def __init__(self) -> None:
        self.row_count = 0
        self._communication_arguments: list[tuple[int, Any]] = []  # with the number of their row
        self._event_cells: dict[str, list[Any]] = {name: [] for name in (*_WORDS, *_TIMES)}
        self._argument_cells: dict[str, list[Any]] = {name: [] for name in _NUMBERS}  # by column

    def append_events(self, events: list[Event], categories: list[str]) -> None:
        """Append the members of events, and `categories`, one for each, to the columns."""
        columns = self._event_cells
        columns["category"] += categories
        columns["name"] += [event.name for event in events]
        columns["pid"] += [event.pid for event in events]
        columns["tid"] += [event.tid for event in events]
        columns["start_ns"] += [event.ts for event in events]
        columns["duration_ns"] += [event.dur for event in events]
        arguments = [event.args or NO_ARGUMENTS for event in events]
        for name, cells in self._argument_cells.items():
            cells.extend(map(attrgetter(name), arguments))
        self._communication_arguments += select_communication_arguments(arguments, self.row_count)
        self.row_count += len(events)

    def to_frame(self, table: EventTable, *, has_ns_times: bool) -> pl.DataFrame:
        """Return the rows, in `ROW_COLUMNS`, and count other events in `table`.

        With `has_ns_times` huge whole times are nanoseconds; all others are microseconds.
        """
        event_cells = self._event_cells
        columns = {name: _text_column(name, event_cells[name]) for name in _WORDS}
        for name, cells in self._argument_cells.items():
            columns[name] = make_column(name, cells, pl.Int64())
        for name in _TIMES:
            columns[name] = _to_ns(name, event_cells[name], has_ns_times=has_ns_times)
        columns["call_index"] = make_column(
            "call_index", self._collect_calls(columns["name"], table), pl.Int32()
        )
        events = pl.DataFrame(columns)
        usable_events = events.drop_nulls(["name", *_TIMES]).cast({pl.String: pl.Categorical()})
        table.unusable_count += events.height - usable_events.height
        is_negative = usable_events["duration_ns"] < 0
        if is_negative.any():
            table.negative_count += int(is_negative.sum())
            usable_events = usable_events.filter(~is_negative)
        return usable_events.select(*ROW_COLUMNS)

    def _collect_calls(self, names: pl.Series, table: EventTable) -> list[int | None]:
        """Add arguments of communication to `table.call_facts`; return each row's index there."""
        distinct_names = names.unique().drop_nulls().to_list()
        library_names = {name for name in distinct_names if name.startswith(LIBRARIES)}
        call_indexes: list[int | None] = [None] * self.row_count
        for row_number, arguments in self._communication_arguments:
            name = self._event_cells["name"][row_number]
            if names_collective(arguments) or (type(name) is str and name in library_names):
                call_indexes[row_number] = len(table.call_facts)
                table.call_facts.append(collective_facts(arguments))
        return call_indexes


def _categorize(events: list[Event], table: EventTable) -> tuple[list[Event], list[str]]:
    """Return the events that become rows, and the category of each; others are counted in `table`."""
    categories = [
        translate_category(cat) if type(cat := event.cat) is str else "other" for event in events
    ]
    if _CATEGORIES_IN_NO_ROW.isdisjoint(categories):
        return events, categories
    for category_name, count in Counter(categories).items():
        if category_name in IN_NO_ROW:
            table.left_out_counts[IN_NO_ROW[category_name]] += count
    is_kept = [category_name not in IN_NO_ROW for category_name in categories]
    return [*compress(events, is_kept)], [*compress(categories, is_kept)]


def _complete_events(
    events: list[Any], table: EventTable, open_begins: dict[tuple[str, str], list[Event]]
) -> list[Event]:
    """Return the events that are rows: complete ones, and pairs of begin and end.

    `open_begins` are the begins that have no end yet, by pid and tid; they are kept between pieces.
    """
    if events and type(events[0]) is not Event:  # orjson parsed this piece
        table.unusable_count += sum(not isinstance(event, dict) for event in events)
        events = [to_event(event) for event in events if isinstance(event, dict)]
    complete_events = [event for event in events if event.ph == "X"]
    are_all_complete = len(complete_events) == len(events)
    other_events = [] if are_all_complete else [event for event in events if event.ph != "X"]
    for event in other_events:
        if event.ph == "M":
            _take_name(event, table)
        elif event.ph == "B":
            open_begins.setdefault(_thread_key(event), []).append(event)
        elif event.ph == "E":
            _close_event(event, table, open_begins, complete_events)
    for phase, count in Counter(str(event.ph) for event in other_events).items():
        if phase not in _PHASES_READ:
            table.left_out_counts[describe_event_phase(phase)] += count
    return complete_events


def _close_event(
    event: Event,
    table: EventTable,
    open_begins: dict[tuple[str, str], list[Event]],
    complete_events: list[Event],
) -> None:
    """Join an end with the last open begin of its thread, and append them as a complete event."""
    open_events = open_begins.get(_thread_key(event))
    if not open_events:
        table.left_out_counts["ends without a begin"] += 1
        return
    begin_event = open_events.pop()
    begin_us, end_us = begin_event.ts, event.ts
    if not isinstance(begin_us, (int, float)) or not isinstance(end_us, (int, float)):
        table.unusable_count += 1
        return
    table.left_out_counts["ends that are part of a row"] += 1
    begin_event.dur = end_us - begin_us
    begin_event.args = merge_arguments(begin_event.args, event.args)
    begin_event.cat = event.cat if begin_event.cat is None else begin_event.cat
    begin_event.name = event.name if begin_event.name is None else begin_event.name
    complete_events.append(begin_event)


def _text_column(name: str, values: list[Any]) -> pl.Series:
    """Return texts; the numbers of processes and threads are some, too, but quicker as numbers."""
    if values and {*map(type, values)} <= {int, NoneType}:
        try:
            return pl.Series(name, values, dtype=pl.Int64(), strict=True).cast(pl.String())
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            pass
    return make_column(name, values, pl.String())


def _to_ns(name: str, values: list[Any], *, has_ns_times: bool) -> pl.Series:
    """Return times in ns, given in microseconds; with `has_ns_times` huge whole ones are ns already."""
    if has_ns_times:
        times_ns = [
            value if type(value) is int and value > _SURELY_NS else _us_to_ns(value)
            for value in values
        ]
        return make_column(name, times_ns, pl.Int64())
    time_us = pl.col(name)
    is_in_range = time_us.is_finite() & (time_us.abs() < _MOST_US)
    return (
        make_column(name, values, pl.Float64())
        .to_frame()
        .select(pl.when(is_in_range).then((time_us * _US).round()).cast(pl.Int64))
        .to_series()
    )


def _us_to_ns(value: Any) -> int | None:
    fits = isinstance(value, (int, float)) and abs(value) < _MOST_US
    return round(value * _US) if fits else None


def _thread_key(event: Event) -> tuple[str, str]:
    return str(event.pid), str(event.tid)


def _take_name(event: Event, table: EventTable) -> None:
    """Take the name of a thread or process."""
    name = event.args.given_name if event.args else None
    if isinstance(name, str):
        pid, tid = _thread_key(event)
        if event.name == "thread_name":
            table.name_by_thread[pid, tid] = name
        elif event.name == "process_name":
            table.name_by_pid[pid] = name
    table.left_out_counts["names of threads and processes"] += 1

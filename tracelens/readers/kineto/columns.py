"""Takes trace events apart into columns, a piece at a time, and counts events that become no row.

Complete events (``X``), and begins and ends (``B``, ``E``) of one thread, are rows; what a thread or a
process is called is kept with them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal

import polars as pl

from tracelens.readers.event_stream import EventStream
from tracelens.readers.kineto.events import (
    NO_ARGUMENTS,
    Event,
    collective_facts,
    decode_events,
    find_communication,
    merge_arguments,
    names_collective,
    to_event,
)
from tracelens.readers.kineto.words import IN_NO_ROW, LIBRARIES, category, phase_of_event
from tracelens.readers.soundness import NO_LAUNCHES, LostKernels
from tracelens.schema.vocabulary import MOST_RANKS

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ROW_COLUMNS", "EventTable", "read_events"]

_US: Final = 1_000
_SURELY_NS: Final = 10**17  # as microseconds this would be in the year 5138
_MOST_US: Final = 9.2e15
_MOST_DIGITS: Final = 18
_ASIDE: Final = frozenset(IN_NO_ROW)
_PHASES: Final = frozenset("MBE")
_TIMES: Final = ("start_ns", "duration_ns")
# What of an event's arguments is a column.
_NUMBERS: Final = ("correlation", "external", "sequence", "stream", "device")
_ROWS_AT_ONCE: Final = 1 << 14
_WORDS: Final = ("category", "name", "pid", "tid")
ROW_COLUMNS: Final[dict[str, pl.DataType]] = {
    "category": pl.Categorical(),
    "name": pl.Categorical(),
    "pid": pl.Categorical(),
    "tid": pl.Categorical(),
    "start_ns": pl.Int64(),
    "duration_ns": pl.Int64(),
    **dict.fromkeys(_NUMBERS, pl.Int64()),
    "call": pl.Int32(),  # place in `EventTable.calls`
}


@dataclass(eq=False)
class EventTable:
    """The rows of one file, in `ROW_COLUMNS`, and what else is known of it.

    `calls` are the arguments of events that name a collective, or may say how large one is. `left_out`
    counts events that are read but become no row, by what they are; `unusable` those without a name or a
    time, and `negative` those that end before they begin. `impossible` are sentences on rows that were
    left out. `threads` and `processes` are names. Where a file holds several processes, `process` is the
    one that the rows are of; `stated_rank` is its rank, as its name, its collectives or, with
    `is_rank_of_device`, its device say.
    """

    path: Path
    rows: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=ROW_COLUMNS))
    calls: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    threads: dict[tuple[str, str], str] = field(default_factory=dict)
    processes: dict[str, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    events: int = 0
    unusable: int = 0
    negative: int = 0
    lost: int = 0
    cut: bool = False
    damage: str = ""
    lost_facts: bool = False  # what stands beside its events is no JSON
    impossible: list[str] = field(default_factory=list)
    lost_kernels: LostKernels = NO_LAUNCHES
    process: str | None = None
    stated_rank: int | None = None
    is_rank_of_device: bool = False

    @property
    def label(self) -> str:
        """What `--rank-of` calls it: a file, or a process of one."""
        return self.path.name if self.process is None else f"{self.path.name}:{self.process}"

    @property
    def first_ns(self) -> int:
        """When its first event begins; 0 without any."""
        return self._begin("min")

    @property
    def last_ns(self) -> int:
        """When its last event begins; 0 without any."""
        return self._begin("max")

    def _begin(self, extreme: Literal["min", "max"]) -> int:
        start_ns = getattr(self.rows["start_ns"], extreme)()
        return self.base_ns + start_ns if isinstance(start_ns, int) else 0

    @property
    def base_ns(self) -> int:
        """What times are counted from; 0 if that is 1970, or not said."""
        base = self.facts.get("baseTimeNanoseconds")
        return base if isinstance(base, int) and 0 <= base < 2**62 else 0

    @property
    def distributed(self) -> dict[str, Any]:
        """What the file says of its job; empty if nothing."""
        found = self.facts.get("distributedInfo")
        return found if isinstance(found, dict) else {}

    @property
    def rank(self) -> int | None:
        """The rank that the file says it is of; of several processes none is the file's."""
        of_file = None if self.process else _parse_below(self.distributed.get("rank"), MOST_RANKS)
        return self.stated_rank if of_file is None else of_file

    @property
    def world(self) -> int:
        """How many ranks the job has; 0 if the file does not say so."""
        return _parse_below(self.distributed.get("world_size"), MOST_RANKS + 1) or 0

    @property
    def host(self) -> str | None:
        """The name of its host."""
        found = self.facts.get("host_name")
        return found if isinstance(found, str) and found else None

    @property
    def pid(self) -> int | None:
        """The process that most rows of the host are of."""
        host_rows = self.rows.filter(~pl.col("category").is_in(["kernel", "copy"]))
        counts = host_rows["pid"].value_counts().cast({"pid": pl.String})
        pids = counts.sort("count", "pid", descending=[True, False])["pid"]
        return _parse_below(pids[0] if len(pids) else None, 10 ** (_MOST_DIGITS - 1))

    @property
    def is_other(self) -> bool:
        """Whether nothing shows that torch.profiler wrote it."""
        known = {"distributedInfo", "schemaVersion", "deviceProperties"} & self.facts.keys()
        return not known and (self.rows["category"] == "other").all()


def _parse_below(value: object, limit: int) -> int | None:
    """Return a number that may be written as a text; null for another text, or not below `limit`."""
    if isinstance(value, str) and value.isdecimal() and len(value) < _MOST_DIGITS:
        value = int(value)
    return value if type(value) is int and 0 <= value < limit else None


def read_events(path: Path) -> EventTable:
    """Read a file of trace events.

    Raises:
        NotATrace: it holds no list of events.
        OSError: it cannot be read.
    """
    table, stream = EventTable(path), EventStream(path, decode=decode_events)
    open_begins: dict[tuple[str, str], list[Event]] = {}
    tables: list[pl.DataFrame] = []
    cells = _Cells()
    for events in stream.pieces():
        table.events += len(events)
        cells.take(*_categorize(_complete_events(events, table, open_begins), table))
        if cells.count >= _ROWS_AT_ONCE:
            tables.append(cells.frame(table, exact=stream.exact))
            cells = _Cells()
    tables.append(cells.frame(table, exact=stream.exact))
    table.left_out["begins without an end"] += sum(map(len, open_begins.values()))
    table.facts, table.lost = stream.facts, stream.lost
    table.cut, table.damage = stream.cut, stream.damage
    table.lost_facts = stream.lost_facts
    table.rows = pl.concat(tables, rechunk=True)
    return table


class _Cells:
    """Cells of complete events, column by column, until there are enough for a frame."""

    def __init__(self) -> None:
        self.count = 0
        self._communication: list[tuple[int, Any]] = []  # row numbers, and arguments of calls
        self._event_cells: dict[str, list[Any]] = {name: [] for name in (*_WORDS, *_TIMES)}
        self._argument_cells: dict[str, list[Any]] = {name: [] for name in _NUMBERS}

    def take(self, events: list[Event], categories: list[str]) -> None:
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
        self._communication += find_communication(arguments, self.count)
        self.count += len(events)

    def frame(self, table: EventTable, *, exact: bool) -> pl.DataFrame:
        """Return the rows, in `ROW_COLUMNS`, and count other events."""
        event_cells = self._event_cells
        columns = {name: _text_column(name, event_cells[name]) for name in _WORDS}
        for name, cells in self._argument_cells.items():
            columns[name] = _column(name, cells, pl.Int64())
        for name in _TIMES:
            columns[name] = _to_ns(name, event_cells[name], exact=exact)
        columns["call"] = _column("call", self._collect_calls(columns["name"], table), pl.Int32())
        events = pl.DataFrame(columns)
        usable = events.drop_nulls(["name", *_TIMES]).cast({pl.String: pl.Categorical()})
        table.unusable += events.height - usable.height
        is_negative = usable["duration_ns"] < 0
        if is_negative.any():
            table.negative += int(is_negative.sum())
            usable = usable.filter(~is_negative)
        return usable.select(*ROW_COLUMNS)

    def _collect_calls(self, names: pl.Series, table: EventTable) -> list[int | None]:
        """Add arguments of communication to `table.calls`; return their index there for each row."""
        distinct_names = names.unique().drop_nulls().to_list()
        library_names = {name for name in distinct_names if name.startswith(LIBRARIES)}
        call_of_row: list[int | None] = [None] * self.count
        name_of_row = self._event_cells["name"]
        for row_number, arguments in self._communication:
            name = name_of_row[row_number]
            if names_collective(arguments) or (type(name) is str and name in library_names):
                call_of_row[row_number] = len(table.calls)
                table.calls.append(collective_facts(arguments))
        return call_of_row


def _categorize(events: list[Event], table: EventTable) -> tuple[list[Event], list[str]]:
    """Return the events that become rows, and the category of each; others are counted in `table`."""
    categories = [category(cat) if type(cat := event.cat) is str else "other" for event in events]
    if _ASIDE.isdisjoint(categories):
        return events, categories
    for category_name, count in Counter(categories).items():
        if category_name in IN_NO_ROW:
            table.left_out[IN_NO_ROW[category_name]] += count
    is_kept = [category_name not in IN_NO_ROW for category_name in categories]
    return [*compress(events, is_kept)], [*compress(categories, is_kept)]


def _complete_events(
    events: list[Any], table: EventTable, open_begins: dict[tuple[str, str], list[Event]]
) -> list[Event]:
    """Return the events that are rows: complete ones, and pairs of begin and end."""
    if events and type(events[0]) is not Event:  # orjson parsed this piece
        table.unusable += sum(not isinstance(event, dict) for event in events)
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
        if phase not in _PHASES:
            table.left_out[phase_of_event(phase)] += count
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
        table.left_out["ends without a begin"] += 1
        return
    begin_event = open_events.pop()
    begin_us, end_us = begin_event.ts, event.ts
    if not isinstance(begin_us, (int, float)) or not isinstance(end_us, (int, float)):
        table.unusable += 1
        return
    table.left_out["ends that are part of a row"] += 1
    begin_event.dur = end_us - begin_us
    begin_event.args = merge_arguments(begin_event.args, event.args)
    begin_event.cat = event.cat if begin_event.cat is None else begin_event.cat
    begin_event.name = event.name if begin_event.name is None else begin_event.name
    complete_events.append(begin_event)


def _text_column(name: str, values: list[Any]) -> pl.Series:
    """Return texts; the numbers of processes and threads are some, too, but quicker as numbers."""
    if values and type(values[0]) is int:
        try:
            return pl.Series(name, values, dtype=pl.Int64(), strict=True).cast(pl.String())
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            pass
    return _column(name, values, pl.String())


def _column(name: str, values: list[Any], dtype: pl.DataType) -> pl.Series:
    return pl.Series(name, values, dtype=dtype, strict=False)


def _to_ns(name: str, values: list[Any], *, exact: bool) -> pl.Series:
    """Return times, given in microseconds, in ns; with `exact`, huge whole numbers are ns already."""
    if exact:
        times_ns = [
            value if type(value) is int and value > _SURELY_NS else _us_to_ns(value)
            for value in values
        ]
        return _column(name, times_ns, pl.Int64())
    time_us = pl.col(name)
    is_in_range = time_us.is_finite() & (time_us.abs() < _MOST_US)
    return (
        _column(name, values, pl.Float64())
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
    name = event.args.named if event.args else None
    if isinstance(name, str):
        pid, tid = _thread_key(event)
        if event.name == "thread_name":
            table.threads[pid, tid] = name
        elif event.name == "process_name":
            table.processes[pid] = name
    table.left_out["names of threads and processes"] += 1

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
    decoded,
    described,
    merge_arguments,
    names_collective,
    of_communication,
    typed,
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

    def _begin(self, which: Literal["min", "max"]) -> int:
        found = getattr(self.rows["start_ns"], which)()
        return self.base_ns + found if isinstance(found, int) else 0

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
        host = self.rows.filter(~pl.col("category").is_in(["kernel", "copy"]))
        most = host["pid"].value_counts(sort=True).cast({"pid": pl.String})["pid"]
        first = most[0] if len(most) else None
        return int(first) if first and first.isdecimal() and len(first) < _MOST_DIGITS else None

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
    table, stream = EventTable(path), EventStream(path, decode=decoded)
    opened: dict[tuple[str, str], list[Event]] = {}
    frames: list[pl.DataFrame] = []
    cells = _Cells()
    for piece in stream.pieces():
        table.events += len(piece)
        cells.take(*_categorize(_complete(piece, table, opened), table))
        if cells.count >= _ROWS_AT_ONCE:
            frames.append(cells.frame(table, exact=stream.exact))
            cells = _Cells()
    frames.append(cells.frame(table, exact=stream.exact))
    table.left_out["begins without an end"] += sum(map(len, opened.values()))
    table.facts, table.lost = stream.facts, stream.lost
    table.cut, table.damage = stream.cut, stream.damage
    table.lost_facts = stream.lost_facts
    table.rows = pl.concat(frames, rechunk=True)
    return table


class _Cells:
    """Cells of complete events, column by column, until there are enough for a frame."""

    def __init__(self) -> None:
        self.count = 0
        self._stated: list[tuple[int, Any]] = []  # row, and arguments that may be of communication
        self._of_event: dict[str, list[Any]] = {name: [] for name in (*_WORDS, *_TIMES)}
        self._of_arguments: dict[str, list[Any]] = {name: [] for name in _NUMBERS}

    def take(self, rows: list[Event], categories: list[str]) -> None:
        """Take the members of events that are read."""
        columns = self._of_event
        columns["category"] += categories
        columns["name"] += [row.name for row in rows]
        columns["pid"] += [row.pid for row in rows]
        columns["tid"] += [row.tid for row in rows]
        columns["start_ns"] += [row.ts for row in rows]
        columns["duration_ns"] += [row.dur for row in rows]
        arguments = [row.args or NO_ARGUMENTS for row in rows]
        for name, cells in self._of_arguments.items():
            cells.extend(map(attrgetter(name), arguments))
        self._stated += of_communication(arguments, self.count)
        self.count += len(rows)

    def frame(self, table: EventTable, *, exact: bool) -> pl.DataFrame:
        """Return the rows, in `ROW_COLUMNS`, and count other events."""
        of_event = self._of_event
        columns = {name: _text_column(name, of_event[name]) for name in _WORDS}
        for name, cells in self._of_arguments.items():
            columns[name] = _column(name, cells, pl.Int64())
        for name in _TIMES:
            columns[name] = _nanoseconds(name, of_event[name], exact=exact)
        columns["call"] = _column("call", self._calls(columns["name"], table), pl.Int32())
        frame = pl.DataFrame(columns)
        usable = (
            frame.lazy().drop_nulls(["name", *_TIMES]).cast({pl.String: pl.Categorical()}).collect()
        )
        table.unusable += frame.height - usable.height
        negative = usable["duration_ns"] < 0
        if negative.any():
            table.negative += int(negative.sum())
            usable = usable.filter(~negative)
        return usable.select(*ROW_COLUMNS)

    def _calls(self, names: pl.Series, table: EventTable) -> list[int | None]:
        """Keep the arguments of communication; return for each row where they are."""
        distinct = names.unique().drop_nulls().to_list()
        libraries = {name for name in distinct if name.startswith(LIBRARIES)}
        call_of_row: list[int | None] = [None] * self.count
        called = self._of_event["name"]
        for row_number, arguments in self._stated:
            name = called[row_number]
            if names_collective(arguments) or (type(name) is str and name in libraries):
                call_of_row[row_number] = len(table.calls)
                table.calls.append(described(arguments))
        return call_of_row


def _categorize(rows: list[Event], table: EventTable) -> tuple[list[Event], list[str]]:
    """Return events with what they are, but for those whose category is in no row: they are counted."""
    categories = [category(cat) if type(cat := row.cat) is str else "other" for row in rows]
    if _ASIDE.isdisjoint(categories):
        return rows, categories
    for category_name, count in Counter(categories).items():
        if category_name in IN_NO_ROW:
            table.left_out[IN_NO_ROW[category_name]] += count
    kept = [category_name not in IN_NO_ROW for category_name in categories]
    return [*compress(rows, kept)], [*compress(categories, kept)]


def _complete(
    events: list[Any], table: EventTable, opened: dict[tuple[str, str], list[Event]]
) -> list[Event]:
    """Return the events that are rows: complete ones, and pairs of begin and end."""
    if events and type(events[0]) is not Event:  # orjson parsed this piece
        table.unusable += sum(not isinstance(event, dict) for event in events)
        events = [typed(event) for event in events if isinstance(event, dict)]
    rows = [event for event in events if event.ph == "X"]
    markers = [event for event in events if event.ph != "X"] if len(rows) < len(events) else []
    for event in markers:
        if event.ph == "M":
            _name(event, table)
        elif event.ph == "B":
            opened.setdefault(_thread_key(event), []).append(event)
        elif event.ph == "E":
            _close(event, table, opened, rows)
    for phase, count in Counter(str(event.ph) for event in markers).items():
        if phase not in _PHASES:
            table.left_out[phase_of_event(phase)] += count
    return rows


def _close(
    event: Event,
    table: EventTable,
    opened: dict[tuple[str, str], list[Event]],
    rows: list[Event],
) -> None:
    open_events = opened.get(_thread_key(event))
    if not open_events:
        table.left_out["ends without a begin"] += 1
        return
    begin_event = open_events.pop()
    begin_us, end_us = begin_event.ts, event.ts
    if not isinstance(begin_us, (int, float)) or not isinstance(end_us, (int, float)):
        table.unusable += 1
        return
    table.left_out["ends that are part of a row"] += 1
    begin_event.dur, begin_event.args = (
        end_us - begin_us,
        merge_arguments(begin_event.args, event.args),
    )
    begin_event.cat = event.cat if begin_event.cat is None else begin_event.cat
    begin_event.name = event.name if begin_event.name is None else begin_event.name
    rows.append(begin_event)


def _text_column(name: str, values: list[Any]) -> pl.Series:
    """Return texts; the numbers of processes and threads are some, too, but quicker as numbers."""
    if values and type(values[0]) is int:
        try:
            return pl.Series(name, values, dtype=pl.Int64(), strict=True).cast(pl.String())
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            pass
    return _column(name, values, pl.String())


def _column(name: str, values: list[Any], kind: pl.DataType) -> pl.Series:
    return pl.Series(name, values, dtype=kind, strict=False)


def _nanoseconds(name: str, values: list[Any], *, exact: bool) -> pl.Series:
    """Return times, which are microseconds; if exact, whole numbers too large for that are not."""
    if exact:
        times_ns = [
            value if type(value) is int and value > _SURELY_NS else _us_to_ns(value)
            for value in values
        ]
        return _column(name, times_ns, pl.Int64())
    number = pl.col(name)
    fits = number.is_finite() & (number.abs() < _MOST_US)
    return (
        _column(name, values, pl.Float64())
        .to_frame()
        .select(pl.when(fits).then((number * _US).round()).cast(pl.Int64))
        .to_series()
    )


def _us_to_ns(value: Any) -> int | None:
    fits = isinstance(value, (int, float)) and abs(value) < _MOST_US
    return round(value * _US) if fits else None


def _thread_key(event: Event) -> tuple[str, str]:
    return str(event.pid), str(event.tid)


def _name(event: Event, table: EventTable) -> None:
    """Take the name of a thread or process."""
    name = event.args.named if event.args else None
    if isinstance(name, str):
        pid, tid = _thread_key(event)
        if event.name == "thread_name":
            table.threads[pid, tid] = name
        elif event.name == "process_name":
            table.processes[pid] = name
    table.left_out["names of threads and processes"] += 1

"""The central value: everything that a run's processes recorded, in one immutable `Trace`.

Readers, transforms and the simulator return one; analyses, exports and pages take one.
All times are integer nanoseconds. After the default transforms (`tracelens.open`) they are on one
clock, that of the first host, and every worker's time is divided into steps.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

import polars as pl

from tracelens.caching import cached_property
from tracelens.model.calls import list_arrivals, make_grids
from tracelens.model.choice import EVERYTHING
from tracelens.model.display import find_frames, to_pandas, upper_layers
from tracelens.model.events import Source, complete_columns, make_source
from tracelens.model.fmt import count, shown_name
from tracelens.model.messages import find_waits, match_sides, select_side, with_hops
from tracelens.model.notes import Note as Note  # noqa: PLC0414, TC001 - for who reads a trace
from tracelens.model.recognition import EQUAL_BYTES
from tracelens.schema.vocabulary import EVENT_TYPES, EXCHANGE_KINDS, POINT_TO_POINT, STATUSES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracelens.model.calls import CallGrid
    from tracelens.model.choice import Choice
    from tracelens.model.clock_map import ClockMap
    from tracelens.model.events import Change
    from tracelens.model.outline import Outline
    from tracelens.model.recognition import Recognition
    from tracelens.schema.life import Entry


EVENT_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),  # row of `Trace.processes`
    "rank": pl.Int32(),  # global rank of that process
    "role": pl.Categorical(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),  # null = still open when the recording ended
    "type": pl.Enum(EVENT_TYPES),
    "kind": pl.Categorical(),
    "op": pl.Categorical(),
    "name": pl.Categorical(),
    "status": pl.Enum(STATUSES),
    "thread": pl.UInt16(),
    "depth": pl.UInt16(),
    "step": pl.Int32(),
    "micro_step": pl.UInt16(),
    "communicator": pl.Categorical(),  # the uid, equal in all members
    "seq": pl.UInt32(),
    "bytes": pl.Int64(),
    "algorithm": pl.Categorical(),
    "bucket": pl.Int32(),
    "peer": pl.Int32(),
    "shard": pl.Int32(),
    "key": pl.Int32(),
    "queue_depth": pl.UInt16(),
    "request": pl.UInt64(),
    "device_start_ns": pl.Int64(),
    "device_duration_ns": pl.Int64(),
    "stream": pl.UInt16(),  # row of the thread table
    "value": pl.Float64(),
}

PROCESS_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "role": pl.String(),
    "rank": pl.Int32(),
    "world": pl.Int32(),
    "local_rank": pl.Int32(),
    "host": pl.String(),
    "clock_domain": pl.String(),
    "pid": pl.Int64(),
    "incarnation": pl.Int64(),
    "job": pl.String(),
    "shard": pl.Int32(),
    "cores": pl.String(),  # those on which it may run, such as "0-3,8"; null = not known
    "core_quota": pl.Float64(),  # how many cores' time it may use; null = not limited, or not known
    "main": pl.Boolean(),  # the rank's own process, not a child it forked or an earlier incarnation
    "complete": pl.Boolean(),  # ended its recording itself
    "events": pl.Int64(),
    "dropped": pl.Int64(),
    "first_ns": pl.Int64(),
    "last_ns": pl.Int64(),
    "training_thread": pl.UInt16(),  # the one that runs the steps; null for PS processes
    "file": pl.String(),
    "detail": pl.String(),  # how closely framework hooks looked; null = not set
    "last_steps": pl.Int32(),  # only so many steps, and marked ones, were to be kept; null = all
    "child": pl.Boolean(),  # a recording process forked or spawned it
    "started_ns": pl.Int64(),  # wall time at which the process began; null = not known
}

COMMUNICATOR_COLUMNS: Final[dict[str, pl.DataType]] = {
    "communicator": pl.Categorical(),
    "name": pl.String(),
    "ranks": pl.List(pl.Int32()),
}

THREAD_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "thread": pl.UInt16(),
    "name": pl.String(),
    "in_flight": pl.Boolean(),
    "device": pl.Int32(),  # number of the device whose stream this row is
}

CLOCK_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "method": pl.String(),  # local | ping_pong | device
    "monotonic_ns": pl.Int64(),
    "window_ns": pl.Int64(),
    "wall_ns": pl.Int64(),
    "peer": pl.Int32(),
    "offset_ns": pl.Int64(),
    "device": pl.Int32(),
    "ran_ns": pl.Int64(),  # of the main thread so far: on a core,
    "queued_ns": pl.Int64(),  # and waiting for one
}

# Samples of call stacks, where they were taken; a row is a run of equal ones.
SAMPLE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),  # the rank's; its children are sampled with it
    "thread": pl.UInt16(),  # row of the thread table; null for children, and threads without events
    "pid": pl.Int64(),
    "thread_name": pl.String(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "frames": pl.List(pl.String()),  # outermost first, as ``function (file:line)``
}

# What ended a process, or a thread of it, as the process itself noted; in order of time.
ENDING_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "at_ns": pl.Int64(),
    "cause": pl.String(),  # type of an exception, or name of a signal
    "message": pl.String(),
    "thread": pl.String(),  # name; null = the main thread, whose exception ends the process
    "user_frame": pl.String(),  # innermost frame outside of libraries; null = not known
    "frames": pl.List(pl.String()),  # innermost first, as ``function (file:line)``
}

# The tables of a trace whose rows name the process that they are about.
OF_PROCESSES: Final = ("processes", "threads", "clocks", "samples", "endings")

# How each device's clock was brought onto its host's.
DEVICE_CLOCK_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "device": pl.Int32(),
    "offset_ns": pl.Int64(),  # host minus device at the first reading
    "drift_ppm": pl.Float64(),  # how much faster the device's clock runs
    "uncertainty_ns": pl.Int64(),
    "readings": pl.Int64(),
}

# One row per worker (main process) and step. The windows of a process touch: a step lasts until the
# next one starts, so data loading between two step spans belongs to a step too.
STEP_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "samples": pl.Float64(),
}


@dataclass(frozen=True)
class HostClock:
    """How one clock was brought onto the common one; nanoseconds, parts per million.

    `uncertainty_ns` is null where nothing ties it to the others.
    """

    host: str
    clock_domain: str
    offset_ns: int
    drift_ppm: float
    uncertainty_ns: int | None
    jumps: tuple[int, ...] = ()


# The best first (docs/clocks.md).
ALIGNMENT_METHODS: Final = (
    *("same_clock", "collective_exits", "ping_pong", "requests", "messages", "wall"),
    "unaligned",
)


@dataclass(frozen=True)
class Alignment:
    """The alignment of the clocks, by a `method` of `ALIGNMENT_METHODS`."""

    method: str
    hosts: tuple[HostClock, ...] = ()

    @property
    def uncertainty_ns(self) -> int:
        """The worst host's uncertainty; no wait below three times this is worth printing."""
        return max((host.uncertainty_ns or 0 for host in self.hosts), default=0)

    @property
    def untied_clock_domains(self) -> tuple[str, ...]:
        """The clock domains that nothing ties to the others: only durations within them are known."""
        return tuple(host.clock_domain for host in self.hosts if host.uncertainty_ns is None)


_FORMER_NAMES: Final = {
    "awaited": "message_waits",
    "cut_short": "is_cut_short",
    "exchanged": "matched_messages",
    "opened": "open_spans",
    "sent": "program_messages",
}


@dataclass(frozen=True, eq=False)
class Trace:
    """A run. Frames are documented by the column tables of this module.

    `events` is read when it is collected, process by process (`source`), so that a run of any size can
    be asked about. `expected_ranks` is the world size that the processes report. `steps` and `calls`
    are empty until alignment filled them in; `arrivals` are the calls as a frame. `clock_maps`
    map the times of each process to the common clock; those of a process that it lacks stayed as they
    were. `journal` is what was seen of the job from outside, in wall time; `read_at_ns` the wall time at
    which a run was read that is still recorded, null for one that is over. `choice` says what of the run
    is here, where a part was asked for, and `is_cut_short` that the run went on after that.
    """

    events: pl.LazyFrame
    processes: pl.DataFrame
    communicators: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(schema=COMMUNICATOR_COLUMNS)
    )
    threads: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=THREAD_COLUMNS))
    clocks: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=CLOCK_COLUMNS))
    device_clocks: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(schema=DEVICE_CLOCK_COLUMNS)
    )
    samples: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SAMPLE_COLUMNS))
    endings: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=ENDING_COLUMNS))
    journal: tuple[Entry, ...] = ()
    read_at_ns: int | None = None
    steps: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=STEP_COLUMNS))
    calls: tuple[CallGrid, ...] = ()
    alignment: Alignment = field(default_factory=lambda: Alignment("same_clock"))
    notes: tuple[Note, ...] = ()
    dropped: dict[str, int] = field(default_factory=dict)
    clock_maps: Mapping[int, ClockMap] = field(default_factory=dict)
    path: Path | None = None
    recognition: Recognition | None = None  # null = TraceLens recorded it, or a table of spans
    choice: Choice = EVERYTHING
    is_cut_short: bool = False
    parts: Source | None = None  # where `events` come from; null = from a frame
    outlines: Mapping[int, Outline] | None = (
        None  # of each process; null = not made, or no longer true
    )

    @classmethod
    def from_source(cls, source: Source, **tables: Any) -> Self:
        """Make a trace whose events are read from a source."""
        return cls(events=source.scan(EVENT_COLUMNS), parts=source, **tables)

    @staticmethod
    def from_table(
        table: Any,
        *,
        map: Mapping[str, str] | None = None,  # noqa: A002 - called what the command line calls it
        one_clock: bool = False,
    ) -> Trace:
        """Read a table of spans, as `tracelens.load.from_table` does."""
        trace: Trace = upper_layers().load.from_table(table, map=map, one_clock=one_clock)
        return trace

    @cached_property
    def source(self) -> Source:
        """The events process by process."""
        return self.parts or make_source(self.events, self.processes["process"].to_list())

    def with_change(self, change: Change, **tables: Any) -> Self:
        """Return the trace with a change in all events, and with other tables."""
        source = self.source.with_change(change)
        events = {"events": source.scan(EVENT_COLUMNS), "parts": source, "outlines": self.outlines}
        return self.with_(**events | tables)

    @cached_property
    def arrivals(self) -> pl.DataFrame:
        """The calls as a frame, a row a rank and call, in `ARRIVAL_COLUMNS`."""
        return list_arrivals(self.calls)

    def events_of(self, process: int) -> pl.DataFrame:
        """Read the events of one process, in `EVENT_COLUMNS`; empty for one that the run lacks."""
        if process not in self.source.part_by_process:
            return pl.DataFrame(schema=EVENT_COLUMNS)
        return complete_columns(self.source.read_frame(process), EVENT_COLUMNS)

    @property
    def spans(self) -> pl.LazyFrame:
        """The events that have a begin and an end."""
        return self.events.filter(pl.col("type") == "span")

    @cached_property
    def requests(self) -> pl.DataFrame:
        """The spans of exchanges with parameter servers, or with the center of elastic averaging."""
        return self._select_spans("request_count", pl.col("kind").is_in(EXCHANGE_KINDS))

    def select_requests(self, processes: pl.DataFrame) -> pl.LazyFrame:
        """Return the requests that some processes recorded, such as `workers` or `shards`."""
        return self.requests.lazy().join(
            processes.lazy().select("process"), on="process", how="semi", maintain_order="left"
        )

    @property
    def messages(self) -> pl.DataFrame:
        """The spans of messages between two ranks."""
        return self._messages_and_waits.filter(pl.col("kind") == "reduction")

    @cached_property
    def _messages_and_waits(self) -> pl.DataFrame:
        """The spans of messages, and of waiting for requests, of processes with messages."""
        between = (pl.col("kind") == "reduction") & pl.col("op").is_in(POINT_TO_POINT)
        return self._select_spans("message_count", between | (pl.col("op") == "request_wait"))

    @property
    def request_waits(self) -> pl.DataFrame:
        """When training threads waited for requests, as `messages.find_waits` takes it."""
        waits = self._messages_and_waits.filter(
            pl.col("op") == "request_wait", pl.col("end_ns").is_not_null()
        )
        training_threads = self.processes.select("process", "training_thread")
        own_waits = waits.join(training_threads, on="process").filter(
            pl.col("thread") == pl.col("training_thread")
        )
        return own_waits.select("process", wait_begin_ns="start_ns", wait_end_ns="end_ns")

    if not TYPE_CHECKING:  # else a checker would accept any name

        def __getattr__(self, name: str) -> Any:
            """Return an attribute by the name that it had before; it goes with the version after 0.1."""
            new_name = _FORMER_NAMES.get(name)
            if new_name is None:
                raise AttributeError(f"'Trace' object has no attribute '{name}'")
            warnings.warn(f"Trace.{name} is Trace.{new_name} now", DeprecationWarning, stacklevel=2)
            return getattr(self, new_name)

    @property
    def program_messages(self) -> pl.DataFrame:
        """The spans of messages that the program sent, which are no hops of a collective."""
        return self._message_sides.filter(~pl.col("hop"))

    @cached_property
    def _message_sides(self) -> pl.DataFrame:
        return with_hops(self.messages, self.calls)

    @cached_property
    def matched_messages(self) -> pl.DataFrame:
        """Both sides of each message, one row per message, as far as both are known."""
        sends, receives = (
            select_side(self._message_sides, self.workers, self.alignment.untied_clock_domains, op)
            for op in ("send", "recv")
        )
        return match_sides(sends, receives)

    @cached_property
    def message_waits(self) -> pl.DataFrame:
        """The waits for the other side of a message, in `messages.AWAITED_COLUMNS`."""
        return find_waits(self.matched_messages, self.request_waits)

    @cached_property
    def open_spans(self) -> pl.DataFrame:
        """The spans that were still open when their recording ended."""
        return self._select_spans("open_span_count", pl.col("status") == "open")

    def _select_spans(self, count_name: str, is_chosen: pl.Expr) -> pl.DataFrame:
        """Return the spans that `is_chosen` is true for, in `EVENT_COLUMNS`.

        A process is not read if its outline counts none of them, in its attribute `count_name`.
        """
        outlines = self.outlines
        is_wanted = (pl.col("type") == "span") & is_chosen
        frames = [
            complete_columns(self.source.read_frame(process), EVENT_COLUMNS).filter(is_wanted)
            for process in self.source.part_by_process
            if outlines is None or getattr(outlines[process], count_name)
        ]
        return pl.concat([pl.DataFrame(schema=EVENT_COLUMNS), *frames])

    @cached_property
    def workers(self) -> pl.DataFrame:
        """The main process of every worker rank, by rank."""
        chosen = (pl.col("role") == "worker") & pl.col("main")
        return self.processes.filter(chosen).sort("rank")

    @cached_property
    def shards(self) -> pl.DataFrame:
        """The main process of every parameter-server rank, by rank."""
        chosen = (pl.col("role") == "ps") & pl.col("main")
        return self.processes.filter(chosen).sort("rank")

    @cached_property
    def partial_communicators(self) -> frozenset[str]:
        """The communicators of calls from which the user's choice left out ranks, or may have."""
        if self.choice.rank_ranges is None:
            return frozenset()
        rows = self.communicators.select(pl.col("communicator").cast(pl.String), "ranks").rows()
        ranks_by_communicator = dict(reversed(rows))
        return frozenset(
            grid.communicator_uid
            for grid in self.calls
            if grid.communicator_uid not in ranks_by_communicator
            or not all(map(self.choice.has_rank, ranks_by_communicator[grid.communicator_uid]))
        )

    @property
    def uncertainty_ns(self) -> int:
        """How sure times of different ranks compare, at worst; devices' clocks included."""
        devices = self.device_clocks["uncertainty_ns"].max()
        return self.alignment.uncertainty_ns + (devices if isinstance(devices, int) else 0)

    @property
    def ops_of_equal_bytes(self) -> tuple[str, ...]:
        """The operations in which every rank of a call gives equally many bytes."""
        return self.recognition.ops_of_equal_bytes if self.recognition else EQUAL_BYTES

    @property
    def is_snapshot(self) -> bool:
        """Whether it holds the last calls before the run was looked at, and no time around them."""
        return self.recognition is not None and self.recognition.is_snapshot

    @property
    def expected_ranks(self) -> int:
        """How many ranks the job has, servers included: as processes report it, but at least those seen.

        Processes of earlier attempts do not count. Ranks are numbered from 0, so the highest one shows
        how many workers there are.
        """
        world_size = self.processes.filter(pl.col("main"))["world"].max()
        highest_rank = self.workers["rank"].max()
        numbered = highest_rank + 1 + self.shards.height if isinstance(highest_rank, int) else 0
        seen_count = self.workers.height + self.shards.height
        return max(int(world_size) if isinstance(world_size, int) else 0, seen_count, numbered)

    def with_(self, **changes: Any) -> Self:
        """Return a copy with some fields replaced; `arrivals` replace the calls."""
        if "events" in changes:
            changes = {"parts": None, "outlines": None} | changes
        if "arrivals" in changes:
            changes["calls"] = make_grids(changes.pop("arrivals"))
        return replace(self, **changes)

    def to_pandas(self, table: str = "events") -> Any:
        """Return its events, or another of its tables, as a frame of pandas.

        Raises:
            InvalidArgument: it has no such table.
            MissingExtra: pandas is not installed.
        """
        frames = {"events": self.events, "arrivals": self.arrivals} | find_frames(self)
        return to_pandas(frames, table, "a trace")

    def __repr__(self) -> str:
        """Return its name and how much it holds, in one line."""
        name = repr(shown_name(self.path.name)) if self.path else "in memory"
        shards, events = self.shards.height, self.processes["events"].sum()
        counts = [count(self.workers.height, "rank")]
        counts += [count(shards, "parameter server")] if shards else []
        counts += [count(self.steps["step"].n_unique(), "step"), count(int(events), "event")]
        return f"Trace({name}: {', '.join(counts)})"

    def _repr_html_(self) -> str:
        page: str = upper_layers().timeline_page.render(self)
        return page

"""What the processes of a labelled run would have recorded: as a `Trace`, or as files of one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from benchmarks.labelled.ledger import WORLD
from benchmarks.labelled.training import ORIGIN_NS

from tracelens.conversion.arrow_file import write_events
from tracelens.model.trace import (
    CLOCK_COLUMNS,
    COMMUNICATOR_COLUMNS,
    PROCESS_COLUMNS,
    THREAD_COLUMNS,
    Trace,
)
from tracelens.schema.arrow import EVENT_SCHEMA
from tracelens.schema.side import ClockReading, Communicator, Process, SideTables, Thread
from tracelens.schema.vocabulary import TRACE_SUFFIX, make_stem

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.labelled.clocks import HostClock
    from benchmarks.labelled.setting import Times

WALL_NS: Final = 1_700_000_000_000_000_000
_BETWEEN_LIVES_NS: Final = 600_000_000_000
_READINGS: Final = 3
_WALL_ERROR_NS: Final = 500_000


@dataclass(frozen=True)
class Member:
    """One process: who it is, on which host, and the tracks beside its main thread.

    `life` counts restarts of the job.
    """

    role: str
    rank: int
    host: int
    tracks: tuple[str, ...] = ()
    complete: bool = True
    life: int = 0


@dataclass(frozen=True)
class Recording:
    """A run as recorded: `events` carry true times until `trace` or `write` puts them on clocks.

    `groups` are the ranks that reduce together, in each life of the job; empty where none do;
    `subgroups` are the communicators of some of them, by id.
    """

    events: pl.DataFrame
    members: tuple[Member, ...]
    clocks: tuple[HostClock, ...]
    groups: tuple[tuple[int, ...], ...] = ()
    lost: tuple[int, ...] = field(default=())  # processes whose file is missing
    subgroups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def trace(self) -> Trace:
        """Return what a reader would."""
        processes = [index for index in range(len(self.members)) if index not in self.lost]
        events = self._local().filter(pl.col("process").is_in(processes))
        return Trace(
            events=events.lazy(),
            processes=self._processes(events, processes),
            communicators=pl.DataFrame(self._groups(), schema=COMMUNICATOR_COLUMNS),
            threads=pl.DataFrame(self._threads(processes), schema=THREAD_COLUMNS),
            clocks=pl.DataFrame(self._readings(processes), schema=CLOCK_COLUMNS),
        )

    def write(self, folder: Path) -> None:
        """Write one file a process."""
        folder.mkdir(parents=True, exist_ok=True)
        local = self._local().partition_by("process", as_dict=True)
        for index, member in enumerate(self.members):
            if index not in self.lost:
                side = self._side(index)
                table = _table(local[index,], {one.uid: one.index for one in side.communicators})
                write_events(folder / _file(member, index), table, side)

    def without(self, *processes: int) -> Recording:
        """Lose the files of some processes."""
        return replace(self, lost=(*self.lost, *processes))

    def _local(self) -> pl.DataFrame:
        """Put times on the hosts' clocks."""
        host = np.array([member.host for member in self.members])
        of_row = host[self.events["process"].to_numpy()]
        local_columns = {}
        for name in ("start_ns", "end_ns"):
            true = self.events[name].fill_null(0).to_numpy()
            local = np.empty_like(true)
            for number, clock in enumerate(self.clocks):
                rows = of_row == number
                local[rows] = clock.shows(true[rows])
            local_columns[name] = (
                pl.when(pl.col(name).is_not_null()).then(pl.Series(local)).alias(name)
            )
        return self.events.with_columns(**local_columns)

    @cached_property
    def _worlds(self) -> Counter[int]:
        """How many processes each life of the job has."""
        return Counter(member.life for member in self.members)

    def _process(self, index: int) -> Process:
        member = self.members[index]
        return Process(
            role=member.role,
            rank=member.rank,
            world=self._worlds[member.life],
            host=f"node{member.host:03d}",
            clock_domain=f"clock{member.host:03d}",
            pid=2000 + index,
            incarnation=WALL_NS + member.life * _BETWEEN_LIVES_NS + index,
            job="labelled",
            shard=member.rank if member.role == "ps" else None,
        )

    def _processes(self, events: pl.DataFrame, here: list[int]) -> pl.DataFrame:
        rows = []
        for index in here:
            process, member = self._process(index), self.members[index]
            known = {name: getattr(process, name, None) for name in PROCESS_COLUMNS}
            more = {"process": index, "main": True, "complete": member.complete, "dropped": 0}
            rows.append(known | more | {"file": _file(member, index)})
        ends = events.group_by("process").agg(
            events=pl.len().cast(pl.Int64),
            first_ns=pl.col("start_ns").min(),
            last_ns=pl.max_horizontal(pl.col("start_ns").max(), pl.col("end_ns").max()),
        )
        table = pl.DataFrame(rows, schema=PROCESS_COLUMNS).drop("events", "first_ns", "last_ns")
        return table.join(ends, on="process").select(*PROCESS_COLUMNS).sort("process")

    def _groups(self) -> list[dict[str, Any]]:
        worlds = [
            {"communicator": world(life), "name": "world", "ranks": list(group)}
            for life, group in enumerate(self.groups)
        ]
        return worlds + [
            {"communicator": uid, "name": uid, "ranks": list(group)}
            for uid, group in self.subgroups.items()
        ]

    def _threads(self, here: list[int]) -> list[dict[str, Any]]:
        return [
            {"process": index, "thread": thread, "name": name, "in_flight": thread > 0}
            for index in here
            for thread, name in enumerate(("MainThread", *self.members[index].tracks))
        ]

    def _readings(self, here: list[int]) -> list[dict[str, Any]]:
        last = self.events["end_ns"].max()
        moments = np.linspace(ORIGIN_NS, last if isinstance(last, int) else 0, _READINGS)
        rows = []
        for index in here:
            host = self.members[index].host
            wrong = (host * 7919 % 1000) / 1000 - 0.5
            for true in moments.astype(np.int64):
                local = int(self.clocks[host].shows(np.array([true]))[0])
                wall = int(true) - ORIGIN_NS + WALL_NS + round(wrong * 2 * _WALL_ERROR_NS)
                reading = {"method": "local", "monotonic_ns": local, "window_ns": 200}
                rows.append({"process": index, "wall_ns": wall} | reading)
        return rows

    def _side(self, index: int) -> SideTables:
        member = self.members[index]
        readings = [row for row in self._readings([index]) if row.pop("process") == index]
        thread_names = enumerate(("MainThread", *member.tracks))
        group_ids = {world(member.life)} | {
            uid for uid, group in self.subgroups.items() if member.rank in group
        }
        return SideTables(
            process=self._process(index),
            threads=tuple(
                Thread(number, name, in_flight=number > 0) for number, name in thread_names
            ),
            communicators=tuple(
                Communicator(number, row["communicator"], row["name"], row["ranks"])
                for number, row in enumerate(self._groups())
                if row["communicator"] in group_ids
            ),
            clocks=tuple(ClockReading(**row) for row in readings),
            complete=member.complete,
        )


def cut_events(events: pl.DataFrame, at_ns: Times) -> pl.DataFrame:
    """End each process's recording at a true time: later events are gone, running ones stay open."""
    at = pl.Series(at_ns[events["process"].to_numpy()])
    still = pl.col("end_ns") > pl.col("at")
    kept = events.with_columns(at=at).filter(pl.col("start_ns") <= pl.col("at"))
    status = pl.when(still).then(pl.lit("open")).otherwise(pl.col("status").cast(pl.String))
    return kept.with_columns(
        end_ns=pl.when(~still).then("end_ns"), status=status.cast(events["status"].dtype)
    ).drop("at")


def world(life: int) -> str:
    """Return the id of the communicator of all ranks."""
    return WORLD if not life else f"{WORLD}-{life}"


def _file(member: Member, index: int) -> str:
    return make_stem(member.role, member.rank, 2000 + index) + TRACE_SUFFIX


def _table(events: pl.DataFrame, numbers: Mapping[str, int]) -> pa.Table:
    """Turn a process's events into the columns of the file format, communicators into their numbers."""
    events = events.with_columns(
        duration_ns=pl.col("end_ns") - pl.col("start_ns"),
        communicator=pl.col("communicator").cast(pl.String).replace_strict(numbers, default=None),
    )
    arrays = []
    for column in EVENT_SCHEMA:
        values = events[column.name]
        if pa.types.is_dictionary(column.type):
            words = pa.array(values.cast(pl.String).to_list(), pa.string())
            arrays.append(words.dictionary_encode().cast(column.type))
        else:
            arrays.append(values.to_arrow().cast(column.type))
    return pa.Table.from_arrays(arrays, schema=EVENT_SCHEMA)

"""Turns a `Scenario` into a `Trace`, as a reader would return it, or into native files to read.

Everything is simulated cause by cause in true time and then put onto the hosts' clocks, so waits,
overlap and queues are consequences, never inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelens.model.trace import COMMUNICATOR_COLUMNS, PROCESS_COLUMNS, THREAD_COLUMNS, Trace
from tracelens.readers.native.recorded import write_process
from tracelens.schema.side import ClockReading, Communicator, Process, SideTables, Thread
from tracelens.schema.vocabulary import TRACE_SUFFIX, make_stem
from tracelens.simulator import (
    allreduce,
    clocks,
    devices,
    interleaved_servers,
    membership,
    parameter_server,
)
from tracelens.simulator.clocks import find_host
from tracelens.simulator.scenario import ORIGIN_NS, Clock, Fault, Scenario, random_clocks
from tracelens.simulator.sheet import Sheet

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "FIRST_PID",
    "INCARNATION_NS",
    "Clock",
    "Fault",
    "Scenario",
    "duration_ns",
    "generate",
    "random_clocks",
    "write",
]
FIRST_PID = 1000
INCARNATION_NS = clocks.WALL_NS


def generate(scenario: Scenario) -> Trace:
    """Simulate a run; the trace is raw: own clocks per host, no steps, no arrivals."""
    sheet = _simulate(scenario)
    events = pl.concat(
        [_make_events(scenario, sheet, row) for row in range(_count_processes(scenario))]
    )
    return Trace(
        events=events.lazy(),
        processes=_make_processes(scenario, events),
        communicators=_make_communicators(scenario),
        threads=_make_threads(scenario),
        clocks=_make_readings(scenario, sheet),
    )


def duration_ns(scenario: Scenario) -> int:
    """Simulate a run, and return how long it is, from the first step's begin; no event is made."""
    return _simulate(scenario).last_ns - ORIGIN_NS


def write(scenario: Scenario, folder: Path) -> None:
    """Simulate a run and write it as its processes would have: one Arrow file each."""
    sheet = _simulate(scenario)
    folder.mkdir(parents=True, exist_ok=True)
    readings = _make_readings(scenario, sheet).partition_by("process", as_dict=True)
    for row in range(_count_processes(scenario)):
        process = _make_process(scenario, row)
        name = make_stem(process.role, process.rank, process.pid) + TRACE_SUFFIX
        side = _make_side(scenario, row, readings[row,])
        write_process(folder / name, _make_events(scenario, sheet, row), side)


def _simulate(scenario: Scenario) -> Sheet:
    sheet = Sheet()
    servers = interleaved_servers if scenario.beside_compute else parameter_server
    (servers if scenario.shards else allreduce).simulate(scenario, sheet)
    return sheet


def _count_processes(scenario: Scenario) -> int:
    return scenario.ranks + scenario.shards


def _make_events(scenario: Scenario, sheet: Sheet, process: int) -> pl.DataFrame:
    """Make the events of one process, on its own clock."""
    events = membership.drop_absent_events(scenario, process, sheet.make_events(process))
    if not scenario.on_device:
        return clocks.move_to_host_clock(scenario, process, events)
    events = devices.queue_on_devices(scenario, events)
    events = clocks.move_to_host_clock(scenario, process, events)
    return devices.move_to_device_clock(scenario, process, events)


def _make_readings(scenario: Scenario, sheet: Sheet) -> pl.DataFrame:
    """Make the clock readings of all processes."""
    readings = clocks.make_readings(scenario, sheet.last_ns)
    if not scenario.on_device:
        return readings
    anchors = devices.make_anchors(scenario, sheet.last_ns)
    return pl.concat([readings, anchors]).sort("process", maintain_order=True)


def _make_process(scenario: Scenario, process: int) -> Process:
    """Return the identity of a process: workers by rank, then shards."""
    is_worker = process < scenario.ranks
    host = find_host(scenario, process)
    return Process(
        role="worker" if is_worker else "ps",
        rank=process if is_worker else process - scenario.ranks,
        world=scenario.ranks + scenario.shards,
        local_rank=process % scenario.ranks_per_host if is_worker else 0,
        host=f"host{host:03d}",
        clock_domain=f"boot{host:03d}" if scenario.clocks else "boot000",
        pid=FIRST_PID + process,
        incarnation=INCARNATION_NS + process,
        job="simulated",
        shard=None if is_worker else process - scenario.ranks,
    )


def _make_processes(scenario: Scenario, events: pl.DataFrame) -> pl.DataFrame:
    """Return the table of processes, one row each, in `PROCESS_COLUMNS`."""
    rows = []
    for index in range(_count_processes(scenario)):
        process = _make_process(scenario, index)
        row = {name: getattr(process, name, None) for name in PROCESS_COLUMNS}
        file_name = make_stem(process.role, process.rank, process.pid) + TRACE_SUFFIX
        flags = {"main": True, "child": False, "complete": True, "dropped": 0}
        rows.append(row | flags | {"process": index, "file": file_name})
    counts_and_times = events.group_by("process").agg(
        events=pl.len().cast(pl.Int64),
        first_ns=pl.col("start_ns").min(),
        last_ns=pl.col("end_ns").max(),
    )
    table = pl.DataFrame(rows, schema=PROCESS_COLUMNS).drop("events", "first_ns", "last_ns")
    return table.join(counts_and_times, on="process").select(*PROCESS_COLUMNS).sort("process")


def _make_communicators(scenario: Scenario) -> pl.DataFrame:
    rows = [
        {"communicator": epoch.uid, "name": "world", "ranks": list(epoch.ranks)}
        for epoch in membership.list_epochs(scenario)
    ]
    return pl.DataFrame([] if scenario.shards else rows, schema=COMMUNICATOR_COLUMNS)


def _make_threads(scenario: Scenario) -> pl.DataFrame:
    rows = [
        {
            "process": index,
            "thread": row.index,
            "name": row.name,
            "in_flight": row.in_flight,
            "device": row.device,
        }
        for index in range(_count_processes(scenario))
        for row in _thread_rows(scenario, index)
    ]
    return pl.DataFrame(rows, schema=THREAD_COLUMNS)


def _track_names(scenario: Scenario, process: int) -> list[str]:
    if process >= scenario.ranks:
        return ["MainThread", "network"]
    if scenario.shards:
        return ["MainThread", *(f"shard {shard}" for shard in range(scenario.shards))]
    return ["MainThread", "reductions", *(devices.STREAMS if scenario.on_device else ())]


def _thread_rows(scenario: Scenario, process: int) -> tuple[Thread, ...]:
    return tuple(
        Thread(
            index,
            name,
            in_flight=index > 0,
            device=0 if index >= devices.COMPUTE and scenario.on_device else None,
        )
        for index, name in enumerate(_track_names(scenario, process))
    )


def _make_side(scenario: Scenario, process: int, readings: pl.DataFrame) -> SideTables:
    """Return the side tables of a process's file; `readings` are of its clock, one row each."""
    worlds = tuple(
        Communicator(number, epoch.uid, "world", list(epoch.ranks))
        for number, epoch in enumerate(membership.list_epochs(scenario))
        if process in epoch.ranks
    )
    return SideTables(
        process=_make_process(scenario, process),
        threads=_thread_rows(scenario, process),
        communicators=() if scenario.shards else worlds,
        clocks=tuple(
            ClockReading(**reading) for reading in readings.drop("process").iter_rows(named=True)
        ),
        complete=True,
    )

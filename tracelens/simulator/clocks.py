"""Puts a simulated run onto its hosts' clocks, and writes down what each process read of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.model.trace import CLOCK_COLUMNS
from tracelens.simulator import durations
from tracelens.simulator.scenario import MILLISECOND, ORIGIN_NS, Clock

if TYPE_CHECKING:
    from tracelens.arrays import Ints
    from tracelens.simulator.scenario import Scenario

WALL_NS: Final = 1_750_000_000_000_000_000  # wall time at the origin
PAIR_WINDOW_NS: Final = 230
ROUND_TRIP_NS: Final = 50_000
_READING_COUNT: Final = 11


def find_host(scenario: Scenario, process: int) -> int:
    """Return the number of the host of a process (workers by rank, then shards)."""
    if process < scenario.ranks:
        return process // scenario.ranks_per_host
    return scenario.worker_host_count + process - scenario.ranks


def find_clock(scenario: Scenario, process: int) -> Clock:
    """Return the clock of a process; the true one where the scenario names none."""
    return scenario.clocks[find_host(scenario, process)] if scenario.clocks else Clock()


def to_clock_times_ns(clock: Clock, true_ns: Ints) -> Ints:
    """Convert true times to those of a clock, ns."""
    since_origin_ns = true_ns - ORIGIN_NS
    drift_ns = np.rint(since_origin_ns * (clock.drift_ppm * 1e-6)).astype(np.int64)
    jump_ns = np.where(since_origin_ns >= clock.jump_after_ms * MILLISECOND, clock.jump_ns, 0)
    return np.asarray(true_ns + clock.offset_ns + drift_ns + jump_ns)


def move_to_host_clock(scenario: Scenario, process: int, events: pl.DataFrame) -> pl.DataFrame:
    """Move the events of a process from true time onto its host's clock."""
    if not scenario.clocks:
        return events
    clock = find_clock(scenario, process)
    return events.with_columns(
        pl.Series(name, to_clock_times_ns(clock, events[name].to_numpy()))
        for name in ("start_ns", "end_ns")
    )


def make_readings(scenario: Scenario, last_ns: int) -> pl.DataFrame:
    """Return the clock readings of all processes up to true time `last_ns`, one row each."""
    true_ns = make_reading_times(last_ns)
    wall_errors_ns = durations.make_random(scenario, "wall").normal(
        0.0, scenario.wall_error_ms * MILLISECOND, scenario.host_count
    )
    rows: list[dict[str, Any]] = []
    for process, clock in _list_clocks(scenario):
        wall_ns = true_ns - ORIGIN_NS + WALL_NS + int(wall_errors_ns[find_host(scenario, process)])
        local_ns = to_clock_times_ns(clock, true_ns)
        rows += [
            _make_row(process, "local", at_ns, PAIR_WINDOW_NS, wall_ns=int(wall_at_ns))
            for at_ns, wall_at_ns in zip(local_ns, wall_ns, strict=True)
        ]
    return pl.DataFrame(rows + _measure_ping_pongs(scenario, true_ns), schema=CLOCK_COLUMNS)


def make_reading_times(last_ns: int) -> Ints:
    """Return the true times at which clocks are read, evenly from the origin to `last_ns`, ns."""
    return np.linspace(ORIGIN_NS, last_ns, _READING_COUNT).astype(np.int64)


def _measure_ping_pongs(scenario: Scenario, true_ns: Ints) -> list[dict[str, Any]]:
    """Return readings, rows of clocks, that compare each process with process 0.

    They are taken at the run's begin and end: the first and the last of `true_ns`.
    """
    if not scenario.ping_pong:
        return []
    random = durations.make_random(scenario, "ping_pong")
    reference_clock, ends_ns = find_clock(scenario, process=0), true_ns[[0, -1]]
    rows = []
    for process, clock in _list_clocks(scenario)[1:]:
        local_ns = to_clock_times_ns(clock, ends_ns)
        error_ns = random.uniform(-0.1, 0.1, 2) * ROUND_TRIP_NS
        reference_ns = to_clock_times_ns(reference_clock, ends_ns)
        offsets_ns = local_ns - reference_ns + error_ns.astype(np.int64)
        rows += [
            _make_row(process, "ping_pong", at_ns, ROUND_TRIP_NS, peer=0, offset_ns=int(offset_ns))
            for at_ns, offset_ns in zip(local_ns, offsets_ns, strict=True)
        ]
    return rows


def _make_row(
    process: int, method: str, local_ns: np.int64, window_ns: int, **values: int
) -> dict[str, Any]:
    """Return a clock reading at `local_ns` of a process's clock, which took `window_ns`."""
    row: dict[str, Any] = dict.fromkeys(CLOCK_COLUMNS)
    return row | {
        "process": process,
        "method": method,
        "monotonic_ns": int(local_ns),
        "window_ns": window_ns,
        **values,
    }


def _list_clocks(scenario: Scenario) -> list[tuple[int, Clock]]:
    processes = range(scenario.ranks + scenario.shards)
    return [(process, find_clock(scenario, process)) for process in processes]

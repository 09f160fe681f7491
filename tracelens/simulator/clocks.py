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
_READINGS: Final = 11


def host_of(scenario: Scenario, process: int) -> int:
    """Return the host of a process (workers by rank, then shards)."""
    if process < scenario.ranks:
        return process // scenario.ranks_per_host
    return scenario.worker_hosts + process - scenario.ranks


def clock_of(scenario: Scenario, process: int) -> Clock:
    """Return the clock of a process; the true one where the scenario names none."""
    return scenario.clocks[host_of(scenario, process)] if scenario.clocks else Clock()


def to_local(clock: Clock, true_ns: Ints) -> Ints:
    """Convert true times to those of a clock, ns."""
    since = true_ns - ORIGIN_NS
    drifted = np.rint(since * (clock.drift_ppm * 1e-6)).astype(np.int64)
    jumped = np.where(since >= clock.jump_after_ms * MILLISECOND, clock.jump_ns, 0)
    return np.asarray(true_ns + clock.offset_ns + drifted + jumped)


def skew(scenario: Scenario, process: int, events: pl.DataFrame) -> pl.DataFrame:
    """Move the events of a process from true time onto its host's clock."""
    if not scenario.clocks:
        return events
    clock = clock_of(scenario, process)
    return events.with_columns(
        pl.Series(name, to_local(clock, events[name].to_numpy())) for name in ("start_ns", "end_ns")
    )


def readings(scenario: Scenario, last_ns: int) -> pl.DataFrame:
    """Return the clock readings of all processes from the origin to `last_ns` (true time)."""
    true_ns = moments(last_ns)
    errors_ns = durations.stream(scenario, "wall").normal(
        0.0, scenario.wall_error_ms * MILLISECOND, scenario.hosts
    )
    rows: list[dict[str, Any]] = []
    for process, clock in _list_clocks(scenario):
        wall_ns = true_ns - ORIGIN_NS + WALL_NS + int(errors_ns[host_of(scenario, process)])
        local_ns = to_local(clock, true_ns)
        rows += [
            _make_row(
                process, "local", local_reading_ns, PAIR_WINDOW_NS, wall_ns=int(wall_reading_ns)
            )
            for local_reading_ns, wall_reading_ns in zip(local_ns, wall_ns, strict=True)
        ]
    return pl.DataFrame(rows + _measure_ping_pongs(scenario, true_ns), schema=CLOCK_COLUMNS)


def moments(last_ns: int) -> Ints:
    """Return when clocks are read, from the origin to `last_ns` (true time)."""
    return np.linspace(ORIGIN_NS, last_ns, _READINGS).astype(np.int64)


def _measure_ping_pongs(scenario: Scenario, true_ns: Ints) -> list[dict[str, Any]]:
    """Compare every process with process 0, at the start and at the end."""
    if not scenario.ping_pong:
        return []
    draw = durations.stream(scenario, "ping_pong")
    reference, ends_ns = clock_of(scenario, 0), true_ns[[0, -1]]
    rows = []
    for process, clock in _list_clocks(scenario)[1:]:
        local_ns = to_local(clock, ends_ns)
        error_ns = draw.uniform(-0.1, 0.1, 2) * ROUND_TRIP_NS
        offsets_ns = local_ns - to_local(reference, ends_ns) + error_ns.astype(np.int64)
        rows += [
            _make_row(process, "ping_pong", at, ROUND_TRIP_NS, peer=0, offset_ns=int(offset))
            for at, offset in zip(local_ns, offsets_ns, strict=True)
        ]
    return rows


def _make_row(
    process: int, method: str, at: np.int64, window: int, **values: int
) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(CLOCK_COLUMNS)
    return row | {
        "process": process,
        "method": method,
        "monotonic_ns": int(at),
        "window_ns": window,
        **values,
    }


def _list_clocks(scenario: Scenario) -> list[tuple[int, Clock]]:
    processes = range(scenario.ranks + scenario.shards)
    return [(process, clock_of(scenario, process)) for process in processes]

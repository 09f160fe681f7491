"""Puts the work of simulated ranks onto devices: hosts only queue it, and wait at the end of a step.

What a run without devices does on its training thread and in its reductions is done on the streams of a
device, at the same true times; the host's spans shrink to a share of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.model.trace import CLOCK_COLUMNS, EVENT_COLUMNS
from tracelens.simulator import clocks, durations
from tracelens.simulator.scenario import ORIGIN_NS

if TYPE_CHECKING:
    from tracelens.arrays import Ints
    from tracelens.simulator.scenario import Scenario

STREAMS: Final = ("cuda:0 stream 0", "cuda:0 reductions")
COMPUTE: Final = 2  # rows of the thread table, after the training thread and its reductions
REDUCTIONS: Final = 3
WINDOW_NS: Final = 10_000
_QUEUED: Final = ("forward", "backprop", "update", "reduction")
_STEP_KEY: Final = ("process", "step")


def queue_on_devices(scenario: Scenario, events: pl.DataFrame) -> pl.DataFrame:
    """Move work of events onto the device, so that the host only queues it; all in true time.

    In a step the host queues from the end of the data phase on (`queue_begin_ns`).
    """
    steps = events.filter(kind="step", type="span").select(*_STEP_KEY)
    data_ends = events.filter(kind="data").group_by(_STEP_KEY)
    queue_begins = steps.join(data_ends.agg(queue_begin_ns=pl.col("end_ns").max()), on=_STEP_KEY)
    rows = events.join(queue_begins, on=_STEP_KEY, how="left", maintain_order="left")
    kind = pl.col("kind").cast(pl.String)
    runs_on_device = kind.is_in(_QUEUED) & (pl.col("depth") < 2)  # deeper ones are their layers
    is_queued = ~kind.is_in(["step", "data"])
    stream = pl.when(kind == "reduction").then(REDUCTIONS).otherwise(COMPUTE)
    device_rows = rows.with_columns(
        device_start_ns=pl.when(runs_on_device).then("start_ns"),
        device_duration_ns=pl.when(runs_on_device).then(pl.col("end_ns") - pl.col("start_ns")),
        stream=pl.when(runs_on_device).then(stream).cast(pl.UInt16),
        **{
            name: pl.when(is_queued).then(_to_queued_ns(scenario, name)).otherwise(name)
            for name in ("start_ns", "end_ns")
        },
    )
    waits = _make_waits(scenario, rows.filter(pl.col("kind") == "step", pl.col("type") == "span"))
    table = pl.concat([device_rows.select(*EVENT_COLUMNS), waits])
    return table.sort("process", "start_ns", "depth")


def move_to_device_clock(scenario: Scenario, process: int, events: pl.DataFrame) -> pl.DataFrame:
    """Move the device times of a process from true time onto its device's clock."""
    device_clock = _make_device_clock(scenario, process)
    start_ns = events["device_start_ns"].fill_null(0).to_numpy()
    end_ns = start_ns + events["device_duration_ns"].fill_null(0).to_numpy()
    device_start_ns, device_end_ns = device_clock(start_ns), device_clock(end_ns)
    is_on_device = pl.col("device_start_ns").is_not_null()
    return events.with_columns(
        device_start_ns=pl.when(is_on_device).then(pl.Series("start", device_start_ns)),
        device_duration_ns=pl.when(is_on_device).then(
            pl.Series("length", device_end_ns - device_start_ns)
        ),
    )


def make_anchors(scenario: Scenario, last_ns: int) -> pl.DataFrame:
    """Return the readings that tie each device's clock to its host's, one row per reading."""
    random = durations.make_random(scenario, "device")
    true_ns = clocks.make_reading_times(last_ns)
    rows = []
    for process in range(scenario.ranks):
        device_clock = _make_device_clock(scenario, process)
        read_after_begin_ns = random.integers(0, WINDOW_NS, len(true_ns))
        # The device's clock is set to the middle of the first window.
        read_after_begin_ns[0] = WINDOW_NS // 2
        local_ns = clocks.to_clock_times_ns(clocks.find_clock(scenario, process), true_ns)
        middles_ns = local_ns - read_after_begin_ns + WINDOW_NS // 2
        rows += [
            {
                "process": process,
                "method": "device",
                "monotonic_ns": int(middle_ns),
                "window_ns": WINDOW_NS,
                "offset_ns": int(middle_ns - device_ns),
                "device": 0,
            }
            for middle_ns, device_ns in zip(middles_ns, device_clock(true_ns), strict=True)
        ]
    return pl.DataFrame(rows, schema=CLOCK_COLUMNS)


def _to_queued_ns(scenario: Scenario, column: str) -> pl.Expr:
    """Return when the host queues the work at a column's time: in `launch_share` of its time."""
    since_begin_ns = (pl.col(column) - pl.col("queue_begin_ns")) * scenario.launch_share
    return pl.col("queue_begin_ns") + since_begin_ns.round().cast(pl.Int64)


def _make_waits(scenario: Scenario, steps: pl.DataFrame) -> pl.DataFrame:
    """Return a row per step (a span): the host waits for its device from when all is queued."""
    return steps.with_columns(
        start_ns=_to_queued_ns(scenario, "end_ns"),
        name=pl.lit("synchronize", EVENT_COLUMNS["name"]),
        kind=pl.lit("device", EVENT_COLUMNS["kind"]),
        depth=pl.lit(1, pl.UInt16),
    ).select(*EVENT_COLUMNS)


class _DeviceClock:
    """A clock that shows `shown_ns` at the true `origin_ns`; called with true times, ns."""

    def __init__(self, origin_ns: int, shown_ns: int, drift_ppm: float) -> None:
        self._origin_ns = origin_ns
        self._shown_ns = shown_ns
        self._drift = drift_ppm * 1e-6

    def __call__(self, true_ns: Ints) -> Ints:
        since_ns = true_ns - self._origin_ns
        drift_ns = np.rint(since_ns * self._drift).astype(np.int64)
        return np.asarray(self._shown_ns + since_ns + drift_ns)


def _make_device_clock(scenario: Scenario, process: int) -> _DeviceClock:
    """Return the clock of a worker's device, set to its host's at the origin."""
    random = durations.make_random(scenario, "device_clock")
    drift_ppm = float(random.uniform(-1, 1, scenario.ranks)[process]) * scenario.device_drift_ppm
    local_ns = clocks.to_clock_times_ns(clocks.find_clock(scenario, process), np.array([ORIGIN_NS]))
    return _DeviceClock(ORIGIN_NS, int(local_ns[0]), drift_ppm)

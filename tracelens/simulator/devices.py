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
_WHERE: Final = ("process", "step")


def launched(scenario: Scenario, true: pl.DataFrame) -> pl.DataFrame:
    """Make the host only queue what runs on the device; all in true time."""
    steps = true.filter(kind="step", type="span").select(*_WHERE, begin="start_ns", until="end_ns")
    data_ends = true.filter(kind="data").group_by(_WHERE).agg(begun=pl.col("end_ns").max())
    marks = steps.join(data_ends, on=_WHERE)
    rows = true.join(marks, on=_WHERE, how="left", maintain_order="left")
    kind = pl.col("kind").cast(pl.String)
    on_device = kind.is_in(_QUEUED) & (pl.col("depth") < 2)
    is_queued_time = ~kind.is_in(["step", "data"])
    stream = pl.when(kind == "reduction").then(REDUCTIONS).otherwise(COMPUTE)
    device_rows = rows.with_columns(
        device_start_ns=pl.when(on_device).then("start_ns"),
        device_duration_ns=pl.when(on_device).then(pl.col("end_ns") - pl.col("start_ns")),
        stream=pl.when(on_device).then(stream).cast(pl.UInt16),
        **{
            name: pl.when(is_queued_time).then(_to_queued_ns(scenario, name)).otherwise(name)
            for name in ("start_ns", "end_ns")
        },
    )
    waits = _make_waits(scenario, rows.filter(pl.col("kind") == "step", pl.col("type") == "span"))
    table = pl.concat([device_rows.select(*EVENT_COLUMNS), waits])
    return table.sort("process", "start_ns", "depth")


def skewed(scenario: Scenario, process: int, events: pl.DataFrame) -> pl.DataFrame:
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


def readings(scenario: Scenario, last_ns: int) -> pl.DataFrame:
    """Return the anchors that tie each device's clock to its host's."""
    draw = durations.stream(scenario, "device")
    moments_ns = clocks.moments(last_ns)
    rows = []
    for process in range(scenario.ranks):
        device_clock = _make_device_clock(scenario, process)
        window_position_ns = draw.integers(0, WINDOW_NS, len(moments_ns))
        window_position_ns[0] = (
            WINDOW_NS // 2
        )  # the device's clock is set to the middle of the first window
        local_ns = clocks.to_local(clocks.clock_of(scenario, process), moments_ns)
        middles_ns = local_ns - window_position_ns + WINDOW_NS // 2
        rows += [
            {
                "process": process,
                "method": "device",
                "monotonic_ns": int(middle_ns),
                "window_ns": WINDOW_NS,
                "offset_ns": int(middle_ns - device_ns),
                "device": 0,
            }
            for middle_ns, device_ns in zip(middles_ns, device_clock(moments_ns), strict=True)
        ]
    return pl.DataFrame(rows, schema=CLOCK_COLUMNS)


def _to_queued_ns(scenario: Scenario, name: str) -> pl.Expr:
    """Return when the host queues what the device does at that time."""
    since_begin_ns = (pl.col(name) - pl.col("begun")) * scenario.launch_share
    return pl.col("begun") + since_begin_ns.round().cast(pl.Int64)


def _make_waits(scenario: Scenario, steps: pl.DataFrame) -> pl.DataFrame:
    """End each step with the host waiting for its device."""
    return steps.with_columns(
        start_ns=_to_queued_ns(scenario, "end_ns"),
        name=pl.lit("synchronize", EVENT_COLUMNS["name"]),
        kind=pl.lit("device", EVENT_COLUMNS["kind"]),
        depth=pl.lit(1, pl.UInt16),
    ).select(*EVENT_COLUMNS)


class _DeviceClock:
    """A device's clock: what it shows at true times."""

    def __init__(self, origin: int, set_to: int, drift_ppm: float) -> None:
        self._origin = origin
        self._set_to = set_to
        self._drift = drift_ppm * 1e-6

    def __call__(self, true_ns: Ints) -> Ints:
        since = true_ns - self._origin
        return np.asarray(self._set_to + since + np.rint(since * self._drift).astype(np.int64))


def _make_device_clock(scenario: Scenario, process: int) -> _DeviceClock:
    """Return the clock of a worker's device, set to its host's at the origin."""
    draw = durations.stream(scenario, "device_clock")
    drift_ppm = float(draw.uniform(-1, 1, scenario.ranks)[process]) * scenario.device_drift_ppm
    local_ns = clocks.to_local(clocks.clock_of(scenario, process), np.array([ORIGIN_NS]))
    return _DeviceClock(ORIGIN_NS, int(local_ns[0]), drift_ppm)

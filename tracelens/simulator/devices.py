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
    data = true.filter(kind="data").group_by(_WHERE).agg(begun=pl.col("end_ns").max())
    marks = steps.join(data, on=_WHERE)
    rows = true.join(marks, on=_WHERE, how="left", maintain_order="left")
    kind = pl.col("kind").cast(pl.String)
    on_device = kind.is_in(_QUEUED) & (pl.col("depth") < 2)
    inner = ~kind.is_in(["step", "data"])
    stream = pl.when(kind == "reduction").then(REDUCTIONS).otherwise(COMPUTE)
    moved = rows.with_columns(
        device_start_ns=pl.when(on_device).then("start_ns"),
        device_duration_ns=pl.when(on_device).then(pl.col("end_ns") - pl.col("start_ns")),
        stream=pl.when(on_device).then(stream).cast(pl.UInt16),
        **{
            name: pl.when(inner).then(_queued(scenario, name)).otherwise(name)
            for name in ("start_ns", "end_ns")
        },
    )
    waits = _waits(scenario, rows.filter(pl.col("kind") == "step", pl.col("type") == "span"))
    table = pl.concat([moved.select(*EVENT_COLUMNS), waits])
    return table.sort("process", "start_ns", "depth")


def skewed(scenario: Scenario, process: int, events: pl.DataFrame) -> pl.DataFrame:
    """Move the device times of a process from true time onto its device's clock."""
    shown = _clock(scenario, process)
    start = events["device_start_ns"].fill_null(0).to_numpy()
    end = start + events["device_duration_ns"].fill_null(0).to_numpy()
    begun, ended = shown(start), shown(end)
    known = pl.col("device_start_ns").is_not_null()
    return events.with_columns(
        device_start_ns=pl.when(known).then(pl.Series("start", begun)),
        device_duration_ns=pl.when(known).then(pl.Series("length", ended - begun)),
    )


def readings(scenario: Scenario, last_ns: int) -> pl.DataFrame:
    """Return the anchors that tie each device's clock to its host's."""
    draw = durations.stream(scenario, "device")
    moments = clocks.moments(last_ns)
    rows = []
    for process in range(scenario.ranks):
        shown = _clock(scenario, process)
        place = draw.integers(0, WINDOW_NS, len(moments))
        place[0] = WINDOW_NS // 2  # the device's clock is set to the middle of the first window
        local = clocks.to_local(clocks.clock_of(scenario, process), moments)
        middles = local - place + WINDOW_NS // 2
        rows += [
            {
                "process": process,
                "method": "device",
                "monotonic_ns": int(middle),
                "window_ns": WINDOW_NS,
                "offset_ns": int(middle - device_ms),
                "device": 0,
            }
            for middle, device_ms in zip(middles, shown(moments), strict=True)
        ]
    return pl.DataFrame(rows, schema=CLOCK_COLUMNS)


def _queued(scenario: Scenario, name: str) -> pl.Expr:
    """Return when the host queues what the device does at that time."""
    since = (pl.col(name) - pl.col("begun")) * scenario.launch_share
    return pl.col("begun") + since.round().cast(pl.Int64)


def _waits(scenario: Scenario, steps: pl.DataFrame) -> pl.DataFrame:
    """End each step with the host waiting for its device."""
    return steps.with_columns(
        start_ns=_queued(scenario, "end_ns"),
        name=pl.lit("synchronize", EVENT_COLUMNS["name"]),
        kind=pl.lit("device", EVENT_COLUMNS["kind"]),
        depth=pl.lit(1, pl.UInt16),
    ).select(*EVENT_COLUMNS)


class _Shown:
    """A device's clock: what it shows at true times."""

    def __init__(self, origin: int, set_to: int, drift_ppm: float) -> None:
        self._origin = origin
        self._set_to = set_to
        self._drift = drift_ppm * 1e-6

    def __call__(self, true_ns: Ints) -> Ints:
        since = true_ns - self._origin
        return np.asarray(self._set_to + since + np.rint(since * self._drift).astype(np.int64))


def _clock(scenario: Scenario, process: int) -> _Shown:
    """Return the clock of a worker's device, set to its host's at the origin."""
    draw = durations.stream(scenario, "device_clock")
    drift = float(draw.uniform(-1, 1, scenario.ranks)[process]) * scenario.device_drift_ppm
    local = clocks.to_local(clocks.clock_of(scenario, process), np.array([ORIGIN_NS]))
    return _Shown(ORIGIN_NS, int(local[0]), drift)

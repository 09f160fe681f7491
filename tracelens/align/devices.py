"""Brings device times onto the clock of their host, before all hosts come onto one clock.

A span in flight (a gradient bucket, say) that has device times begins and ends with them: on the host
its end says only that the work was queued.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.align.clocks.readings import Readings, map_through
from tracelens.model.trace import DEVICE_CLOCK_COLUMNS, work_times

if TYPE_CHECKING:
    from tracelens.align.clocks.maps import ClockMap
    from tracelens.model.trace import Trace

METHOD: Final = "device"
FAR_NS: Final = 2**60  # 36 years
_KEY: Final = ("process", "device")


def place(trace: Trace) -> Trace:
    """Move device times to their host's clock; a trace without a device's clock is returned as it is."""
    maps, clocks = _maps(trace.clocks)
    if not maps:
        return trace
    events = _in_flight(_moved(trace.events.collect(), trace.threads, maps), trace.threads)
    return trace.with_(
        events=events.sort("process", "start_ns", "depth").lazy(),
        device_clocks=clocks,
    )


def clocks_of(readings: pl.DataFrame) -> pl.DataFrame:
    """Return the devices' clocks, one a row, that clock readings of processes tell.

    Args:
        readings: In `CLOCK_COLUMNS`.
    """
    return _maps(readings)[1]


def _maps(readings: pl.DataFrame) -> tuple[dict[tuple[Any, ...], ClockMap], pl.DataFrame]:
    """Map each device's clock to its host's; return them also described, one a row."""
    readings = readings.filter(
        pl.col("method") == METHOD, pl.col("device").is_not_null(), _plausible()
    ).sort("monotonic_ns")
    maps = {key: _map(part) for key, part in readings.partition_by(*_KEY, as_dict=True).items()}
    rows = [_described(key, maps[key], readings) for key in sorted(maps)]
    return maps, pl.DataFrame(rows, schema=DEVICE_CLOCK_COLUMNS)


def _plausible() -> pl.Expr:
    """Drop readings that no clock can have given; sums of the others fit into 64 bits."""
    return (
        (pl.col("monotonic_ns") <= 4 * FAR_NS)
        & (pl.col("window_ns") <= FAR_NS)
        & (pl.col("offset_ns").abs() <= FAR_NS)
    )


def _map(readings: pl.DataFrame) -> ClockMap:
    names = ("monotonic_ns", "window_ns", "offset_ns")
    return map_through(Readings(*(readings[name].to_numpy() for name in names)))


def _described(key: tuple[Any, ...], found: ClockMap, readings: pl.DataFrame) -> dict[str, Any]:
    mine = readings.filter(pl.col("process") == key[0], pl.col("device") == key[1])
    device = (mine["monotonic_ns"] - mine["offset_ns"]).to_numpy()
    return {
        "process": key[0],
        "device": key[1],
        "offset_ns": -int(found.offset_at(device[:1])[0]),
        "drift_ppm": found.drift_ppm(int(device[0]), int(device[-1])),
        "uncertainty_ns": found.uncertainty_ns,
        "readings": mine.height,
    }


def _moved(
    events: pl.DataFrame, threads: pl.DataFrame, maps: dict[tuple[Any, ...], ClockMap]
) -> pl.DataFrame:
    streams = threads.drop_nulls("device").select("process", "device", stream="thread")
    device = events.select("process", "stream").join(
        streams, on=["process", "stream"], how="left", maintain_order="left"
    )["device"]
    start = events["device_start_ns"].fill_null(0).to_numpy().copy()
    length = events["device_duration_ns"].fill_null(0).to_numpy().copy()
    timed = (device.is_not_null() & events["device_start_ns"].is_not_null()).to_numpy()
    process, number = events["process"].to_numpy(), device.fill_null(-1).to_numpy()
    for (of_process, of_device), found in maps.items():
        chosen = np.flatnonzero(timed & (process == of_process) & (number == of_device))
        begin = found.apply(start[chosen])
        length[chosen] = found.apply(start[chosen] + length[chosen]) - begin
        start[chosen] = begin
    known = pl.col("device_start_ns").is_not_null()
    return events.with_columns(
        device_start_ns=pl.when(known).then(pl.Series("start", start)),
        device_duration_ns=pl.when(known).then(pl.Series("length", length)),
    )


def _in_flight(events: pl.DataFrame, threads: pl.DataFrame) -> pl.DataFrame:
    """Give spans in flight their device times as begin and end; those without any are estimated."""
    tracks = threads.filter("in_flight").select("process", "thread")
    joined = events.join(
        tracks.with_columns(flies=True),
        on=["process", "thread"],
        how="left",
        maintain_order="left",
    )
    over = (pl.col("type") == "span") & pl.col("end_ns").is_not_null()
    known = pl.col("device_duration_ns").is_not_null()
    chosen = pl.col("flies").fill_null(value=False) & over
    usual = known.filter(chosen).mean().over("process", "thread") > 0.5
    times = work_times().items()
    return joined.with_columns(
        **{name: pl.when(chosen).then(found).otherwise(name) for name, found in times},
        status=pl.when(chosen & ~known & usual)
        .then(pl.lit("estimated", events.schema["status"]))
        .otherwise("status"),
    ).drop("flies")

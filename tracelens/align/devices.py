"""Brings device times onto the clock of their host, before all hosts come onto one clock.

A span in flight (a gradient bucket, say) that has device times begins and ends with them: on the host
its end says only that the work was queued.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.align.clocks.readings import Readings, map_through
from tracelens.distil.outline import in_flight_tracks, work_times
from tracelens.model.columns import FOREVER, NULL
from tracelens.model.trace import DEVICE_CLOCK_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.align.clocks.maps import ClockMap
    from tracelens.model.columns import Columns
    from tracelens.model.trace import Trace

METHOD: Final = "device"
FAR_NS: Final = 2**60  # 36 years
_KEY: Final = ("process", "device")
_ON_DEVICE: Final = ("device_start_ns", "device_duration_ns")


def place(trace: Trace) -> Trace:
    """Move device times to their host's clock; a trace without a device's clock is returned as it is."""
    maps, clocks = _maps(trace.clocks)
    if not maps:
        return trace
    streams = trace.threads.drop_nulls("device").select("process", "thread", "device").rows()
    placing = Placing(
        {(process, thread): maps.get((process, device)) for process, thread, device in streams},
        in_flight_tracks(trace),
    )
    placed = trace.changed(placing, device_clocks=clocks)
    return placed.with_(outlines=None)


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


@dataclass(frozen=True, eq=False)
class Placing:
    """Moves device times of each process to its host's clock, and spans in flight to their device's."""

    maps: Mapping[tuple[int, int], ClockMap | None]  # by process and stream
    tracks: Mapping[int, list[int]]
    needs: tuple[str, ...] = (
        "start_ns", "end_ns", "type", "status", "thread", "depth",
        "stream", "device_start_ns", "device_duration_ns",
    )  # fmt: skip

    def __call__(self, process: int, columns: Columns) -> Columns:
        """Return the columns with other times, in order."""
        if "device_start_ns" in columns and "stream" in columns:
            columns = self._moved(process, columns)
        return self._in_flight(process, columns).in_order()

    def only(self, process: int) -> Placing:
        """Return what concerns one process."""
        maps = {key: found for key, found in self.maps.items() if key[0] == process}
        return Placing(maps, {process: self.tracks.get(process, [])})

    def _moved(self, process: int, columns: Columns) -> Columns:
        start, length = (np.array(columns.number(name)) for name in _ON_DEVICE)
        stream, timed = columns.number("stream"), start != NULL
        for of_stream in np.unique(stream[timed]).tolist():
            found = self.maps.get((process, of_stream))
            if found is not None:
                chosen = np.flatnonzero(timed & (stream == of_stream))
                begin = found.apply(start[chosen])
                length[chosen] = found.apply(start[chosen] + length[chosen]) - begin
                start[chosen] = begin
        return columns.replaced(device_start_ns=start, device_duration_ns=length)

    def _in_flight(self, process: int, columns: Columns) -> Columns:
        """Give spans in flight their device times as begin and end; those without any are estimated."""
        thread = columns.number("thread")
        over = columns.is_span & (columns.number("end_ns") != FOREVER)
        flies = over & np.isin(thread, self.tracks.get(process, []))
        known = columns.number("device_duration_ns") >= 0
        usual = np.zeros(columns.height, np.bool_)
        for track in np.unique(thread[flies]).tolist():
            mine = flies & (thread == track)
            usual[mine] = known[mine].mean() > 0.5
        rows = np.flatnonzero(flies & known)
        start, end = (np.array(columns.number(name)) for name in ("start_ns", "end_ns"))
        start[rows], end[rows] = work_times(columns, rows)
        found = columns.replaced(start_ns=start, end_ns=end)
        return found.estimated(np.flatnonzero(flies & ~known & usual))


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

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
from tracelens.distil.outline import find_work_times_ns, list_in_flight_tracks
from tracelens.model.columns import FOREVER, NULL
from tracelens.model.trace import DEVICE_CLOCK_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.model.clock_map import ClockMap
    from tracelens.model.columns import Columns
    from tracelens.model.trace import Trace

MAX_PLAUSIBLE_NS: Final = 2**60  # 36 years
MIN_SHARE_TIMED_ON_DEVICE: Final = (
    0.5  # of a track's spans: then one without device times is estimated
)
_DEVICE: Final = ("process", "device")


def place_on_host(trace: Trace) -> Trace:
    """Move device times to their host's clock; a trace without a device's clock is returned as it is."""
    maps, clocks = _map_devices(trace.clocks)
    if not maps:
        return trace
    streams = trace.threads.drop_nulls("device").select("process", "thread", "device").rows()
    placement = DevicePlacement(
        map_by_stream={
            (process, thread): maps.get((process, device)) for process, thread, device in streams
        },
        tracks_by_process=list_in_flight_tracks(trace),
    )
    return trace.with_change(placement, device_clocks=clocks).with_(outlines=None)


def describe_device_clocks(readings: pl.DataFrame) -> pl.DataFrame:
    """Return the devices' clocks, one a row, by clock readings of processes (`CLOCK_COLUMNS`)."""
    return _map_devices(readings)[1]


def _map_devices(readings: pl.DataFrame) -> tuple[dict[tuple[Any, ...], ClockMap], pl.DataFrame]:
    """Map each device's clock to its host's, by process and device; also return a row on each.

    `readings` has one row per reading of a clock; the rows returned are `DEVICE_CLOCK_COLUMNS`.
    """
    # Readings that no clock can have given are dropped; sums of the others fit into 64 bits.
    device_readings = readings.filter(
        pl.col("method") == "device",
        pl.col("device").is_not_null(),
        pl.col("monotonic_ns") <= 4 * MAX_PLAUSIBLE_NS,
        pl.col("window_ns") <= MAX_PLAUSIBLE_NS,
        pl.col("offset_ns").abs() <= MAX_PLAUSIBLE_NS,
    ).sort("monotonic_ns")
    maps, descriptions = {}, []
    for (process, device), rows in device_readings.partition_by(*_DEVICE, as_dict=True).items():
        times = (rows[name].to_numpy() for name in ("monotonic_ns", "window_ns", "offset_ns"))
        readings_of_device = Readings(*times)
        maps[process, device] = clock_map = map_through(readings_of_device)
        device_ns = readings_of_device.common_ns - readings_of_device.lead_ns
        descriptions.append(
            {
                "process": process,
                "device": device,
                "offset_ns": -int(clock_map.measure_lead_ns(device_ns[:1])[0]),
                "drift_ppm": clock_map.measure_drift_ppm(int(device_ns[0]), int(device_ns[-1])),
                "uncertainty_ns": clock_map.uncertainty_ns,
                "readings": rows.height,
            }
        )
    return maps, pl.DataFrame(descriptions, schema=DEVICE_CLOCK_COLUMNS).sort(_DEVICE)


@dataclass(frozen=True, eq=False)
class DevicePlacement:
    """Moves device times of each process to its host's clock, and spans in flight to their device's."""

    map_by_stream: Mapping[tuple[int, int], ClockMap | None]  # by process and stream
    tracks_by_process: Mapping[int, list[int]]  # on which operations are in flight
    needed_columns: tuple[str, ...] = (
        "start_ns", "end_ns", "type", "status", "thread", "depth",
        "stream", "device_start_ns", "device_duration_ns",
    )  # fmt: skip

    def __call__(self, process: int, columns: Columns) -> Columns:
        """Return the columns with other times, in order."""
        if "device_start_ns" in columns and "stream" in columns:
            columns = self._move_device_times(process, columns)
        return self._move_in_flight(process, columns).sort_by_begin()

    def limit_to(self, process: int) -> DevicePlacement:
        """Return the maps and tracks of one process."""
        maps = {
            (owner, stream): clock_map
            for (owner, stream), clock_map in self.map_by_stream.items()
            if owner == process
        }
        return DevicePlacement(
            map_by_stream=maps, tracks_by_process={process: self.tracks_by_process.get(process, [])}
        )

    def _move_device_times(self, process: int, columns: Columns) -> Columns:
        """Return the columns with the times of devices on the host's clock."""
        start_ns = np.array(columns.number_column("device_start_ns"))
        duration_ns = np.array(columns.number_column("device_duration_ns"))
        stream, is_timed = columns.number_column("stream"), start_ns != NULL
        for stream_id in np.unique(stream[is_timed]).tolist():
            clock_map = self.map_by_stream.get((process, stream_id))
            if clock_map is not None:
                rows = np.flatnonzero(is_timed & (stream == stream_id))
                begin_ns = clock_map.to_common_ns(start_ns[rows])
                end_ns = clock_map.to_common_ns(start_ns[rows] + duration_ns[rows])
                start_ns[rows], duration_ns[rows] = begin_ns, end_ns - begin_ns
        return columns.with_numbers(device_start_ns=start_ns, device_duration_ns=duration_ns)

    def _move_in_flight(self, process: int, columns: Columns) -> Columns:
        """Give spans in flight their device times as begin and end; those without any are estimated."""
        thread = columns.number_column("thread")
        is_over = columns.is_span & (columns.number_column("end_ns") != FOREVER)
        is_flight = is_over & np.isin(thread, self.tracks_by_process.get(process, []))
        is_timed = columns.number_column("device_duration_ns") >= 0
        is_mostly_timed = np.zeros(columns.row_count, np.bool_)
        for track in np.unique(thread[is_flight]).tolist():
            is_of_track = is_flight & (thread == track)
            is_mostly_timed[is_of_track] = is_timed[is_of_track].mean() > MIN_SHARE_TIMED_ON_DEVICE
        rows = np.flatnonzero(is_flight & is_timed)
        start_ns, end_ns = (
            np.array(columns.number_column(name)) for name in ("start_ns", "end_ns")
        )
        start_ns[rows], end_ns[rows] = find_work_times_ns(columns, rows)
        moved_columns = columns.with_numbers(start_ns=start_ns, end_ns=end_ns)
        return moved_columns.mark_estimated(np.flatnonzero(is_flight & ~is_timed & is_mostly_timed))

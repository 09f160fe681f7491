"""Brings all clocks onto that of the first host.

Processes that share a monotonic clock need nothing. Else hosts are tied together by the exits of the
collectives in which they all took part (see `tracelens.align.clocks.exits`); a host without any by
ping-pong with another, by requests to parameter servers, or at last by its wall clock. How sure each
is in `Trace.alignment`. Clocks are numbered, 0 is the first host's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import groupby
from operator import or_
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.align.clocks.bounds import find_bounds, order_by_certainty
from tracelens.align.clocks.exits import map_by_exits, measure_scatter, shift_map
from tracelens.align.clocks.readings import (
    map_by_ping_pong,
    map_by_wall,
    measure_bias,
    wall_windows,
)
from tracelens.align.clocks.requests import (
    find_exchanges,
    map_by_requests,
    note_causality_violations,
)
from tracelens.align.collectives import gather_calls
from tracelens.memory import free_unused_memory
from tracelens.model.calls import NEVER
from tracelens.model.clock_map import ClockMap
from tracelens.model.columns import FOREVER, NULL
from tracelens.model.events import select_process
from tracelens.model.trace import ALIGNMENT_METHODS, Alignment, HostClock, Note

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracelens.arrays import Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.columns import Columns
    from tracelens.model.trace import Trace

MAX_HOSTS_NAMED: Final = 8
_TIMES: Final = ("start_ns", "end_ns", "device_start_ns", "first_ns", "last_ns", "at_ns")


def align(trace: Trace) -> Trace:
    """Map all times onto one clock and report how; a trace with one clock is returned as it is."""
    trace = trace if trace.calls else gather_calls(trace)
    processes = _number_clocks(trace.processes)
    clocks = processes.unique("clock", keep="first", maintain_order=True).sort("clock")
    if clocks.height < 2:
        return trace.with_(
            alignment=Alignment(method="same_clock", hosts=_describe_one(clocks, trace.clocks))
        )
    maps, method, notes, untied_clocks = _map_clocks(trace, processes, clocks)
    clock_maps = {process: maps[clock] for process, clock in processes["process", "clock"].rows()}
    free_unused_memory()  # what fitting left: memory is at its most while all calls are there twice
    return trace.with_change(
        ClockChange(clock_maps),
        calls=tuple(_move_calls(grid, clock_maps) for grid in trace.calls),
        processes=_move_frame(trace.processes, clock_maps),
        samples=_move_frame(trace.samples, clock_maps),
        endings=_move_frame(trace.endings, clock_maps),
        alignment=Alignment(method, hosts=_describe_hosts(processes, maps, untied_clocks)),
        notes=(*trace.notes, *notes),
        clock_maps=clock_maps,
    )


@dataclass(frozen=True, eq=False)
class ClockChange:
    """Puts the events of each process onto the common clock."""

    map_by_process: Mapping[int, ClockMap]  # by the index of a process in the trace
    needed_columns: tuple[str, ...] = ("start_ns", "end_ns", "depth", "device_start_ns")

    def __call__(self, process: int, columns: Columns) -> Columns:
        """Return the columns with common times, in order."""
        clock_map = self.map_by_process.get(process)
        if clock_map is None:
            return columns
        missing_marks = {"end_ns": FOREVER, "start_ns": NULL, "device_start_ns": NULL}
        times = {
            name: to_common_times(clock_map, columns.number_column(name), missing)
            for name, missing in missing_marks.items()
            if name in columns
        }
        return columns.with_numbers(**times).sort_by_begin()

    def limit_to(self, process: int) -> ClockChange:
        """Return the map of one process."""
        return ClockChange(select_process(self.map_by_process, process))


def to_common_times(clock_map: ClockMap, times_ns: Ints, *missing: int) -> Ints:
    """Return common times; values that are `missing` stay as they are."""
    is_missing = reduce(or_, (times_ns == mark for mark in missing), np.False_)
    if not is_missing.any():
        return clock_map.to_common_ns(times_ns)
    return np.where(is_missing, times_ns, clock_map.to_common_ns(np.where(is_missing, 0, times_ns)))


def to_common_series(clock_map: ClockMap, times: pl.Series) -> pl.Series:
    """Return common times, null where there is no time."""
    return _with_nulls_of(times, clock_map.to_common_ns(times.fill_null(0).to_numpy()))


def _with_nulls_of(column: pl.Series, values: Ints) -> pl.Series:
    series = pl.Series(column.name, values)
    if not column.null_count():
        return series
    return pl.select(pl.when(column.is_not_null()).then(series).alias(column.name)).to_series()


def _move_calls(grid: CallGrid, maps: Mapping[int, ClockMap]) -> CallGrid:
    """Put calls onto the common clock; neighbours that share one go together."""
    start_ns, end_ns = np.empty_like(grid.start_ns), np.empty_like(grid.end_ns)
    map_of_column = [maps[process] for process in grid.processes.tolist()]
    absent_marks = () if grid.is_whole else (NEVER,)
    open_marks = () if grid.is_closed else (FOREVER,)
    for _, neighbours in groupby(
        range(len(map_of_column)), key=lambda column: id(map_of_column[column])
    ):
        first_column, *more_columns = neighbours
        columns = slice(first_column, first_column + len(more_columns) + 1)
        clock_map = map_of_column[first_column]
        start_ns.T[columns] = to_common_times(clock_map, grid.start_ns.T[columns], *absent_marks)
        end_ns.T[columns] = to_common_times(
            clock_map, grid.end_ns.T[columns], *absent_marks, *open_marks
        )
    return replace(grid, start_ns=start_ns, end_ns=end_ns)


def _number_clocks(processes: pl.DataFrame) -> pl.DataFrame:
    """Return one row per process, with the number of its clock: by the first main worker with each."""
    ordered = processes.sort(~pl.col("main"), pl.col("role") != "worker", "rank", "process")
    domains = ordered["clock_domain"].unique(maintain_order=True)
    number_by_domain = {domain: index for index, domain in enumerate(domains)}
    return ordered.select(
        *("process", "host", "clock_domain", "first_ns", "last_ns"),
        clock=pl.col("clock_domain").replace_strict(number_by_domain, return_dtype=pl.Int32),
    )


def _describe_one(clocks: pl.DataFrame, readings: pl.DataFrame) -> tuple[HostClock, ...]:
    """Describe the only clock; readings with the method ``common``, of a conversion, tell how sure.

    `clocks` has one row per host with this clock, `readings` one per reading of any clock.
    """
    window_ns = readings.filter(pl.col("method") == "common")["window_ns"].max()
    uncertainty_ns = window_ns // 2 if isinstance(window_ns, int) else 0
    rows = clocks.select("host", "clock_domain").iter_rows()
    return tuple(
        HostClock(
            host, clock_domain=domain, offset_ns=0, drift_ppm=0.0, uncertainty_ns=uncertainty_ns
        )
        for host, domain in rows
    )


def _map_clocks(
    trace: Trace, processes: pl.DataFrame, clocks: pl.DataFrame
) -> tuple[dict[int, ClockMap], str, list[Note], list[int]]:
    """Map each clock to the common one, by the best method that it allows.

    `processes` has one row per process, `clocks` one per clock. Returns the map of each clock, the
    best method that was used, notes, and the clocks that nothing ties to others.
    """
    readings = _read_clocks(trace, processes)
    maps = _sharpen(map_by_exits(trace, processes), readings)
    method_of = dict.fromkeys(maps, "collective_exits")
    maps = maps or {0: ClockMap()}
    origin = min(maps)
    read_clocks = _list_clocks(readings, "clock", "peer_clock")
    exchanges = find_exchanges(trace, processes)

    def tie_by_wall(clock: int) -> ClockMap | None:
        return map_by_wall(
            _select_readings(readings, clock), _select_readings(readings, origin), maps[origin]
        )

    def tie_by_exchanges(rows: pl.DataFrame, clock: int) -> ClockMap | None:
        by_wall = tie_by_wall(clock)
        windows = wall_windows(_select_readings(readings, clock), by_wall) if by_wall else None
        return map_by_requests(rows, clock, maps, windows)

    def tie_all(
        method: str, candidates: Sequence[int], tie: Callable[[int], ClockMap | None]
    ) -> None:
        """Tie clocks to mapped ones, and others to those, until nothing is left to tie."""
        while new_maps := {
            clock: clock_map
            for clock in candidates
            if clock not in maps and (clock_map := tie(clock)) is not None
        }:
            maps.update(new_maps)
            method_of.update(dict.fromkeys(new_maps, method))

    tie_all("ping_pong", read_clocks, partial(_tie_by_ping_pong, maps, readings))
    asking_clocks = _list_clocks(exchanges, "clock", "peer")
    tie_all("requests", asking_clocks, partial(tie_by_exchanges, exchanges))
    if len(maps) < clocks.height:
        exchanges = pl.concat([exchanges, find_bounds(trace, processes, maps)])
        for clock in order_by_certainty(exchanges, maps):
            if message_map := tie_by_exchanges(exchanges, clock):
                maps[clock], method_of[clock] = message_map, "messages"
    tie_all("wall", read_clocks, tie_by_wall)
    notes = note_causality_violations(exchanges, maps)
    untied = clocks.filter(~pl.col("clock").is_in(list(maps)))
    maps |= _map_untied(maps[origin], origin, processes, untied["clock"].to_list())
    methods = (name for name in ALIGNMENT_METHODS if name in method_of.values())
    method = next(methods, "unaligned")
    notes = _note_methods(clocks, method_of, method) + _note_untied(untied) + notes
    return maps, method, notes, untied["clock"].to_list()


def _find_extents_ns(processes: pl.DataFrame) -> dict[int, tuple[int, int]]:
    """Return the first and the last time of each clock, on that clock."""
    extents = processes.group_by("clock").agg(pl.col("first_ns").min(), pl.col("last_ns").max())
    return {clock: (first or 0, last or 0) for clock, first, last in extents.iter_rows()}


def _map_untied(
    origin_map: ClockMap, origin: int, processes: pl.DataFrame, untied: list[int]
) -> dict[int, ClockMap]:
    """Return maps of the clocks that nothing ties: they keep their times if these overlap the origin's.

    Else (another boot) a clock is moved so that both begin together. `origin_map` is the origin's map.
    """
    extents_ns = _find_extents_ns(processes)
    begin_ns, end_ns = origin_map.to_common_ns(np.array(extents_ns[origin])).tolist()
    return {
        clock: ClockMap(
            base_ns=first_ns,
            target_ns=first_ns if first_ns <= end_ns and begin_ns <= last_ns else begin_ns,
        )
        for clock, (first_ns, last_ns) in extents_ns.items()
        if clock in untied
    }


def _read_clocks(trace: Trace, processes: pl.DataFrame) -> pl.DataFrame:
    """Return one row per reading of a clock, with the clock that read (`clock`) and its `peer_clock`."""
    clock_columns = processes.select("process", "clock")
    peers = trace.workers.select("process", peer="rank").join(clock_columns, on="process")
    return trace.clocks.join(clock_columns, on="process").join(
        peers.select("peer", peer_clock="clock"), on="peer", how="left"
    )


def _sharpen(maps: dict[int, ClockMap], readings: pl.DataFrame) -> dict[int, ClockMap]:
    """Return the maps, by clock, without a lasting lag where ping-pong shows one.

    A map is shifted only if ping-pong is more precise than exits scatter. `readings` has one row per
    reading of a clock.
    """
    sharpened_maps, first_clock = dict(maps), min(maps, default=0)
    pings = readings.filter(pl.col("method") == "ping_pong", pl.col("peer_clock") == first_clock)
    for clock in maps.keys() & {*pings["clock"]}:
        bias = measure_bias(_select_readings(pings, clock), maps[clock], maps[first_clock])
        if bias is not None:
            bias_ns, uncertainty_ns = bias
            if uncertainty_ns < measure_scatter(maps[clock]):
                sharpened_maps[clock] = shift_map(maps[clock], bias_ns, uncertainty_ns)
    return sharpened_maps


def _list_clocks(frame: pl.DataFrame, *columns: str) -> list[int]:
    """Return the clocks that some columns name, in order."""
    return sorted({clock for name in columns for clock in frame[name].drop_nulls().unique()})


def _tie_by_ping_pong(
    maps: dict[int, ClockMap], readings: pl.DataFrame, clock: int
) -> ClockMap | None:
    """Map a clock by ping-pong with the mapped one that leaves least uncertainty; None without any.

    `maps` are by clock; `readings` has one row per reading of a clock.
    """
    pings = readings.filter(pl.col("method") == "ping_pong")
    maps_by_peer = [
        map_by_ping_pong(
            _select_readings(pings, clock).filter(pl.col("peer_clock") == peer),
            _select_readings(pings, peer).filter(pl.col("peer_clock") == clock),
            peer_map,
        )
        for peer, peer_map in maps.items()
    ]
    found_maps = filter(None, maps_by_peer)
    return min(found_maps, key=lambda candidate: candidate.uncertainty_ns, default=None)


def _select_readings(readings: pl.DataFrame, clock: int) -> pl.DataFrame:
    return readings.filter(pl.col("clock") == clock)


def _note_methods(clocks: pl.DataFrame, method_of: dict[int, str], method: str) -> list[Note]:
    """Note the hosts whose clock was aligned by another method than the best one, `method`."""
    method_descriptions = {
        "ping_pong": "messages between processes",
        "requests": "requests to parameter servers",
        "messages": "the messages and collectives that it shares with some of the others",
        "wall": "its wall clock (about 1 ms)",
    }
    return [
        Note(
            file="",
            sentence=f"Host '{row['host']}' took part in no common collective: its clock is aligned "
            f"by {method_descriptions[method_of[row['clock']]]}.",
            kind="clock",
        )
        for row in clocks.iter_rows(named=True)
        if method_of.get(row["clock"], method) != method
    ]


def _note_untied(untied_clocks: pl.DataFrame) -> list[Note]:
    """Return a note on the clocks (one row each) that nothing ties to others, if there are any."""
    if untied_clocks.is_empty():
        return []
    hosts = ", ".join(f"'{host}'" for host in untied_clocks["host"].head(MAX_HOSTS_NAMED))
    unnamed_count = untied_clocks.height - MAX_HOSTS_NAMED
    more = f" and {unnamed_count} more" if unnamed_count > 0 else ""
    sentence = (
        f"Host {hosts}{more} cannot be aligned with the others (no common collective, "
        "ping-pong or wall clock was recorded): only durations within it are meaningful, and waits "
        "of hosts for each other are unknown."
    )
    return [Note(file="", sentence=sentence, kind="clock")]


def _describe_hosts(
    processes: pl.DataFrame, maps: dict[int, ClockMap], untied_clocks: list[int]
) -> tuple[HostClock, ...]:
    """Describe how each clock was mapped; `processes` has one row per process."""
    clocks = processes.group_by("clock").agg(pl.col("host", "clock_domain").first()).sort("clock")
    extents_ns = _find_extents_ns(processes)
    return tuple(
        HostClock(
            host=host,
            clock_domain=domain,
            offset_ns=int(maps[clock].measure_lead_ns(np.array([extents_ns[clock][0]]))[0]),
            drift_ppm=maps[clock].measure_drift_ppm(*extents_ns[clock]),
            uncertainty_ns=None if clock in untied_clocks else maps[clock].uncertainty_ns,
            jumps=maps[clock].jump_times_ns,
        )
        for clock, host, domain in clocks.iter_rows()
    )


def _move_frame(frame: pl.DataFrame, maps: Mapping[int, ClockMap]) -> pl.DataFrame:
    """Put the times of a frame with a process column onto the common clock."""
    process = frame["process"].to_numpy()
    order = np.argsort(process, kind="stable")
    rows_by_process = np.split(order, np.flatnonzero(np.diff(process[order])) + 1)
    moved_columns = []
    for column in (frame[name] for name in _TIMES if name in frame.columns):
        if column.count():
            times_ns = column.fill_null(0).to_numpy()
            common_ns = np.empty_like(times_ns)
            for rows in rows_by_process:
                common_ns[rows] = maps[int(process[rows[0]])].to_common_ns(times_ns[rows])
            moved_columns.append(_with_nulls_of(column, common_ns))
    return frame.with_columns(moved_columns)

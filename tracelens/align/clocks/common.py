"""Brings all clocks onto that of the first host.

Processes that share a monotonic clock need nothing. Else hosts are tied together by the exits of the
collectives in which they all took part (see `tracelens.align.clocks.exits`); a host without any by
ping-pong with another, by requests to parameter servers, or at last by its wall clock. How sure each
is stands in `Trace.alignment`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import polars as pl

from tracelens.align.clocks.bounds import find_bounds, order_by_certainty
from tracelens.align.clocks.exits import from_exits, shifted, spread_of
from tracelens.align.clocks.maps import ClockMap
from tracelens.align.clocks.readings import bias, from_ping_pong, from_wall, wall_windows
from tracelens.align.clocks.requests import causality_violations, exchanges, from_requests
from tracelens.align.collectives import gather
from tracelens.memory import give_back
from tracelens.model.calls import NEVER
from tracelens.model.columns import FOREVER, NULL
from tracelens.model.trace import ALIGNMENT_METHODS, Alignment, HostClock, Note

__all__ = ["ClockMap", "Moving", "align", "moved_times"]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracelens.arrays import Indices, Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.columns import Columns
    from tracelens.model.trace import Moved, Trace

_Rows: TypeAlias = "slice | Indices"
_SHOWN: Final = 8
_TIMES: Final = ("start_ns", "end_ns", "device_start_ns", "first_ns", "last_ns")


def align(trace: Trace) -> Trace:
    """Map all times onto one clock and report how; a trace with one clock is returned as it is."""
    trace = trace if trace.calls else gather(trace)
    clocks = _clocks(trace.processes)
    names = clocks.unique("clock", keep="first", maintain_order=True).sort("clock")
    if names.height < 2:
        return trace.with_(alignment=Alignment("same_clock", _unmoved(names, trace.clocks)))
    maps, method, notes, alone = _maps(trace, clocks, names)
    moved = {process: maps[clock] for process, clock in clocks.select("process", "clock").rows()}
    give_back()  # what fitting left: memory is at its most while all calls are there twice
    return trace.changed(
        Moving(moved),
        calls=tuple(_moved_calls(grid, moved) for grid in trace.calls),
        processes=_moved(trace.processes, clocks, maps),
        samples=_moved(trace.samples, clocks, maps),
        alignment=Alignment(method, _described(clocks, maps, alone)),
        notes=(*trace.notes, *notes),
        moved=moved,
    )


@dataclass(frozen=True, eq=False)
class Moving:
    """Puts the events of each process onto the common clock."""

    maps: Mapping[int, ClockMap]
    needs: tuple[str, ...] = ("start_ns", "end_ns", "depth", "device_start_ns")

    def __call__(self, process: int, columns: Columns) -> Columns:
        """Return the columns with common times, in order."""
        found = self.maps.get(process)
        if found is None:
            return columns
        present = {"end_ns": FOREVER, "start_ns": NULL, "device_start_ns": NULL}
        times = {
            name: moved_times(found, columns.number(name), missing)
            for name, missing in present.items()
            if name in columns
        }
        return columns.replaced(**times).in_order()

    def only(self, process: int) -> Moving:
        """Return the map of one process."""
        return Moving({process: self.maps[process]} if process in self.maps else {})


def moved_times(found: Moved, times: Ints, *missing: int) -> Ints:
    """Return common times; what is `missing` stays so."""
    if not missing:
        return found.apply(times)
    unknown = times == missing[0]
    for one in missing[1:]:
        unknown |= times == one
    if not unknown.any():
        return found.apply(times)
    return np.where(unknown, times, found.apply(np.where(unknown, 0, times)))


def _moved_calls(grid: CallGrid, maps: Mapping[int, ClockMap]) -> CallGrid:
    """Put calls onto the common clock; neighbours that share one go together."""
    start, end = np.empty_like(grid.start_ns), np.empty_like(grid.end_ns)
    found = [maps[process] for process in grid.processes.tolist()]
    absent = () if grid.whole else (NEVER,)
    open_ = () if grid.is_closed else (FOREVER,)
    for _, same in groupby(range(len(found)), key=lambda column: id(found[column])):
        first, *others = same
        columns = slice(first, first + len(others) + 1)
        start.T[columns] = moved_times(found[first], grid.start_ns.T[columns], *absent)
        end.T[columns] = moved_times(found[first], grid.end_ns.T[columns], *absent, *open_)
    return replace(grid, start_ns=start, end_ns=end)


def _clocks(processes: pl.DataFrame) -> pl.DataFrame:
    """Number the clocks: by the first main worker that has each, then the rest."""
    order = processes.sort(~pl.col("main"), pl.col("role") != "worker", "rank", "process")
    number = {
        name: index for index, name in enumerate(order["clock_domain"].unique(maintain_order=True))
    }
    return order.select(
        "process",
        "host",
        "clock_domain",
        "first_ns",
        "last_ns",
        clock=pl.col("clock_domain").replace_strict(number, return_dtype=pl.Int32),
    )


def _unmoved(names: pl.DataFrame, readings: pl.DataFrame) -> tuple[HostClock, ...]:
    """Describe the one clock; a conversion that brought other clocks onto it left how sure that is."""
    window = readings.filter(pl.col("method") == "common")["window_ns"].max()
    uncertainty_ns = window // 2 if isinstance(window, int) else 0
    rows = names.select("host", "clock_domain").iter_rows()
    return tuple(HostClock(host, domain, 0, 0.0, uncertainty_ns) for host, domain in rows)


def _maps(
    trace: Trace, clocks: pl.DataFrame, names: pl.DataFrame
) -> tuple[dict[int, ClockMap], str, list[Note], list[int]]:
    """Map each clock to the common one, by the best method that it allows.

    Clocks that nothing ties to the others are reported last.
    """
    readings = _readings(trace, clocks)
    maps = _sharpened(from_exits(trace, clocks), readings)
    used = dict.fromkeys(maps, "collective_exits")
    if not maps:
        maps = {0: ClockMap()}
    origin = min(maps)
    read = _named_in(readings, "clock", "peer_clock")
    used |= _add_by("ping_pong", maps, read, partial(_by_ping_pong, maps=maps, readings=readings))
    asked = exchanges(trace, clocks)
    by_asked = partial(_by_requests, maps=maps, readings=readings, origin=origin)
    asking = _named_in(asked, "clock", "peer")
    used |= _add_by("requests", maps, asking, partial(by_asked, asked=asked))
    if len(maps) < names.height:
        asked = pl.concat([asked, find_bounds(trace, clocks, maps)])
        for clock in order_by_certainty(asked, maps):
            if found := by_asked(clock, asked=asked):
                maps[clock], used[clock] = found, "messages"
    by_wall = partial(_by_wall, maps=maps, readings=readings, origin=origin)
    used |= _add_by("wall", maps, read, by_wall)
    notes = causality_violations(asked, maps)
    alone = names.filter(~pl.col("clock").is_in(list(maps)))
    maps |= _untied(maps[origin], origin, clocks, alone["clock"].to_list())
    method = next((name for name in ALIGNMENT_METHODS if name in used.values()), "unaligned")
    notes = _method_notes(names, used, method) + _unaligned(alone) + notes
    return maps, method, notes, alone["clock"].to_list()


def _untied(
    common: ClockMap, origin: int, clocks: pl.DataFrame, alone: list[int]
) -> dict[int, ClockMap]:
    """Keep the times of clocks that nothing ties, unless nothing overlaps then.

    A clock that was never near the origin's (another boot) is moved so that both begin together.
    """
    extents = {
        clock: (first or 0, last or 0)
        for clock, first, last in clocks.group_by("clock")
        .agg(pl.col("first_ns").min(), pl.col("last_ns").max())
        .iter_rows()
    }
    begin, end = common.apply(np.array(extents[origin])).tolist()
    return {
        clock: ClockMap(first, first if first <= end and begin <= last else begin)
        for clock, (first, last) in extents.items()
        if clock in alone
    }


def _readings(trace: Trace, clocks: pl.DataFrame) -> pl.DataFrame:
    """Return the clock records with the clock of each and of its peer."""
    clock_of = clocks.select("process", "clock")
    peers = trace.workers.select("process", peer="rank").join(clock_of, on="process")
    return trace.clocks.join(clock_of, on="process").join(
        peers.select("peer", peer_clock="clock"), on="peer", how="left"
    )


def _between(readings: pl.DataFrame, clock: int, peer: int) -> pl.DataFrame:
    return readings.filter(
        pl.col("method") == "ping_pong", pl.col("clock") == clock, pl.col("peer_clock") == peer
    )


def _sharpened(maps: dict[int, ClockMap], readings: pl.DataFrame) -> dict[int, ClockMap]:
    """Remove a lasting lag from fitted clocks where ping-pong is more precise than exits scatter."""
    if not maps:
        return {}
    better, first = dict(maps), min(maps)
    pings = readings.filter(pl.col("method") == "ping_pong", pl.col("peer_clock") == first)
    for clock in maps.keys() & {*pings["clock"]}:
        found = maps[clock]
        measured = bias(pings.filter(pl.col("clock") == clock), found, maps[first])
        if measured and measured[1] < spread_of(found):
            better[clock] = shifted(found, *measured)
    return better


def _named_in(frame: pl.DataFrame, *columns: str) -> list[int]:
    """Return the clocks that some columns name, in order."""
    return sorted(
        {clock for name in columns for clock in frame[name].unique() if clock is not None}
    )


def _add_by(
    method: str,
    maps: dict[int, ClockMap],
    clocks: Sequence[int],
    tie: Callable[[int], ClockMap | None],
) -> dict[int, str]:
    """Tie clocks to mapped ones, and others to those, until nothing is left to tie."""
    before = set(maps)
    while True:
        found = {clock: tied for clock in clocks if clock not in maps and (tied := tie(clock))}
        if not found:
            return dict.fromkeys(maps.keys() - before, method)
        maps |= found


def _by_ping_pong(clock: int, maps: dict[int, ClockMap], readings: pl.DataFrame) -> ClockMap | None:
    candidates = [
        from_ping_pong(_between(readings, clock, other), _between(readings, other, clock), mapped)
        for other, mapped in maps.items()
    ]
    found = [candidate for candidate in candidates if candidate]
    return min(found, key=lambda candidate: candidate.uncertainty_ns, default=None)


def _by_wall(
    clock: int, maps: dict[int, ClockMap], readings: pl.DataFrame, origin: int
) -> ClockMap | None:
    of = partial(_read_by, readings)
    return from_wall(of(clock), of(origin), maps[origin])


def _by_requests(
    clock: int, maps: dict[int, ClockMap], readings: pl.DataFrame, origin: int, asked: pl.DataFrame
) -> ClockMap | None:
    wall = _by_wall(clock, maps, readings, origin)
    seen = wall_windows(_read_by(readings, clock), wall) if wall else None
    return from_requests(asked, clock, maps, seen)


def _read_by(readings: pl.DataFrame, clock: int) -> pl.DataFrame:
    return readings.filter(pl.col("clock") == clock)


def _method_notes(names: pl.DataFrame, used: dict[int, str], method: str) -> list[Note]:
    """Return which hosts had to be aligned by a worse method than the others."""
    words = {
        "ping_pong": "messages between processes",
        "requests": "requests to parameter servers",
        "messages": "the messages and collectives that it shares with some of the others",
        "wall": "its wall clock (about 1 ms)",
    }
    return [
        Note(
            file="",
            sentence=f"Host '{row['host']}' took part in no common collective: its clock is aligned "
            f"by {words[used[row['clock']]]}.",
            kind="clock",
        )
        for row in names.iter_rows(named=True)
        if used.get(row["clock"], method) != method
    ]


def _unaligned(alone: pl.DataFrame) -> list[Note]:
    if alone.is_empty():
        return []
    hosts = [f"'{host}'" for host in alone["host"].head(_SHOWN)]
    more = f" and {alone.height - _SHOWN} more" if alone.height > _SHOWN else ""
    sentence = (
        f"Host {', '.join(hosts)}{more} cannot be aligned with the others (no common collective, "
        "ping-pong or wall clock was recorded): only durations within it are meaningful, and waits "
        "of hosts for each other are unknown."
    )
    return [Note(file="", sentence=sentence, kind="clock")]


def _described(
    clocks: pl.DataFrame, maps: dict[int, ClockMap], alone: list[int]
) -> tuple[HostClock, ...]:
    extents = clocks.group_by("clock").agg(
        pl.col("host", "clock_domain").first(), pl.col("first_ns").min(), pl.col("last_ns").max()
    )
    described = [_describe(row, maps[row["clock"]]) for row in extents.sort("clock").to_dicts()]
    return tuple(
        replace(host, uncertainty_ns=None) if clock in alone else host
        for clock, host in enumerate(described)
    )


def _describe(row: dict[str, Any], found: ClockMap) -> HostClock:
    first, last = row["first_ns"] or 0, row["last_ns"] or 0
    return HostClock(
        host=row["host"],
        clock_domain=row["clock_domain"],
        offset_ns=int(found.offset_at(np.array([first]))[0]),
        drift_ppm=found.drift_ppm(first, last),
        uncertainty_ns=found.uncertainty_ns,
        jumps=found.jumps,
    )


def _moved(frame: pl.DataFrame, clocks: pl.DataFrame, maps: dict[int, ClockMap]) -> pl.DataFrame:
    """Put the times of a frame with a process column onto the common clock."""
    rows = list(_rows_of(frame["process"], clocks))
    present = [name for name in _TIMES if name in frame.columns and frame[name].count()]
    return frame.with_columns(_moved_column(frame[name], rows, maps) for name in present)


def _rows_of(process: pl.Series, clocks: pl.DataFrame) -> Iterator[tuple[int, _Rows]]:
    """Yield each process's clock and its rows: a stretch, where a frame is in order of processes."""
    numbers = process.to_numpy()
    stretches = process.is_sorted()
    order = np.arange(0) if stretches else np.argsort(numbers, kind="stable")
    every = clocks["process"].to_numpy()
    firsts, lasts = (
        np.searchsorted(numbers, every, side, sorter=None if stretches else order)
        for side in ("left", "right")
    )
    for clock, first, last in zip(clocks["clock"], firsts, lasts, strict=True):
        yield clock, slice(first, last) if stretches else order[first:last]


def _moved_column(
    column: pl.Series, rows: list[tuple[int, _Rows]], maps: dict[int, ClockMap]
) -> pl.Series:
    times = column.fill_null(0).to_numpy()
    moved = np.empty_like(times)
    for clock, part in rows:
        moved[part] = maps[clock].apply(times[part])
    found = pl.Series(column.name, moved)
    if not column.null_count():
        return found
    return pl.select(pl.when(column.is_not_null()).then(found)).to_series().alias(column.name)

"""The tables of a report that people read: which columns, under what heading, in what words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracelens.model.fmt import bandwidth, duration, percent, phase, size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import polars as pl

__all__ = ["Section", "sections"]

Column = tuple[str, str, "Callable[[Any], str]"]
MOST_ROWS: Final = 8
FEWEST_ROWS: Final = {"epochs": 2}  # of a run without changes there is nothing to tell


def _shards(number: float) -> str:
    return f"{number:.1f} shards"


# By name of the table: title, then columns as heading, name, and how a value is written.
SHOWN: Final[dict[str, tuple[str, tuple[Column, ...]]]] = {
    "bandwidths": (
        "Collectives by size",
        (
            ("operation", "op", str),
            ("ranks", "ranks", str),
            ("size", "bytes", size),
            ("calls", "calls", str),
            ("time", "wire_ns", duration),
            ("bus bandwidth", "bus_bandwidth", bandwidth),
            ("of the best", "of_best", percent),
        ),
    ),
    "links": (
        "Links between ranks, the slowest first",
        (
            ("from", "sender", str),
            ("to", "receiver", str),
            ("messages", "messages", str),
            ("time", "message_ns", duration),
            ("bandwidth", "bandwidth", bandwidth),
        ),
    ),
    "shards": (
        "Parameter-server shards",
        (
            ("shard", "shard", str),
            ("bytes", "bytes", size),
            ("share", "bytes_share", percent),
            ("processor", "cpu_share", percent),
            ("link", "wire_share", percent),
            ("receives", "goodput", bandwidth),
            ("at best", "best_goodput", bandwidth),
            ("bound by", "bound", str),
        ),
    ),
    "placements": (
        "Where variables could lie",
        (
            ("placement", "placement", str),
            ("fullest shard", "most_bytes", size),
            ("mean", "mean_bytes", size),
            ("works like", "effective_shards", _shards),
            ("not below", "least_bytes", size),
            ("saves", "saving", percent),
        ),
    ),
    "epochs": (
        "Who was there",
        (
            ("from step", "first_step", str),
            ("to", "last_step", str),
            ("ranks", "ranks", str),
            ("joined", "joined", str),
            ("left", "left", str),
        ),
    ),
    "critical_path": (
        "The critical path: what the job is as long as",
        (
            ("rank", "rank", str),
            ("spends on it", "ns", duration),
            ("in", "category", phase),
            ("share", "share", percent),
        ),
    ),
    "chains": (
        "From a gradient to the use of its weights",
        (
            ("of", "of", str),
            ("number", "number", str),
            ("waits", "waiting_ns", duration),
            ("is reduced", "reducing_ns", duration),
            ("until update", "until_update_ns", duration),
            ("update", "updating_ns", duration),
            ("until use", "until_use_ns", duration),
            ("in all", "whole_ns", duration),
        ),
    ),
    "background": (
        "Time for background work between weight updates, a step",
        (
            ("rank", "rank", str),
            ("between updates", "gap_ns", duration),
            ("usable", "usable_ns", duration),
            ("in 9 of 10 steps", "usable_p10_ns", duration),
            ("so much at 1 GB/s", "usable_ns", size),
            ("of all time", "share", percent),
        ),
    ),
    "message_costs": (
        "What a collective costs (95 %)",
        (
            ("operation", "op", str),
            ("ranks", "ranks", str),
            ("latency", "latency_ns", duration),
            ("from", "latency_low_ns", duration),
            ("to", "latency_high_ns", duration),
            ("bus bandwidth", "bus_bandwidth", bandwidth),
            ("half of it at", "half_bandwidth_bytes", size),
            ("latency's share", "latency_share", percent),
        ),
    ),
}


@dataclass(frozen=True)
class Section:
    """A table in words."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def sections(tables: Mapping[str, pl.DataFrame]) -> list[Section]:
    """Return the tables that have rows; of many rows, the first, and how many more there are.

    `tables` are those of `Report.tables`; others are left out.
    """
    found = []
    for name, (title, columns) in SHOWN.items():
        table = tables.get(name)
        if table is None or table.height < FEWEST_ROWS.get(name, 1):
            continue
        more = f" ({MOST_ROWS} of {table.height})" if table.height > MOST_ROWS else ""
        rows = tuple(_row(row, columns) for row in table.head(MOST_ROWS).iter_rows(named=True))
        found.append(Section(title + more, tuple(heading for heading, _, _ in columns), rows))
    return found


def _row(row: dict[str, Any], columns: Sequence[Column]) -> tuple[str, ...]:
    return tuple("-" if row[name] is None else write(row[name]) for _, name, write in columns)

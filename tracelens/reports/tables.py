"""The tables of a report that people read: which columns, under which headings, in which units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracelens.model.fmt import bandwidth, duration, percent, phase, size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import polars as pl

Column = tuple[str, str, "Callable[[Any], str]"]
MOST_ROWS: Final = 8
_ALPHA_BETA: Final = "\N{GREEK SMALL LETTER ALPHA}\N{EN DASH}\N{GREEK SMALL LETTER BETA}"
FEWEST_ROWS: Final = {"epochs": 2, "attempts": 2}  # of one row there is nothing to say

LEFT_ALIGNED: Final = ("how it failed",)  # columns of sentences
OPTIONAL: Final = ("algorithm", "failure")  # left out where no row has one


def _write_number(value: float) -> str:
    return f"{value:.1f}"


# By name of the table: title, then columns as heading, name, and how a value is written.
SHOWN: Final[dict[str, tuple[str, tuple[Column, ...]]]] = {
    "bandwidths": (
        "Collectives by size",
        (
            ("operation", "op", str),
            ("ranks", "ranks", str),
            ("algorithm", "algorithm", str),
            ("size", "bytes", size),
            ("calls", "calls", str),
            ("time", "wire_ns", duration),
            ("bus bandwidth", "bus_bandwidth", bandwidth),
            ("% of peak observed", "of_best", percent),
        ),
    ),
    "links": (
        "Links between ranks, slowest first",
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
            ("processor busy", "cpu_share", percent),
            ("link busy", "wire_share", percent),
            ("goodput", "goodput", bandwidth),
            ("peak goodput", "best_goodput", bandwidth),
            ("bound by", "bound", str),
        ),
    ),
    "placements": (
        "Variable placement",
        (
            ("placement", "placement", str),
            ("max shard", "most_bytes", size),
            ("mean", "mean_bytes", size),
            ("effective shards", "effective_shards", _write_number),
            ("lower bound", "least_bytes", size),
            ("saving", "saving", percent),
        ),
    ),
    "epochs": (
        "Membership",
        (
            ("from step", "first_step", str),
            ("to", "last_step", str),
            ("ranks", "ranks", str),
            ("joined", "joined", str),
            ("left", "left", str),
        ),
    ),
    "attempts": (
        "Attempts of the job",
        (
            ("attempt", "attempt", str),
            ("ranks", "ranks", str),
            ("began after", "begin_ns", duration),
            ("ended after", "end_ns", duration),
            ("from step", "first_step", str),
            ("to", "last_step", str),
            ("kept", "kept_steps", str),
            ("how it failed", "failure", str),
        ),
    ),
    "critical_path": (
        "Critical path",
        (
            ("rank", "rank", str),
            ("time", "ns", duration),
            ("phase", "category", phase),
            ("share", "share", percent),
        ),
    ),
    "chains": (
        "Gradient-to-weight latency",
        (
            ("per", "of", str),
            ("number", "number", str),
            ("wait", "waiting_ns", duration),
            ("reduction", "reducing_ns", duration),
            ("wait for optimizer", "until_update_ns", duration),
            ("update", "updating_ns", duration),
            ("wait for next forward", "until_use_ns", duration),
            ("total", "whole_ns", duration),
        ),
    ),
    "message_costs": (
        f"Collective cost model ({_ALPHA_BETA} fit, 95 % CI)",
        (
            ("operation", "op", str),
            ("ranks", "ranks", str),
            ("algorithm", "algorithm", str),
            ("latency", "latency_ns", duration),
            ("from", "latency_low_ns", duration),
            ("to", "latency_high_ns", duration),
            ("bus bandwidth", "bus_bandwidth", bandwidth),
            ("n\N{VULGAR FRACTION ONE HALF} (half-bandwidth size)", "half_bandwidth_bytes", size),
            ("latency fraction", "latency_share", percent),
        ),
    ),
    "algorithms": (
        "Fastest algorithm by size, by the cost model",
        (
            ("operation", "op", str),
            ("ranks", "ranks", str),
            ("from size", "from_bytes", size),
            ("algorithm", "algorithm", str),
            ("its latency", "latency_ns", duration),
        ),
    ),
}
OF_FORMAT: Final = frozenset((*SHOWN, "slack", "life"))  # what the JSON report has (docs/report.md)


@dataclass(frozen=True)
class Section:
    """A table in words."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def make_sections(tables: Mapping[str, pl.DataFrame]) -> list[Section]:
    """Return the tables that have rows; of many rows, the first, and how many more there are."""
    # Tables that are not in `SHOWN` are left out; a column has a heading, a name and a writer.
    shown_sections = []
    for table_name, (title, columns) in SHOWN.items():
        table = tables.get(table_name)
        if table is None or table.height < FEWEST_ROWS.get(table_name, 1):
            continue
        limit_note = f" ({MOST_ROWS} of {table.height})" if table.height > MOST_ROWS else ""
        shown_columns = [
            (heading, name, write)
            for heading, name, write in columns
            if name not in OPTIONAL or table[name].null_count() < table.height
        ]
        rows = [_write_row(row, shown_columns) for row in table.head(MOST_ROWS).to_dicts()]
        headings = tuple(heading for heading, _, _ in shown_columns)
        shown_sections.append(Section(title + limit_note, headings, tuple(rows)))
    return shown_sections


def _write_row(row: dict[str, Any], columns: Sequence[Column]) -> tuple[str, ...]:
    return tuple("-" if row[name] is None else write(row[name]) for _, name, write in columns)

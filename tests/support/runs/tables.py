"""A trace as somebody else would hand it over: a plain table, one row an event."""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING, Any, Final

import polars as pl

if TYPE_CHECKING:
    from tracelens.model.trace import Trace

# What the contract names, and what events have beyond that.
CONTRACT: Final = (
    "rank",
    "start_ns",
    "end_ns",
    "host",
    "role",
    "thread",
    "kind",
    "name",
    "step",
    "op",
    "bytes",
    "communicator",
    "seq",
    "peer",
    "shard",
)
BEYOND: Final = (
    "type",
    "status",
    "value",
    "request",
    "queue_depth",
    "bucket",
    "key",
    "micro_step",
    "algorithm",
    "device_start_ns",
    "device_duration_ns",
    "stream",
    "clock",
    "world",
)


def table_of(trace: Trace, *, with_extras: bool = True) -> pl.DataFrame:
    """Write down a trace's main processes; without extras spans in the contract's columns."""
    main = trace.processes.filter("main").select(
        "process", "host", clock="clock_domain", world="world", own_shard="shard"
    )
    events = trace.events if with_extras else trace.spans
    rows = events.collect().join(main, on="process", maintain_order="left")
    rows = rows.with_columns(shard=pl.coalesce("shard", "own_shard"))
    text_columns = [
        pl.col(name).cast(pl.String) for name in ("kind", "op", "name", "role", "communicator")
    ]
    return rows.with_columns(text_columns).select(*CONTRACT, *(BEYOND if with_extras else ()))


def comparable(report: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a report what names its files, what follows from clocks, and what reading met.

    And when processes began and ended, which only recordings hold.
    """
    left_out = {"notes", "clock", "life"}
    compared = {name: value for name, value in report.items() if name not in left_out}
    of_life = {"attempts", "life"}
    compared["tables"] = {k: v for k, v in report["tables"].items() if k not in of_life}
    if compared["ledger"]:  # who was awaited is counted beyond the clocks' uncertainty
        compared["ledger"] = {k: v for k, v in compared["ledger"].items() if k != "awaited_share"}
    of_files = {"file", "broken_off"}
    compared["findings"] = [
        finding | {"evidence": {k: v for k, v in finding["evidence"].items() if k not in of_files}}
        for finding in report["findings"]
    ]
    return compared


def differing(actual: Any, expected: Any, path: str = "report") -> list[str]:
    """Return where two reports differ by more than floating point rounds sums, and the values there."""
    if isinstance(actual, dict) and isinstance(expected, dict) and actual.keys() == expected.keys():
        pairs = [(f"{path}.{key}", actual[key], expected[key]) for key in expected]
    elif isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        pairs = [
            (f"{path}[{at}]", *two) for at, two in enumerate(zip(actual, expected, strict=True))
        ]
    elif isinstance(actual, float) and isinstance(expected, float):
        return (
            []
            if isclose(actual, expected, rel_tol=1e-9, abs_tol=1e-12)
            else [f"{path}: {actual} for {expected}"]
        )
    else:
        return [] if actual == expected else [f"{path}: {actual} for {expected}"]
    return [one for name, mine, other in pairs for one in differing(mine, other, name)]


def rows(columns: str, *lines: str) -> dict[str, list[str]]:
    """Write a small table: names and cells between spaces, `_` for an empty cell."""
    cells = [["" if cell == "_" else cell for cell in line.split()] for line in lines]
    return {
        name: list(column)
        for name, column in zip(columns.split(), zip(*cells, strict=True), strict=True)
    }

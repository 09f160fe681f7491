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


def table_of(trace: Trace, *, beyond: bool = True) -> pl.DataFrame:
    """Write down a trace's main processes; only spans, in the contract's columns, if not `beyond`."""
    main = trace.processes.filter("main").select(
        "process", "host", clock="clock_domain", world="world", own_shard="shard"
    )
    events = trace.events if beyond else trace.spans
    rows = events.collect().join(main, on="process", maintain_order="left")
    rows = rows.with_columns(shard=pl.coalesce("shard", "own_shard"))
    words = [
        pl.col(name).cast(pl.String) for name in ("kind", "op", "name", "role", "communicator")
    ]
    return rows.with_columns(words).select(*CONTRACT, *(BEYOND if beyond else ()))


def comparable(report: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a report what names its files, what follows from clocks, and what reading met."""
    kept = {name: value for name, value in report.items() if name not in {"notes", "clock"}}
    if kept["ledger"]:  # who was awaited is counted beyond the clocks' uncertainty
        kept["ledger"] = {k: v for k, v in kept["ledger"].items() if k != "awaited_share"}
    of_files = {"file", "broken_off"}
    kept["findings"] = [
        finding | {"evidence": {k: v for k, v in finding["evidence"].items() if k not in of_files}}
        for finding in report["findings"]
    ]
    return kept


def differing(found: Any, wanted: Any, place: str = "report") -> list[str]:
    """Return where two reports differ by more than floating point rounds sums, and the values there."""
    if isinstance(found, dict) and isinstance(wanted, dict) and found.keys() == wanted.keys():
        pairs = [(f"{place}.{key}", found[key], wanted[key]) for key in wanted]
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        pairs = [(f"{place}[{at}]", *two) for at, two in enumerate(zip(found, wanted, strict=True))]
    elif isinstance(found, float) and isinstance(wanted, float):
        return (
            []
            if isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-12)
            else [f"{place}: {found} for {wanted}"]
        )
    else:
        return [] if found == wanted else [f"{place}: {found} for {wanted}"]
    return [one for name, mine, other in pairs for one in differing(mine, other, name)]


def rows(columns: str, *lines: str) -> dict[str, list[str]]:
    """Write a small table: names and cells between spaces, `_` for an empty cell."""
    cells = [["" if cell == "_" else cell for cell in line.split()] for line in lines]
    return {
        name: list(column)
        for name, column in zip(columns.split(), zip(*cells, strict=True), strict=True)
    }

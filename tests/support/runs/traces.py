"""Hand-written traces: a few spans of a few ranks, as a reader would return them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracelens.model.trace import (
    CLOCK_COLUMNS,
    COMMUNICATOR_COLUMNS,
    EVENT_COLUMNS,
    PROCESS_COLUMNS,
    THREAD_COLUMNS,
    Trace,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

WORLD = "world-uid"


def span(
    rank: int, kind: str, start_ns: int, end_ns: int | None, name: str | None = None, **more: Any
) -> dict[str, Any]:
    """Write one span of a worker's training thread (or what `more` says)."""
    defaults = {
        "process": rank,
        "rank": rank,
        "role": "worker",
        "type": "span",
        "status": "open" if end_ns is None else "closed",
        "thread": 0,
        "depth": 0,
        "step": -1,
    }
    own = {"kind": kind, "start_ns": start_ns, "end_ns": end_ns, "name": name or kind}
    return defaults | own | more


def call(rank: int, seq: int, start_ns: int, end_ns: int | None, **more: Any) -> dict[str, Any]:
    """Write one allreduce in the world communicator, in flight beside the training thread."""
    defaults: dict[str, Any] = {
        "op": "allreduce",
        "communicator": WORLD,
        "seq": seq,
        "bytes": 8,
        "thread": 1,
    }
    return span(rank, "reduction", start_ns, end_ns, **(defaults | more))


def trace_of(
    rows: Iterable[dict[str, Any]],
    ranks: int = 1,
    shards: int = 0,
    clocks: Iterable[dict[str, Any]] = (),
    **processes: list[Any],
) -> Trace:
    """Put spans into a trace of `ranks` workers (processes 0...) and `shards` servers after them.

    Thread 0 is a thread, thread 1 an in-flight track. `processes` replaces columns of that table.
    """
    events = pl.DataFrame(list(rows), schema=EVENT_COLUMNS)
    count = ranks + shards
    table = {
        "process": range(count),
        "role": ["worker"] * ranks + ["ps"] * shards,
        "rank": [*range(ranks), *range(shards)],
        "world": [count] * count,
        "host": ["host"] * count,
        "clock_domain": ["boot"] * count,
        "pid": range(100, 100 + count),
        "main": [True] * count,
        "complete": [True] * count,
        "file": [f"process-{index}" for index in range(count)],
    }
    threads = [
        {"process": index, "thread": thread, "name": str(thread), "in_flight": thread == 1}
        for index in range(count)
        for thread in (0, 1, 2)
    ]
    world = {"communicator": WORLD, "name": "world", "ranks": list(range(ranks))}
    return Trace(
        events=events.lazy(),
        processes=_complete(table | processes, PROCESS_COLUMNS),
        communicators=pl.DataFrame([world], schema=COMMUNICATOR_COLUMNS),
        threads=pl.DataFrame(threads, schema=THREAD_COLUMNS),
        clocks=_complete(list(clocks), CLOCK_COLUMNS),
    )


def _complete(rows: Any, columns: dict[str, pl.DataType]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema_overrides=columns).pipe(
        lambda frame: pl.concat([pl.DataFrame(schema=columns), frame], how="diagonal")
    )

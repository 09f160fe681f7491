"""Explains a large run rank by rank, as far as its index needs: memory holds one rank's events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from support.large_runs import BUCKETS

from tracelens import load
from tracelens.analyses import imbalance, phases
from tracelens.analyses.phases import Phases, Segments
from tracelens.analyses.result import Report, Result, Summary
from tracelens.lod.run import outlined
from tracelens.trace import (
    ARRIVAL_COLUMNS,
    EVENT_COLUMNS,
    PROCESS_COLUMNS,
    STEP_COLUMNS,
    THREAD_COLUMNS,
    Trace,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.large_runs import LargeRun

    from tracelens.lod.lanes import Lanes
    from tracelens.lod.run import Run


def outlined_by_rank(run: LargeRun, folder: Path) -> tuple[Run, Iterator[Lanes]]:
    """Read and cut every rank; when all had entered a call is known from how they were made."""
    files = sorted(folder.glob("*.arrow"))
    found = [phases.run(_alone(run, rank, file)) for rank, file in enumerate(files)]
    cut = tuple(
        (pieces, rank * run.steps)
        for rank, part in enumerate(found)
        for pieces, _ in part.pieces.cut
    )
    steps = pl.concat([part.pieces.steps for part in found])
    words = pl.concat([part.pieces.words for part in found]).unique()
    whole = Phases(
        Segments(cut, steps, words),
        times=pl.concat([part.times for part in found]),
        hidden=pl.concat([part.hidden for part in found]),
    )
    trace = _trace(run, range(run.ranks), [file.name for file in files]).with_(path=folder)
    summary = Summary(run.ranks, run.ranks, 0, run.steps, run.spans, {})
    spread = imbalance.run(trace, whole)
    results: dict[str, Result] = {"phases": whole, "imbalance": spread}
    return outlined(trace, Report(summary, trace.alignment, None, (), (), results))


def _alone(run: LargeRun, rank: int, file: Path) -> Trace:
    """Read a rank's file."""
    spans = load.spans_of(file, rank, None)
    calls = spans.filter(pl.col("kind") == "reduction")
    last = run.begins[:-1, None] + run.entered
    arrivals = calls.with_columns(
        last_arrival_ns=pl.Series(last.ravel()),
        arrived=pl.lit(run.ranks, pl.Int32),
        expected=pl.lit(run.ranks, pl.Int32),
        last_rank=pl.lit(0, pl.Int32),
    ).with_columns(
        wait_ns=pl.col("last_arrival_ns") - pl.col("start_ns"),
        transfer_ns=pl.col("end_ns") - pl.col("last_arrival_ns"),
    )
    assert calls.height == run.steps * BUCKETS
    trace = _trace(run, [rank], [file.name])
    return trace.with_(events=spans.lazy(), arrivals=arrivals.select(*ARRIVAL_COLUMNS))


def _trace(run: LargeRun, ranks: range | list[int], files: list[str]) -> Trace:
    """Make a trace of some ranks, without events."""
    count = len(ranks)
    processes = {
        "process": ranks,
        "role": ["worker"] * count,
        "rank": ranks,
        "world": [run.ranks] * count,
        "host": [f"host{rank // 8:03}" for rank in ranks],
        "main": [True] * count,
        "training_thread": [0] * count,
        "file": files,
    }
    threads = {
        "process": np.repeat(ranks, 2),
        "thread": [0, 1] * count,
        "in_flight": [False, True] * count,
    }
    steps = {
        "process": np.repeat(ranks, run.steps),
        "rank": np.repeat(ranks, run.steps),
        "step": np.tile(np.arange(run.steps), count),
        "start_ns": np.tile(run.begins[:-1], count),
        "end_ns": np.tile(run.begins[1:], count),
    }
    return Trace(
        events=pl.DataFrame(schema=EVENT_COLUMNS).lazy(),
        processes=_table(processes, PROCESS_COLUMNS),
        threads=_table(threads, THREAD_COLUMNS),
        steps=_table(steps, STEP_COLUMNS),
    )


def _table(columns: dict[str, Any], kinds: dict[str, pl.DataType]) -> pl.DataFrame:
    frame = pl.DataFrame({name: pl.Series(values) for name, values in columns.items()})
    missing = [
        pl.lit(None, kind).alias(name) for name, kind in kinds.items() if name not in columns
    ]
    return frame.with_columns(missing).select(pl.col(n).cast(kind) for n, kind in kinds.items())

"""Simulated runs as device profiles record them: a call begins when its stream gets free."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from tracelens.load import prepare
from tracelens.simulator.allreduce import REDUCTION_TRACK
from tracelens.simulator.synthetic import generate

if TYPE_CHECKING:
    from tracelens.model.trace import Trace
    from tracelens.simulator.scenario import Scenario

__all__ = ["prepare_stream_run"]


def prepare_stream_run(scenario: Scenario) -> Trace:
    """Simulate a run whose reductions begin when the one before has left the rank's stream.

    A kernel that waits for late ranks does so on its stream: the wait is inside of the span.
    """
    trace = generate(scenario)
    is_reduction = (pl.col("kind") == "reduction") & (pl.col("depth") == 0)
    on_stream = is_reduction & (pl.col("thread") == REDUCTION_TRACK)
    if scenario.on_device:
        begin_ns, duration_ns = pl.col("device_start_ns"), pl.col("device_duration_ns")
        moved_begin_ns = _begin_when_free(begin_ns, begin_ns + duration_ns, on_stream)
        columns = {
            "device_start_ns": moved_begin_ns,
            "device_duration_ns": pl.when(on_stream)
            .then(begin_ns + duration_ns - moved_begin_ns)
            .otherwise(duration_ns),
        }
        order = "device_start_ns"
    else:
        columns = {"start_ns": _begin_when_free(pl.col("start_ns"), pl.col("end_ns"), on_stream)}
        order = "start_ns"
    # The simulator adds bucket after bucket: the rows of one process are not in order of time.
    ordered = trace.events.sort("process", order, maintain_order=True)
    events = ordered.with_columns(**columns).sort("process", "start_ns", maintain_order=True)
    return prepare(replace(trace, events=events))


def _begin_when_free(begin: pl.Expr, end: pl.Expr, on_stream: pl.Expr) -> pl.Expr:
    """Return begins, those on the stream not before the end of the call before."""
    free = end.cum_max().shift(1).over("process", on_stream).fill_null(0)
    return pl.when(on_stream).then(pl.max_horizontal(begin, free)).otherwise(begin)

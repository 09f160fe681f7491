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

_STREAM = (pl.col("kind") == "reduction", pl.col("thread") == REDUCTION_TRACK, pl.col("depth") == 0)


def prepare_stream_run(scenario: Scenario) -> Trace:
    """Simulate a run whose reductions begin when the one before has left the rank's stream.

    A kernel that waits for late ranks does so on its stream: the wait is inside of the span.
    """
    return prepare(_begin_when_stream_is_free(generate(scenario)))


def _begin_when_stream_is_free(trace: Trace) -> Trace:
    """Move the begin of each reduction to the end of the one before it, if that is later."""
    on_stream = pl.all_horizontal(*_STREAM)
    begin = pl.col("start_ns")
    # The simulator adds bucket after bucket: the rows of one process are not in order of time.
    ordered = trace.events.sort("process", "start_ns", maintain_order=True)
    free = pl.col("end_ns").cum_max().shift(1).over("process", on_stream).fill_null(0)
    moved = pl.when(on_stream).then(pl.max_horizontal(begin, free)).otherwise(begin)
    return replace(trace, events=ordered.with_columns(start_ns=moved))

"""A simulated run whose stacks were sampled: the late rank is in a function of its own."""

from __future__ import annotations

from functools import cache

import polars as pl
from support.web.stores import LATE, SLOW_RANK, report_of, traced

from tracelens.model.trace import SAMPLE_COLUMNS
from tracelens_dashboard.runs.store import Store

MAIN, STEP, WORK, SLOW = (
    "<module> (/home/me/train.py:90)",
    "train (/home/me/train.py:40)",
    "backward (/home/me/model.py:7)",
    "slow_down (/home/me/faults.py:46)",
)
LATE_RANK = 2


@cache
def sampled() -> Store:
    """Return the run with the slow rank; in backprop, that is in `SLOW` for a third of the time."""
    trace = traced(SLOW_RANK)
    spans = trace.spans.filter(pl.col("kind") == "backprop", pl.col("depth") <= 1).collect()
    rows = [row for span in spans.iter_rows(named=True) for row in _samples(span)]
    table = pl.DataFrame(rows, schema=SAMPLE_COLUMNS, orient="row")
    return Store.from_trace(trace.with_(samples=table), report_of(trace, LATE))


def _samples(span: dict[str, int]) -> list[tuple[object, ...]]:
    """Return what was seen in one span: first the usual work, then, on the late rank, the slow one."""
    process, begin_ns, end_ns = span["process"], span["start_ns"], span["end_ns"]
    middle = end_ns - (end_ns - begin_ns) // 3 if process == LATE_RANK else end_ns
    about = (process, 0, 100 + process, "MainThread")
    usual = (*about, begin_ns, middle, [MAIN, STEP, WORK])
    slow = (*about, middle, end_ns, [MAIN, STEP, SLOW])
    return [usual, slow] if process == LATE_RANK else [usual]

"""What type checkers see of the public API: mypy checks this file in `make check`, and nothing runs it.

Each `assert_type` is a promise to users whose own code is checked with mypy or pyright.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

import tracelens as tl
from tracelens.model.findings import Finding
from tracelens.model.result import Report
from tracelens.model.trace import Trace
from tracelens.replay.whatif import WhatIf

if TYPE_CHECKING:
    import polars as pl


def analyze_a_run(table: pl.DataFrame) -> None:
    """Open a run, analyze it, ask what a change would save."""
    trace = tl.open("traces/today", ranks="0-3", steps="10-20", contained=True)
    assert_type(trace, Trace)
    assert_type(tl.Trace.from_table(table), Trace)
    report = tl.analyze(trace)
    assert_type(report, Report)
    assert_type(report.findings, tuple[Finding, ...])
    assert_type(report.verdict.headline, str)
    assert_type(report.findings[0].saving, float | None)
    assert_type(report.findings[0].ranks, tuple[int, ...])
    assert_type(report.to_dict(), dict[str, Any])
    assert_type(report.to_markdown(), str)
    assert_type(tl.whatif(trace, "rank:1=median"), WhatIf)


@tl.traced
def load_batch(size: int) -> list[int]:
    """Keep its signature under the decorator."""
    return list(range(size))


@tl.traced("augment", kind="data")
def augment(batch: list[int], *, factor: float) -> list[float]:
    """Keep its signature under the decorator with arguments."""
    return [value * factor for value in batch]


def record_a_training() -> None:
    """Record by hand: spans, steps, counters."""
    assert_type(tl.start("traces/today", rank=0, world=2, keep="last:100"), None)
    for number in range(10):
        with tl.step(number, samples=32.0), tl.span("load", kind="data"):
            batch = load_batch(32)
            assert_type(batch, list[int])
            assert_type(augment(batch, factor=0.5), list[float])
        tl.counter("loss", 0.1)
        tl.instant("checkpoint")
    assert_type(tl.stop(), None)


def misuse_the_api() -> None:
    """Be refused by the type checker: an unused `type: ignore` is an error in `make check`."""
    tl.start(rank="0")  # type: ignore[arg-type]
    tl.step("first")  # type: ignore[arg-type]
    tl.open(7)  # type: ignore[arg-type]
    load_batch("32")  # type: ignore[arg-type]
    augment([1])  # type: ignore[call-arg]

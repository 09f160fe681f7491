"""A late rank is told the code that it spends its excess in; what all do alike is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from support.runs.traces import span, trace_of

from tracelens.accounting import phases
from tracelens.analyses.stragglers.location import Culprit, culprit
from tracelens.load import prepare
from tracelens.model.trace import SAMPLE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.model.trace import Trace

MS = 10**6
STEPS, STEP_MS, RANKS = 40, 50, 3
ROOT, LOAD, READ, DECODE = "main (a:1)", "load (b:2)", "read (c:3)", "decode (c:9)"
Frames = tuple[str, ...]


def _run(
    lasting: Callable[[int], int], sampled: Callable[[int, int], list[tuple[int, Frames]]]
) -> Trace:
    """Each step begins with data loading for `lasting(rank)` ms; `sampled` says what is seen."""
    rows, samples = [], []
    for rank in range(RANKS):
        for step in range(STEPS):
            begin = step * STEP_MS * MS
            rows.append(span(rank, "step", begin, begin + STEP_MS * MS, step=step))
            rows.append(span(rank, "data", begin, begin + lasting(rank) * MS, step=step, depth=1))
            for length, frames in sampled(rank, step):
                samples.append((rank, 0, 100 + rank, "Main", begin, begin + length * MS, frames))
                begin += length * MS
    table = pl.DataFrame(samples, schema=SAMPLE_COLUMNS, orient="row")
    return prepare(trace_of(rows, RANKS)).with_(samples=table)


def _culprit(trace: Trace, extra_ms: float) -> Culprit | None:
    return culprit(
        trace, phases.run(trace), (1,), "data", steps=np.arange(STEPS), extra_ns=extra_ms * MS
    )


def test_the_innermost_call_with_most_of_the_excess() -> None:
    """Rank 1 reads for 20 ms more; decoding takes all ranks the same."""
    trace = _run(
        lambda rank: 30 if rank == 1 else 10,
        lambda rank, _: [
            (25 if rank == 1 else 5, (ROOT, LOAD, READ)),
            (5, (ROOT, LOAD, DECODE)),
            (10, (ROOT,)),
        ],
    )
    found = _culprit(trace, 20)
    assert found
    assert found.stack == (ROOT, LOAD, READ)
    assert abs(found.extra_ns - 20 * MS) < 0.2 * MS
    assert found.evidence()["stack"] == [ROOT, LOAD, READ]


def test_an_excess_that_is_spread_is_told_where_it_parts() -> None:
    """Half of it is in each of two calls: their caller is all that can be said."""
    trace = _run(
        lambda rank: 30 if rank == 1 else 10,
        lambda rank, _: [
            (15 if rank == 1 else 5, (ROOT, LOAD, READ)),
            (15 if rank == 1 else 5, (ROOT, LOAD, DECODE)),
        ],
    )
    found = _culprit(trace, 20)
    assert found
    assert found.stack == (ROOT, LOAD)


def test_missed_samples_cost_no_time() -> None:
    """Seen in every fourth step only, the share of a call is the same."""
    trace = _run(
        lambda rank: 30 if rank == 1 else 10,
        lambda rank, step: (
            [] if step % 4 else [(25 if rank == 1 else 5, (ROOT, READ)), (5, (ROOT, DECODE))]
        ),
    )
    found = _culprit(trace, 20)
    assert found
    assert found.stack == (ROOT, READ)
    assert abs(found.extra_ns - 20 * MS) < 0.2 * MS


def test_what_the_samples_do_not_show_is_not_told() -> None:
    """All ranks were seen in the same code for the same time, whatever the spans say."""
    trace = _run(lambda _: 10, lambda *_: [(10, (ROOT, LOAD, READ))])
    assert _culprit(trace, 20) is None


def test_few_samples_tell_nothing() -> None:
    trace = _run(
        lambda rank: 30 if rank == 1 else 10,
        lambda _, step: [(10, (ROOT, READ))] if step < 5 else [],
    )
    assert _culprit(trace, 20) is None


def test_without_samples_nothing_is_asked() -> None:
    trace = _run(lambda _: 10, lambda *_: [])
    assert _culprit(trace, 20) is None

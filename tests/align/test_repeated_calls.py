"""Steps that nothing marks are found by the collectives that come back, or are said to be unknown."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.runs.traces import call, span, trace_of

from tracelens.align import steps
from tracelens.align.repeated_calls import follows_long_gap
from tracelens.model.trace import Trace

MS = 10**6


def run_of(calls: Sequence[tuple[str, int, float]], ranks: int = 2) -> list[dict[str, Any]]:
    """Make calls (operation, bytes, milliseconds of work before), each a millisecond long."""
    rows: list[dict[str, Any]] = []
    for rank in range(ranks):
        begin_ns = 0
        for seq, (op, nbytes, before_ms) in enumerate(calls):
            begin_ns += round(before_ms * MS)
            rows.append(call(rank, seq, begin_ns, begin_ns + MS, op=op, bytes=nbytes, thread=0))
            begin_ns += MS
    return rows


def divide_calls(calls: Sequence[tuple[str, int, float]], ranks: int = 2) -> Trace:
    return steps.divide_into_steps(trace_of(run_of(calls, ranks), ranks=ranks))


def starts_ms(trace: Trace) -> list[float]:
    return [ns / MS for ns in trace.steps.filter(rank=0)["start_ns"].to_list()]


def test_a_call_that_comes_back_ends_a_step() -> None:
    """Steps touch, the last one ends with its call, and what was before the first is start-up."""
    trace = divide_calls([("broadcast", 99, 50), *[("allreduce", 8, 9)] * 6])
    assert starts_ms(trace) == [61, 71, 81, 91, 101]
    assert trace.steps["end_ns"].max() == 111 * MS
    assert trace.steps["step"].unique().sort().to_list() == [0, 1, 2, 3, 4]
    assert "the collectives that they repeat (allreduce of 8 B)" in trace.notes[0].sentence


def test_buckets_of_one_pass_are_one_step() -> None:
    """Equal ones follow each other sooner than the next pass; different ones tell by their size."""
    alike = [("allreduce", 8, wait) for _ in range(6) for wait in (20, 2, 2)]
    assert len(starts_ms(divide_calls(alike))) == 5
    sizes = [("allreduce", 8 * part, 5.0) for _ in range(6) for part in (1, 2, 3)]
    assert len(starts_ms(divide_calls(sizes))) == 5


def test_what_comes_now_and_then_begins_no_step() -> None:
    """An evaluation every tenth step leaves all others as they are."""
    calls = [
        one
        for step in range(40)
        for one in [("allreduce", 8, 9.0), *[("allreduce", 4, 5.0)] * (step % 10 == 9)]
    ]
    assert len(starts_ms(divide_calls(calls))) == 39


@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_noise_divides_no_step(noise: float) -> None:
    drawn = np.random.default_rng(1).lognormal(2, noise, 100)
    assert len(starts_ms(divide_calls([("allreduce", 8, float(ms)) for ms in drawn]))) == 99


@pytest.mark.parametrize(
    "calls",
    [
        [("allreduce", 8, 9.0)] * 3,
        [("allreduce", 8 << (7 * number % 13), 9.0) for number in range(13)],
    ],
    ids=["too few", "no two alike"],
)
def test_without_a_loop_the_run_is_one_step(calls: list[tuple[str, int, float]]) -> None:
    """And a note says that nothing says where steps begin."""
    trace = divide_calls(calls)
    assert trace.steps["step"].to_list() == [0, 0]
    assert "the whole run counts as one" in trace.notes[0].sentence


def test_updates_go_before_calls() -> None:
    """Where other work begins again after an update, a step does; after the last one none does."""
    rows = []
    for rank in range(2):
        for number in range(5):
            begin_ns = 100 * number
            rows += [
                span(rank, "forward", begin_ns, begin_ns + 30),
                span(rank, "backprop", begin_ns + 30, begin_ns + 60),
                call(rank, number, begin_ns + 60, begin_ns + 70, thread=0),
                span(rank, "update", begin_ns + 70, begin_ns + 80),
                span(rank, "update", begin_ns + 80, begin_ns + 90),
            ]
        rows.append(span(rank, "forward", 500, 530))
    trace = steps.divide_into_steps(trace_of(rows, ranks=2))
    assert trace.steps.filter(rank=1)["start_ns"].to_list() == [0, 100, 200, 300, 400]
    assert "the updates that end them" in trace.notes[0].sentence


def test_ranks_that_update_unequally_often_are_divided_by_calls() -> None:
    """Steps of one number must be of one time."""
    rows = run_of([("allreduce", 8, 9)] * 8)
    rows += [span(rank, "update", at, at + 1) for rank in range(2) for at in range(4 + rank)]
    rows += [span(rank, "forward", 2 * MS, 3 * MS) for rank in range(2)]
    trace = steps.divide_into_steps(trace_of(rows, ranks=2))
    assert trace.steps["step"].unique().to_list() == list(range(7))


def test_few_times_are_of_one_sort() -> None:
    """Two messages of a pair of ranks have one time between them, which is neither long nor short."""
    assert follows_long_gap(np.array([])).tolist() == [True]
    assert follows_long_gap(np.array([5e6])).tolist() == [True, False]
    assert follows_long_gap(np.array([1e3, 1e3, 5e6, 1e3])).tolist() == [
        True,
        False,
        False,
        True,
        False,
    ]

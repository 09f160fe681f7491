"""Gradients that are reduced after each micro-batch, though weights are updated after several."""

import pytest
from support.runs.traces import call, span, trace_of

import tracelens as tl
from tracelens.load import prepare
from tracelens.model.findings import Finding

MS = 10**6


def accumulate(passes: int, *, every: bool, steps: int = 20) -> list[Finding]:
    """Return the findings on steps of micro-batches of 10 ms, each reduced in 5 ms, or only the last."""
    rows, begin_ns, seq = [], 0, 0
    for step in range(steps):
        reduced = [number for number in range(passes) if every or number == passes - 1]
        end = begin_ns + (10 * passes + 5 * len(reduced) + 1) * MS
        now_ns = begin_ns
        rows += [span(rank, "step", begin_ns, end, step=step) for rank in range(2)]
        for number in range(passes):
            for rank in range(2):
                rows += [
                    span(rank, "forward", now_ns, now_ns + 4 * MS, step=step, depth=1),
                    span(rank, "backprop", now_ns + 4 * MS, now_ns + 10 * MS, step=step, depth=1),
                ]
                if number in reduced:
                    rows.append(
                        call(
                            rank,
                            seq,
                            now_ns + 10 * MS,
                            now_ns + 15 * MS,
                            step=step,
                            thread=0,
                            depth=1,
                        )
                    )
            seq += number in reduced
            now_ns += (15 if number in reduced else 10) * MS
        rows += [span(rank, "update", now_ns, end, step=step, depth=1) for rank in range(2)]
        begin_ns = end
    report = tl.analyze(prepare(trace_of(rows, ranks=2)))
    return [one for one in report.findings if one.kind == "repeated_reductions"]


@pytest.mark.parametrize("passes", [2, 4])
def test_reductions_of_each_micro_batch_are_told(passes: int) -> None:
    """What is saved is what all but one of them take."""
    (found,) = accumulate(passes, every=True)
    assert found.saving == pytest.approx(5 * (passes - 1) / (15 * passes + 1), abs=0.01)
    assert f"{passes} passes of backprop" in found.sentence


def test_one_reduction_an_update_is_none() -> None:
    """With `no_sync`, or without accumulation."""
    assert accumulate(4, every=False) == []
    assert accumulate(1, every=True) == []

"""Between two updates of a step is a gap only where neither forward nor backprop is."""

from typing import Any, cast

import pytest
from support.runs.traces import call, span, trace_of

from tracelens.analyses.interleaving import Interleaving
from tracelens.load import prepare
from tracelens.model.result import Report
from tracelens.verdicts.report import analyze

MS = 1_000_000
RANKS, STEPS = 4, 40


class Clock:
    """Writes the spans of ranks, one after the other, and lets all of them meet."""

    def __init__(self) -> None:
        self.now = [0] * RANKS
        self.rows: list[dict[str, Any]] = []
        self.met = 0

    def spend(self, kind: str, ms: float, late: int | None = None, **more: Any) -> None:
        """Let every rank do something, and one of them for 8 ms more."""
        for rank in range(RANKS):
            end = self.now[rank] + int((ms + 8 * (rank == late)) * MS)
            self.rows.append(span(rank, kind, self.now[rank], end, **more))
            self.now[rank] = end

    def meet(self, **more: Any) -> None:
        """Reduce for a millisecond after the last rank has come."""
        end = max(self.now) + MS
        for rank in range(RANKS):
            self.rows.append(call(rank, self.met, self.now[rank], end, thread=0, **more))
            self.now[rank] = end
        self.met += 1

    def report(self) -> Report:
        """Analyze what was written."""
        rows = sorted(self.rows, key=lambda row: (row["process"], row["start_ns"], -row["end_ns"]))
        return analyze(prepare(trace_of(rows, RANKS)))


def two_optimizers(late: int | None, gap_ms: float = 0.0) -> Report:
    """Train two networks in turn in every step, each with passes and an optimizer of its own."""
    clock = Clock()
    for step in range(STEPS):
        begin_ns = list(clock.now)
        for _ in range(2):
            clock.spend("forward", 5, step=step)
            clock.spend("backprop", 10, late, step=step)
            clock.meet(step=step)
            clock.spend("update", 2, step=step)
            clock.now = [now + int(gap_ms * MS) for now in clock.now]
            clock.spend("update", 2, step=step)
        clock.rows += [
            span(rank, "step", begin_ns[rank], clock.now[rank], step=step) for rank in range(RANKS)
        ]
    return clock.report()


def train_decorated(late: int | None) -> Report:
    """Load data once, then train with functions of which only the update has a known kind."""
    clock = Clock()
    clock.spend("data", 3)
    for _ in range(STEPS):
        clock.spend("user", 15, late, name="train")
        clock.spend("update", 1)
    return clock.report()


def kinds(report: Report) -> set[str]:
    return {finding.kind for finding in report.findings}


@pytest.mark.parametrize("late", [None, 1], ids=["healthy", "a late rank"])
def test_what_a_second_optimizer_needs_is_no_gap(late: int | None) -> None:
    """Its forward and backprop count as work."""
    report = two_optimizers(late)
    assert "update_gap" not in kinds(report)
    gaps = cast("Interleaving", report.results["interleaving"]).gaps
    assert gaps.filter("within").is_empty()
    assert gaps.height == RANKS * (STEPS - 1)


def test_a_gap_beside_a_second_optimizer_is_told() -> None:
    """Of four updates of a step, two lie apart with nothing between that would be work."""
    report = two_optimizers(None, gap_ms=3)
    (found,) = (one for one in report.findings if one.kind == "update_gap")
    assert found.evidence["median_gap_ns"] == 3 * MS
    assert found.saving == pytest.approx(2 * 3 / (2 * (5 + 10 + 1 + 2 + 3 + 2)), rel=0.02)


@pytest.mark.parametrize("late", [None, 1], ids=["healthy", "a late rank"])
def test_without_known_steps_no_gap_is_told(late: int | None) -> None:
    """A run that counts as one step has all of its updates in it."""
    report = train_decorated(late)
    assert report.summary.steps == 1
    assert "update_gap" not in kinds(report)

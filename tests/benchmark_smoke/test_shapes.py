"""The shapes of loss are planted as large as asked for, and reports on them are judged rightly."""

from pathlib import Path
from typing import Any

import pytest
from benchmarks.shapes.answers import WORDS, Answer, Place
from benchmarks.shapes.bench import AIM, Case, analyze_job, measure_share, solve_amount
from benchmarks.shapes.catalog import list_controls, list_shapes

SHAPES = list_shapes()


@pytest.mark.parametrize("name", SHAPES)
def test_losses_are_as_large_as_asked_for(name: str) -> None:
    setting = Case(name, max(3, SHAPES[name].fewest_ranks), 30, "gaussian", 0).draw_setting()
    amount = solve_amount(SHAPES[name], setting, 0.3 * AIM)
    assert amount is not None
    assert measure_share(SHAPES[name], setting, amount) == pytest.approx(0.3, rel=0.1)


@pytest.mark.parametrize("name", ["control_stream", "control_pipeline"])
def test_tables_are_read(name: str, tmp_path: Path) -> None:
    """All ranks and steps are recognised, and no work of the jobs is outside of steps."""
    setting = Case(name, 3, 0, "gaussian", 0).draw_setting()
    report = analyze_job(list_controls()[name].build(setting), tmp_path / "run.csv")
    assert (report["trace"]["ranks_seen"], report["trace"]["steps"]) == (3, setting.steps)


def report_straggler(rank: int, phase: str, steps: list[int]) -> dict[str, Any]:
    """Return a report whose only finding is a straggler."""
    sentence = f"Rank {rank} is a straggler in {phase}."
    finding = {"kind": "straggler", "phase": phase, "ranks": [rank], "steps": steps}
    summary = {"headline": f"STRAGGLER rank {rank}", "why": sentence, "next": "Look at it."}
    findings = [finding | {"sentence": sentence}]
    return {"verdict": "faults", "summary": summary, "findings": findings}


@pytest.mark.parametrize(
    ("report", "errors"),
    [
        (report_straggler(1, "forward", [50, 52]), []),
        (report_straggler(1, "backprop", [50, 52]), ["phase"]),
        (report_straggler(0, "forward", [50, 52]), ["ranks"]),
        (report_straggler(1, "forward", [0, 99]), ["steps"]),
        (report_straggler(1, "forward", [50, 52]) | {"verdict": "healthy"}, ["healthy"]),
    ],
)
def test_reports_are_judged(report: dict[str, Any], errors: list[str]) -> None:
    place = Place(frozenset({1}), 3, at_once=True, steps=(50, 50), words=WORDS["forward"])
    answer = Answer(frozenset({"fault"}), place)
    assert answer.find_errors(report, 0.3) == errors
    assert answer.find_errors(report, 0.05) == []

"""docs/report.md describes every field of the JSON report and every cause of the waterfall."""

import json
from pathlib import Path
from typing import get_args

import pytest

from tracelens.load import prepare
from tracelens.model.findings import Pattern
from tracelens.model.result import REPORT_FORMAT
from tracelens.reports import to_json
from tracelens.simulator.synthetic import Fault, Scenario, generate
from tracelens.verdicts.report import analyze

PAGE = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
SLOW = Scenario(ranks=4, steps=60, faults=(Fault("backprop", ranks=(2,), factor=1.5),))


@pytest.fixture(scope="module")
def report() -> dict[str, object]:
    """A report with a finding, as a program reads it."""
    loaded: dict[str, object] = json.loads(to_json.render(analyze(prepare(generate(SLOW)))))
    return loaded


def fields(value: object) -> set[str]:
    """Every field name in a value, but not inside `evidence`, `dropped` and `pop`: those vary."""
    if isinstance(value, list):
        return set().union(*map(fields, value))
    if not isinstance(value, dict):
        return set()
    inner = (fields(v) for k, v in value.items() if k not in {"evidence", "dropped", "pop"})
    return set(value).union(*inner)


def test_every_field_is_described(report: dict[str, object]) -> None:
    """No field is printed that the page does not name."""
    assert {name for name in fields(report) if f"`{name}`" not in PAGE} == set()


def test_format_and_first_finding(report: dict[str, object]) -> None:
    """The format is named, and the planted rank is the first finding."""
    assert report["format"] == REPORT_FORMAT
    findings = report["findings"]
    assert isinstance(findings, list)
    assert findings[0]["kind"] == "straggler"
    assert findings[0]["ranks"] == [2]


def test_causes_and_patterns_are_described(report: dict[str, object]) -> None:
    """Every cause of the waterfall and every pattern stands on the page."""
    efficiency = report["efficiency"]
    assert isinstance(efficiency, dict)
    causes = {bar["cause"] for bar in efficiency["waterfall"]}
    assert {word for word in {*causes, *get_args(Pattern)} if f"`{word}`" not in PAGE} == set()

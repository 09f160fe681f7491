"""The JSON for programs: plain values, every field always there, null for what is absent."""

import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from support.runs.analysed import RUNS, report

from tracelens.model.findings import Finding
from tracelens.model.trace import Alignment, HostClock
from tracelens.reports import to_json


def load_rendered(run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(to_json.render(report(RUNS[run][0])))
    return found


@pytest.mark.parametrize("run", RUNS)
def test_fields_are_always_there(run: str) -> None:
    """Top level and findings have the same fields in every run."""
    content = load_rendered(run)
    assert content["format"] == "tracelens.report/3"
    assert set(content) == {
        "format",
        "verdict",
        "summary",
        "trace",
        "clock",
        "efficiency",
        "ledger",
        "life",
        "findings",
        "tables",
        "notes",
    }
    for finding in content["findings"]:
        assert set(finding) == {field.name for field in fields(Finding)} - {"fix"}


@pytest.mark.parametrize("run", RUNS)
def test_shares_sum_to_one(run: str) -> None:
    """Also as written: useful work and all bars are the whole."""
    efficiency = load_rendered(run)["efficiency"]
    bars = [bar["share"] for bar in efficiency["waterfall"]]
    assert efficiency["achieved"] + sum(bars) == pytest.approx(1, abs=1e-12)


def test_what_is_absent_is_null() -> None:
    """A straggler has steps and a price; it has no tensor, and the list of shards is empty."""
    (finding,) = load_rendered("slow rank")["findings"]
    assert finding["steps"] == [20, 49]
    assert finding["ranks"] == [2]
    assert finding["shards"] == []
    assert finding["tensor"] is None
    low, high = finding["interval"]
    assert low <= finding["saving"] <= high


def test_no_number_that_json_lacks() -> None:
    """NaN, infinity and NumPy's numbers come out as null and plain numbers."""
    slow_report = report(RUNS["slow rank"][0])
    odd = {"nan": float("nan"), "count": np.int64(3), "list": (np.float32(0.5), float("inf"))}
    finding = replace(slow_report.findings[0], evidence=odd)
    written = json.loads(to_json.render(replace(slow_report, findings=(finding,))))
    assert written["findings"][0]["evidence"] == {"nan": None, "count": 3, "list": [0.5, None]}


def test_clocks_are_told_by_host() -> None:
    """Offset, drift, uncertainty and jumps of every host."""
    host = HostClock("node7", "boot", -1_500, 12.5, 900, jumps=(40_000,))
    found = replace(report(RUNS["healthy"][0]), clock=Alignment("collective_exits", (host,)))
    assert json.loads(to_json.render(found))["clock"] == {
        "method": "collective_exits",
        "hosts": [
            {
                "host": "node7",
                "offset_ns": -1_500,
                "drift_ppm": 12.5,
                "uncertainty_ns": 900,
                "jumps": [40_000],
            }
        ],
    }

"""No report has a negative duration: time that did not pass is 0, what is not known is null."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from support.runs.analysed import RUNS, report

import tracelens as tl
from tracelens.analyses import analyze
from tracelens.reports import to_json
from tracelens.simulator.synthetic import Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES: Final = sorted(
    run for run in (Path(__file__).parents[2] / "sample_traces").iterdir() if run.is_dir()
)
SIGNED: Final = {
    "offset_ns": "how far a host's clock is ahead of the first host's",
}
WITH_SERVERS: Final = {
    "shared links": Scenario(ranks=8, steps=40, shards=3, shared_links=True, noise=0.2),
    "incast": Scenario(ranks=8, steps=40, shards=3, shared_links=True, noise=0.2, incast=0.5),
    "variables": Scenario(ranks=4, steps=40, shards=2, variables=(1 << 20, 1 << 16, 1 << 18)),
}


def negative(value: Any, where: str = "report") -> Iterator[str]:
    """Yield the places of durations below zero, at any depth."""
    if isinstance(value, dict):
        for name, entry in value.items():
            place = f"{where}.{name}"
            is_duration = name.endswith("_ns") and name not in SIGNED
            if is_duration and isinstance(entry, int | float) and entry < 0:
                yield f"{place}: {entry}"
            yield from negative(entry, place)
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from negative(entry, f"{where}[{number}]")


def test_negative_durations_would_be_found() -> None:
    """In tables, and not where a sign has a meaning."""
    rows = {"clock": [{"offset_ns": -5}], "tables": {"chains": [{"until_use_ns": -1}]}}
    assert list(negative(rows)) == ["report.tables.chains[0].until_use_ns: -1"]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda run: run.name)
def test_of_samples(sample: Path) -> None:
    """All of them."""
    found = json.loads(to_json.render(analyze(tl.open(sample))))
    assert list(negative(found)) == []


@pytest.mark.parametrize("name", [*RUNS, *WITH_SERVERS])
def test_of_simulated_runs(name: str) -> None:
    """Of every sort, with parameter servers of several sorts."""
    scenario = RUNS[name][0] if name in RUNS else WITH_SERVERS[name]
    assert list(negative(json.loads(to_json.render(report(scenario))))) == []

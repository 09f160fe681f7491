"""A comparison as text, Markdown and JSON."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.web.stores import HOT, LATE

from tracelens.comparison import Comparison, RunMetrics, compare
from tracelens.comparison.formats import COMPARISONS
from tracelens.comparison.gates import judge, parse
from tracelens.comparison.series import CATEGORY_OF

PAGE = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()
GATES = [parse(text) for text in ("step_time>+3%", "phase:data>+2ms", "straggler", "wait>+50%")]


def run(factor: float, seed: int, findings: int = 0) -> RunMetrics:
    """A run with all metrics, and many findings."""
    lengths = 1e7 * factor * np.exp(0.02 * np.random.default_rng(seed).standard_normal(100))
    metrics = {"step_time": lengths, "mean_step_time": lengths, "efficiency": np.full(100, 0.75)}
    lengths_by_category = {name: lengths / (2 + index) for index, name in enumerate(CATEGORY_OF)}
    named = tuple(replace(LATE, ranks=(rank,)) for rank in range(findings))
    name = f"/scratch/some/where/traces/2026-11-24T08-00-00/a-long-name-{seed}"
    return RunMetrics(name, 4, 0, 100, metrics | lengths_by_category, (*named, HOT))


def compare_runs() -> Comparison:
    return compare([run(1, seed) for seed in range(1, 9)], run(1.1, 0, findings=20))


def test_text_fits_a_terminal() -> None:
    """At most 30 lines of 80 columns; omitted rows are counted."""
    found = compare_runs()
    lines = COMPARISONS["text"](found, judge(GATES, found)).splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("Verdict  SLOWER: median step")
    assert "and 15 more: --format json" in "\n".join(lines)
    assert any(re.search(r"; \d+ more: --format json", line) for line in lines)


def test_one_baseline_is_not_enough_to_know_noise() -> None:
    found = compare([run(1, 1)], run(1.1, 0))
    for name in COMPARISONS:
        assert "how much equal runs differ" in COMPARISONS[name](found, ())


def test_other_numbers_of_ranks_are_named() -> None:
    found = compare([run(1, 1)], replace(run(1.1, 0), rank_count=8))
    assert "4 and 8 ranks" in COMPARISONS["text"](found, ())


def test_runs_without_steps_are_not_comparable() -> None:
    """In words; findings are listed."""
    found = compare(
        [run(1, 1)], replace(run(1, 0), step_count=0, values_by_metric={}, name="empty")
    )
    text = COMPARISONS["text"](found, ())
    assert "NOT COMPARABLE: empty has no steps" in text
    assert "still there: Hot shard, PS 0" in text


def test_markdown_is_whole() -> None:
    """All metrics, all findings, all gates; recorded names do nothing."""
    found = compare([replace(run(1, 1), name="a|b<script>")], run(1.1, 0, findings=20))
    text = COMPARISONS["markdown"](found, judge(GATES, found))
    assert "| `step_time>+3%` | **failed** |" in text
    assert text.count("\n| new |") == 20
    assert "<script>" not in text


def test_json_says_the_same() -> None:
    """Numbers as they are; what is not known is null."""
    found = compare_runs()
    read = json.loads(COMPARISONS["json"](found, judge(GATES, found)))
    assert read["format"] == "tracelens.comparison/1"
    assert read["verdict"] == "slower"
    assert read["metrics"][0]["change"] == pytest.approx(0.1, abs=0.03)
    assert [gate["state"] for gate in read["gates"]] == ["failed", "passed", "failed", "passed"]
    short = compare(
        [replace(run(1, 1), step_count=9, values_by_metric=metrics_of_nine_steps())], run(1, 0)
    )
    read = json.loads(COMPARISONS["json"](short, ()))
    assert read["metrics"][0]["interval"] is None
    assert read["metrics"][0]["probability"] is None


def metrics_of_nine_steps() -> dict[str, np.ndarray]:
    return {name: series[:9] for name, series in run(1, 1).values_by_metric.items()}


def test_every_field_and_metric_is_described() -> None:
    """docs/compare.md names each."""
    found = compare_runs()
    read = json.loads(COMPARISONS["json"](found, judge(GATES, found)))
    names = set(read) | {metric["name"] for metric in read["metrics"]}
    for part in ("metrics", "findings", "gates", "baselines"):
        names |= set(read[part][0])
    assert sorted(name for name in names if f"`{name}`" not in PAGE) == []

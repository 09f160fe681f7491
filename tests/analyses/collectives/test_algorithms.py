"""Algorithms of a collective have costs of their own, and each is fastest for some sizes."""

from typing import Any, cast

import pytest
from support.runs.traces import call, span, trace_of

from tracelens.analyses.communication import Communication
from tracelens.load import prepare
from tracelens.model.result import Report
from tracelens.reports.tables import make_sections
from tracelens.verdicts.report import analyze

RANKS = 4
SIZES = tuple(1 << power for power in range(6, 21, 2))
COSTS = {"tree": (10_000, 2.0), "ring": (100_000, 0.5)}  # latency in ns, ns per byte
CROSS = 60_000  # bytes: as fast as each other


def sweep(*, named: bool = True) -> Report:
    """Reduce every size by every algorithm, 8 times each."""
    rows, now_ns, seq = [], 0, 0
    for step in range(8):
        begin_ns = now_ns
        for name, (latency, per_byte) in COSTS.items():
            for size in SIZES:
                end = now_ns + 20_000 + latency + int(size * per_byte)
                more: dict[str, Any] = {"bytes": size, "step": step, "thread": 0}
                more |= {"algorithm": name} if named else {}
                rows += [call(rank, seq, now_ns + 20_000, end, **more) for rank in range(RANKS)]
                seq, now_ns = seq + 1, end
        rows += [span(rank, "step", begin_ns, now_ns, step=step) for rank in range(RANKS)]
    ordered = sorted(rows, key=lambda row: (row["process"], row["start_ns"], -row["end_ns"]))
    return analyze(prepare(trace_of(ordered, RANKS)))


def communication(report: Report) -> Communication:
    return cast("Communication", report.results["communication"])


def test_each_algorithm_has_its_line() -> None:
    """One line through all of them would fit none of them."""
    lines = communication(sweep()).lines
    line_of = {row["algorithm"]: row for row in lines.to_dicts()}
    assert {*line_of} == {*COSTS}
    for name, (latency, per_byte) in COSTS.items():
        assert line_of[name]["latency_ns"] == pytest.approx(latency, rel=0.01)
        assert line_of[name]["bus_bandwidth"] == pytest.approx(1.5 / per_byte, rel=0.01)
        assert line_of[name]["misfit"] < 0.01


def test_the_size_at_which_the_winner_changes() -> None:
    """Below, latency decides, above it bandwidth."""
    rows = communication(sweep()).choices.select("from_bytes", "algorithm").rows()
    assert [name for _, name in rows] == ["tree", "ring"]
    assert rows[0][0] == SIZES[0]
    assert rows[1][0] == pytest.approx(CROSS, rel=0.02)


def test_bandwidths_are_by_algorithm() -> None:
    """Every size has a row of each."""
    table = communication(sweep()).bandwidths
    assert table.group_by("from_bytes").len()["len"].to_list() == [2] * len(SIZES)
    shown = {one.title.partition(" (")[0]: one.headings for one in make_sections(sweep().tables)}
    assert "algorithm" in shown["Collectives by size"]
    assert "Fastest algorithm by size, by the cost model" in shown


def test_where_none_was_recorded_nothing_is_told_apart() -> None:
    """The column is null in tables, and not shown."""
    report = sweep(named=False)
    assert communication(report).lines["algorithm"].to_list() == [None]
    assert communication(report).choices.is_empty()
    shown = {section.title: section.headings for section in make_sections(report.tables)}
    assert "algorithm" not in shown["Collectives by size"]

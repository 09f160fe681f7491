"""What holds for every analysis, on every kind of run."""

from dataclasses import FrozenInstanceError, fields
from typing import get_args

import pytest
from support.runs.analysed import RUNS, faults, report, trace

from tracelens.accounting import phases
from tracelens.analyses import ANALYSES, Analysis
from tracelens.facts import Facts
from tracelens.model.finding_kinds import KINDS as FINDING_KINDS
from tracelens.model.findings import Finding, Pattern
from tracelens.schema.vocabulary import KINDS
from tracelens.simulator.synthetic import Scenario
from tracelens.verdicts.report import analyze

LARGE_FACTS = {
    "awaited_messages",
    "call_costs",
    "calls",
    "compute_time",
    "messages",
    "replay",
}
runs = pytest.mark.parametrize("run", RUNS)


@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda analysis: analysis.name)
def test_an_analysis_asks_a_question(analysis: Analysis) -> None:
    """Each has a name of its own and says what it answers."""
    assert analysis.question.endswith("?")
    assert [other.name for other in ANALYSES].count(analysis.name) == 1


@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda analysis: analysis.name)
@runs
def test_results_are_frozen(run: str, analysis: Analysis) -> None:
    """A result holds its findings and cannot be changed."""
    result = report(RUNS[run][0]).results[analysis.name]
    assert isinstance(result.findings, tuple)
    with pytest.raises(FrozenInstanceError):
        result.findings = ()  # type: ignore[misc]  # that it cannot be assigned is the point


@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda analysis: analysis.name)
def test_an_analysis_says_which_large_facts_it_needs(analysis: Analysis) -> None:
    """A fact is kept until the last analysis that declares it has run, in any order."""
    used: set[str] = set()
    for scenario, _ in RUNS.values():
        run = trace(scenario)
        facts = Facts(run, phases.run(run))
        analysis.run(facts)
        used |= vars(facts).keys() & LARGE_FACTS
    assert used <= analysis.needed_facts


@runs
def test_findings_are_well_formed(run: str) -> None:
    """Words are those of the contract, shares are shares, steps are in the run."""
    found = report(RUNS[run][0])
    for finding in found.findings:
        assert finding.kind in FINDING_KINDS
        assert finding.phase is None or finding.phase in KINDS
        assert finding.pattern is None or finding.pattern in get_args(Pattern)
        assert finding.sentence.endswith(".")
        assert finding.steps is None or 0 <= finding.steps[0] <= finding.steps[1]
        _shares_are_shares(finding)


def _shares_are_shares(finding: Finding) -> None:
    for share in (finding.saving, finding.cost, finding.confidence):
        assert share is None or 0 <= share <= 1
    if finding.interval and finding.saving is not None:
        low, high = finding.interval
        assert low - 1e-9 <= finding.saving <= high + 1e-9


@runs
def test_faults_are_the_planted_ones(run: str) -> None:
    """Every kind of run shows what was planted, and nothing else is called wrong."""
    scenario, kinds = RUNS[run]
    assert tuple(finding.kind for finding in faults(report(scenario))) == kinds


@runs
def test_findings_are_in_order(run: str) -> None:
    """Faults come before opportunities, each by what fixing it saves."""
    found = report(RUNS[run][0]).findings
    order = [(finding.category, -(finding.saving or 0.0)) for finding in found]
    assert order == sorted(order)


def test_progress_is_told_to_the_end() -> None:
    """A watcher hears of the start, of every part, never of less than before, and of the end."""
    heard: list[tuple[int, int]] = []
    analyze(trace(Scenario(ranks=2, steps=5)), lambda *told: heard.append(told))
    assert {total for _, total in heard} == {100}
    done = [done for done, _ in heard]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, 100)
    assert len(done) > 1 + len(ANALYSES)


def test_the_report_holds_every_result() -> None:
    """Results are found by the names of their analyses, next to the partition."""
    results = report(RUNS["healthy"][0]).results
    assert set(results) == {"phases", *(analysis.name for analysis in ANALYSES)}
    assert all("findings" in {field.name for field in fields(r)} for r in results.values())  # type: ignore[arg-type]  # the protocol hides that they are dataclasses

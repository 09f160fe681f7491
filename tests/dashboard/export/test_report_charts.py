"""The report's charts support what it says: what findings speak of comes first, and in depth."""

from dataclasses import replace

import pytest
from support.runs.analysed import report, trace
from support.runs.sampled import SLOW, sampled
from support.web.stores import HOT, LATE, open_run, sharded

from tracelens.model.finding_kinds import KINDS
from tracelens.model.findings import Finding
from tracelens.simulator.synthetic import Fault, Scenario
from tracelens_dashboard.export import charts
from tracelens_dashboard.pages import stacks
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.theme import LIGHT

RUN = Scenario(ranks=4, steps=40)
BASE = {
    "Where the time went",
    "Residual by rank and step",
    "Timeline of all ranks",
    "Critical path: ranks per step",
    "Overlapped and exposed communication per step",
    "Collectives: wait and transfer per step",
    "Step time by category",
    "Step time over the run",
}


def titles(store: Store) -> list[str]:
    """List the titles of a run's charts, in their order."""
    return [
        chart.card.title
        for chart in charts.select_charts(store)
        if chart.card.draw(store, LIGHT).figure.data
    ]


def found_in(scenario: Scenario, *findings: Finding) -> Store:
    """Open a run with all its tables, and findings of one's own."""
    return Store.from_trace(trace(scenario), replace(report(scenario), findings=findings))


def test_a_healthy_run_shows_the_whole_of_it() -> None:
    """A chart of every page about all ranks and steps, none that goes into depth."""
    store = found_in(RUN)
    known = {chart.card.title: chart for chart in charts.CHARTS}
    assert set(titles(store)) >= BASE
    assert not any(known[title].needs_finding for title in titles(store))
    assert titles(store)[0] == "Where the time went"


def test_charts_of_the_dearest_finding_come_first() -> None:
    """Two findings each have their charts, ordered by cost."""
    late, exposed = LATE, replace(LATE, kind="exposed_communication", category="opportunity")
    titles_if_late_is_dearest = titles(found_in(RUN, late, exposed))
    titles_if_exposed_is_dearest = titles(found_in(RUN, exposed, late))
    assert (
        set(titles_if_late_is_dearest)
        == set(titles_if_exposed_is_dearest)
        >= BASE | {"Last arrivals at collectives"}
    )
    assert titles_if_late_is_dearest.index("Residual by rank and step") == 1
    assert titles_if_exposed_is_dearest.index("Overlapped and exposed communication per step") == 1
    assert titles_if_exposed_is_dearest.index(
        "Bandwidth by message size"
    ) < titles_if_exposed_is_dearest.index("Residual by rank and step")


def test_a_hot_shard_is_shown_first() -> None:
    """Load, bytes and placements come before what ranks did."""
    found = titles(open_run(replace(RUN, shards=3, shard_bytes=(9 << 20, 1 << 20, 1 << 20)), HOT))
    assert found[1:3] == ["Load per shard", "Bytes between workers and shards"]
    assert "Tensors of the fullest shard" not in titles(sharded())  # requests tell of no tensor


def test_the_verdicts_function_is_in_it() -> None:
    """Where stacks were sampled, of the rank, phase and steps that the finding speaks of."""
    store = sampled()
    assert "Functions by residual against peers" in titles(store)
    assert stacks.FUNCTIONS.draw(store, LIGHT).rows[0]["frame"] == SLOW
    assert stacks.CALLS.draw(store, LIGHT).summary.startswith("Rank 2 takes ")


ABOUT: dict[str, tuple[Scenario, Finding]] = {
    "straggler": (replace(RUN, faults=(Fault("data", (1,), extra_ms=5),)), LATE),
    "updates": (RUN, replace(LATE, kind="update_gap")),
    "network": (RUN, replace(LATE, kind="small_messages")),
    "shards": (replace(RUN, shards=2, variables=(9 << 20, 1 << 20, 1 << 20)), HOT),
}


@pytest.mark.parametrize("about", ABOUT)
def test_every_chart_that_is_chosen_says_something(about: str) -> None:
    """It is drawn, has a sentence, and is no excuse for a missing one."""
    scenario, finding = ABOUT[about]
    store = found_in(scenario, finding)
    chosen = charts.select_charts(store)
    assert any(
        KINDS[finding.kind].group in chart.finding_groups and chart.needs_finding
        for chart in chosen
    )
    for card in (chart.card for chart in chosen):
        assert card.draw(store, LIGHT).summary, card.title
        assert 200 <= card.height_px_of(store) <= 1000, card.title

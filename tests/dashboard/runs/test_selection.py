"""A part of a run is a run of its own to every page, called by what is in the address."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.runs.indexes import explained, recorded

from tracelens import load
from tracelens.model.choice import Choice
from tracelens.simulator.synthetic import Fault, Scenario
from tracelens_dashboard.components import finding_card, selection_bar
from tracelens_dashboard.pages import PAGES, Page, compare, scaling
from tracelens_dashboard.runs import selection
from tracelens_dashboard.runs.catalog import Runs
from tracelens_dashboard.runs.selection import Selection
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.view import state
from tracelens_dashboard.view.state import NO_RUN, ViewState

LIMIT_S = 300.0
ID = "0123456789ab"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Two runs; of the first, rank 2 is slow in some steps."""
    folder = tmp_path_factory.mktemp("runs")
    slow = Fault("backprop", (2,), steps=(20, 39), factor=1.6)
    for name, faults in (("late", (slow,)), ("quiet", ())):
        explained(recorded(folder / name, Scenario(ranks=4, steps=60, faults=faults)))
    return Runs([folder])


def part_of(runs: Runs, name: str, ranks: str | None, steps: str | None) -> Store:
    """Open a part of a run as a page does."""
    run = next(entry.run_key for entry in runs.list_entries() if entry.name == name)
    entry = runs.find_entry(Selection(run, Choice.parse(ranks, steps)).address_key)
    assert entry
    found = runs.open_store(entry, LIMIT_S)
    assert found, entry.stage
    return found


@given(st.text(max_size=60))
def test_no_address_can_make_reading_fail(text: str) -> None:
    """What names no part of a run is a run that is not served."""
    found = state.read(f"?run={text}").run_key
    assert found in {None, NO_RUN} or selection.read(found) is not None


@pytest.mark.parametrize("key", [ID, f"{ID}~r0-3,7", f"{ID}~s5-", f"{ID}~r1~s5-9", "~r0", "~s1-2"])
def test_addresses_are_read_as_they_are_written(key: str) -> None:
    """Also of a run that is served alone, which has no id."""
    found = selection.read(key)
    assert found
    assert found.address_key == key
    assert state.read(f"?{ViewState(run_key=key).query_string}").run_key == key


@pytest.mark.parametrize("key", [f"{ID}~r", f"{ID}~r9-3", f"{ID}~s1~r1", "abc", f"{ID}~t1"])
def test_other_addresses_name_no_run(key: str) -> None:
    """They are not taken for the run as a whole."""
    assert selection.read(key) is None
    assert state.read(f"?run={key}").run_key == NO_RUN


def test_ranks_and_steps_of_a_run(runs: Runs) -> None:
    """All that pages ask for is of them; links lead on within them."""
    selected = part_of(runs, "late", "1-2", "15-59")
    assert selected.ranks == (1, 2)
    assert selected.step_windows["step"].to_list() == list(range(15, 60))
    assert selected.residuals_of_category("backprop").ranks == (1, 2)
    (fault,) = [finding for finding in selected.report.findings if finding.category == "fault"]
    assert fault.ranks == (2,)
    assert str(selected.run_key) in str(finding_card.card(selected, fault))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in (compare, scaling)], ids=lambda page: page.TITLE
)
def test_every_page_shows_a_part(runs: Runs, page: Page) -> None:
    """Of its ranks, and of its steps; what is about other runs, too, asks the server for these."""
    part = part_of(runs, "late", "1-2", "15-59")
    assert page.layout(part, ViewState(run_key=part.run_key))


def test_steps_without_a_fault_have_none(runs: Runs) -> None:
    """Other ranks' numbers are those of the same steps."""
    part = part_of(runs, "late", None, "0-15")
    assert [one for one in part.report.findings if one.category == "fault"] == []


def test_a_part_that_is_not_there_says_so(runs: Runs) -> None:
    """A sentence replaces the page."""
    run = runs.list_entries()[0].run_key
    entry = runs.find_entry(f"{run}~s70-80")
    assert entry
    assert runs.open_store(entry, LIMIT_S) is None
    assert entry.stage.kind == "failed"
    assert "it has steps 0 to 59" in entry.stage.failure_sentence


def test_a_run_that_is_served_alone(tmp_path: Path) -> None:
    """Its parts are asked for as those of others are."""
    folder = recorded(tmp_path / "run", Scenario(ranks=4, steps=40))
    served = Runs.from_store(Store.open(folder, lambda: load.open(folder)))
    entry = served.find_entry("~r2~s20-39")
    assert entry
    part = served.open_store(entry, LIMIT_S)
    assert part
    assert part.ranks == (2,)
    assert served.find_entry(ID) is None
    assert served.trace_folder_of("~r2") == folder  # which the page Live watches
    absent = served.find_entry("~r9")
    assert absent
    assert served.open_store(absent, LIMIT_S) is None
    assert absent.stage.failure_sentence.endswith("it has ranks 0-3.")


def test_hosts_are_groups(tmp_path: Path) -> None:
    """Of a run on several hosts, each is named with its ranks."""
    folder = recorded(tmp_path / "run", Scenario(ranks=4, ranks_per_host=2, steps=10))
    store = Store.open(folder, lambda: load.open(folder))
    assert sorted(ranks for _, ranks in selection_bar.groups(store)) == ["0-1", "2-3"]


def test_what_is_compared_with_is_the_same_part() -> None:
    """Steps of one run are not compared with all of another."""
    view = ViewState(run_key=f"{ID}~s20-39", baseline_ids=("ba9876543210", "feedfeedfeed"))
    assert view.baseline_keys == ("ba9876543210~s20-39", "feedfeedfeed~s20-39")
    assert ViewState(run_key=ID, baseline_ids=("ba9876543210",)).baseline_keys == ("ba9876543210",)

"""A finding leads to the rows and the window in which it can be seen."""

from dataclasses import replace
from urllib.parse import urlsplit

import numpy as np
import pytest
from support.web.stores import HOT, LATE, SLOW_RANK, open_run, sharded, slow_rank, traced
from support.web.views import view_of

from tracelens.lod import residuals
from tracelens.model.finding_kinds import KINDS
from tracelens.model.findings import Finding
from tracelens.simulator.synthetic import Scenario
from tracelens_dashboard.components import finding_card
from tracelens_dashboard.figures import axes, stragglers
from tracelens_dashboard.pages import PAGES, overview
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.view import finding_pages, links
from tracelens_dashboard.view.state import ViewState


def steps_in(store: Store, view: ViewState) -> list[int]:
    """List the steps that lie wholly in a view."""
    assert view.start_ns is not None
    assert view.end_ns is not None
    origin = store.run_window.start_ns
    steps_inside = store.step_windows.filter(
        (store.step_windows["start_ns"] >= origin + view.start_ns)
        & (store.step_windows["end_ns"] <= origin + view.end_ns)
    )
    return steps_inside["step"].to_list()


def test_a_late_rank_is_pinned_in_its_steps() -> None:
    """The link pins rank 2, marks its steps, and shows them with a small margin."""
    store = slow_rank()
    link = links.to_timeline(store, LATE)
    assert link.startswith("/timeline?")
    view = view_of(link)
    assert view.pinned_ranks == (2,)
    assert view.marked_steps == (20, 39)
    assert set(range(20, 40)) <= set(steps_in(store, view))
    assert len(steps_in(store, view)) <= 24


def test_the_worst_step_is_one_of_its_steps() -> None:
    """The second link shows a single step, one in which the rank was late."""
    store = slow_rank()
    link = links.to_worst_step(store, LATE)
    assert link is not None
    shown = steps_in(store, view_of(link))
    assert len(shown) == 1
    assert 20 <= shown[0] <= 39


def test_a_hot_shard_leads_to_its_page() -> None:
    """A PS finding marks its shard on the shards' page."""
    assert links.to_shard(sharded(), HOT) == "/shards?shard=0"
    step = links.to_worst_step(sharded(), HOT)
    assert step is not None
    assert len(steps_in(sharded(), view_of(step))) == 1
    assert links.to_timeline(sharded(), HOT) == "/timeline"


def test_a_slow_host_pins_its_ranks() -> None:
    """A finding that names only a host pins the ranks on it."""
    store = slow_rank()
    finding = replace(LATE, ranks=(), hosts=(store.host_by_rank[1],), steps=None)
    assert view_of(links.to_timeline(store, finding)).pinned_ranks == (0, 1, 2, 3)


def test_ranks_that_are_not_in_the_trace_are_left_out() -> None:
    """A missing rank can be named by a finding, but not pinned."""
    finding = replace(LATE, ranks=(2, 77), steps=(900, 950))
    view = view_of(links.to_timeline(slow_rank(), finding))
    assert view.pinned_ranks == (2,)
    assert view.start_ns is None


def test_titles_say_who_what_and_where() -> None:
    """The headline is clear without its sentence."""
    assert finding_card.title(LATE) == "Straggler: rank 2, backprop, steps 20\N{EN DASH}39"
    assert finding_card.title(HOT) == "Hot shard: PS shard 0"
    nobody = replace(LATE, kind="exposed_communication", ranks=(), phase=None, steps=None)
    assert finding_card.title(nobody) == "Exposed communication"


def test_of_several_runs_links_name_theirs() -> None:
    """A server of several runs names the run in every link."""
    store = Store(slow_rank().run, traced(SLOW_RANK), "0123456789ab")
    ways = [
        links.to_timeline(store, LATE),
        links.to_worst_step(store, LATE) or "",
        links.to_shard(store, HOT),
        links.to_moment(store, store.run_window, (0,)),
        links.to_step(store, 3),
    ]
    assert {view_of(way).run_key for way in ways} == {"0123456789ab"}
    assert view_of(links.to_timeline(slow_rank(), LATE)).run_key is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_finding_that_names_nobody_leads_somewhere(kind: str) -> None:
    """Its card leads to a step, or to the timeline; each way is a page that there is."""
    finding = Finding(kind=kind, category="opportunity", sentence="So it is.", saving=0.1)
    paths = {page.PATH for page in PAGES}
    ways = finding_card._link_places(slow_rank(), finding)
    found = [str(vars(way)["href"]) for way in ways]
    targets = [finding_card._target(slow_rank(), finding), *found]
    assert {urlsplit(target).path for target in targets} <= paths
    assert len(targets) >= 2


def test_exposed_transfer_leads_to_the_step_with_most_of_it() -> None:
    """Within the finding's steps, if it has some; pinned is the rank with most of it."""
    store = slow_rank()
    transfer_ns = store.category_times.sum_time_ns(["transfer"])
    view = view_of(links.to_step_with_most(store, "transfer", (5, 9)))
    assert view.marked_steps == (5, 9)
    (step,) = steps_in(store, view)
    assert transfer_ns[:, step].sum() == transfer_ns[:, 5:10].sum(axis=0).max()
    assert view.pinned_ranks == (int(transfer_ns[:, step].argmax()),)


def test_waiting_leads_to_who_is_late() -> None:
    """Not to those that wait: rank 2 is late in steps 20-39."""
    view = view_of(links.to_step_with_most(slow_rank(), "wait"))
    assert view.pinned_ranks == (2,)
    assert 20 <= steps_in(slow_rank(), view)[0] <= 39
    assert links.to_step_with_most(slow_rank(), "ps_queue") is None


def test_bars_and_cells_of_the_overview_lead_to_a_step() -> None:
    """A cause leads to its worst step, a cell to its rank; of a host's, to the latest one."""
    store = slow_rank()
    late = view_of(overview._link_to_loss(store, {"customdata": "late_ranks"}))
    assert late.pinned_ranks == (2,)
    assert overview._link_to_loss(store, {"customdata": ""}) is None
    cell = view_of(overview._link_to_cell(store, {"y": "rank 1", "x": 25}))
    assert (cell.pinned_ranks, cell.marked_steps) == ((1,), (25, 25))
    assert stragglers.worst_cell(store.residuals, [0, 1, 2, 3], 25) == (2, 25)
    store = open_run(Scenario(ranks=overview.MOST_RANK_ROWS + 8, steps=3))
    hosts = sorted(set(store.host_by_rank.values()))
    rows = [row for host in hosts for row in overview._find_rows(store, host)]
    assert sorted(rows) == list(range(overview.MOST_RANK_ROWS + 8))


def test_of_a_long_run_a_cell_leads_to_its_latest_step() -> None:
    """Where steps share a column, not to its first one."""
    own = np.ones((2, 4 * axes.MOST_COLUMNS))
    own[1, 402] = 9.0
    late = residuals.compare(own, (0, 1), tuple(range(own.shape[1])))
    assert stragglers.worst_cell(late, [0, 1], 400) == (1, 402)


def test_pages_of_findings_exist() -> None:
    """Each is of a kind that there is; a link to a page that is not there would lead nowhere."""
    paths = {page.PATH for page in PAGES}
    assert {page.path for page in finding_pages.EVIDENCE_PAGES.values()} <= paths
    assert set(finding_pages.ALSO_SHOWN_ON) <= paths
    named = {*finding_pages.EVIDENCE_PAGES, *set.union(*finding_pages.ALSO_SHOWN_ON.values())}
    assert named <= set(KINDS)

"""A finding leads to the rows and the window in which it can be seen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from support.stores import HOT, LATE, SLOW_RANK, sharded, slow_rank, traced
from support.views import view_of

from tracelens_dashboard import links
from tracelens_dashboard.components import finding_card
from tracelens_dashboard.store import Store

if TYPE_CHECKING:
    from tracelens_dashboard.state import ViewState


def steps_in(store: Store, view: ViewState) -> list[int]:
    """List the steps that lie wholly in a view."""
    assert view.start_ns is not None
    assert view.end_ns is not None
    origin = store.whole.start_ns
    inside = store.windows.filter(
        (store.windows["start_ns"] >= origin + view.start_ns)
        & (store.windows["end_ns"] <= origin + view.end_ns)
    )
    return inside["step"].to_list()


def test_a_late_rank_is_pinned_in_its_steps() -> None:
    """The link pins rank 2, marks its steps, and shows them with a small margin."""
    store = slow_rank()
    link = links.to_timeline(store, LATE)
    assert link.startswith("/timeline?")
    view = view_of(link)
    assert view.pins == (2,)
    assert view.steps == (20, 39)
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
    finding = replace(LATE, ranks=(), hosts=(store.hosts[1],), steps=None)
    assert view_of(links.to_timeline(store, finding)).pins == (0, 1, 2, 3)


def test_ranks_that_are_not_in_the_trace_are_left_out() -> None:
    """A missing rank can be named by a finding, but not pinned."""
    finding = replace(LATE, ranks=(2, 77), steps=(900, 950))
    view = view_of(links.to_timeline(slow_rank(), finding))
    assert view.pins == (2,)
    assert view.start_ns is None


def test_titles_say_who_what_and_where() -> None:
    """The headline needs no sentence beside it."""
    assert finding_card.title(LATE) == "Rank 2 late: backprop, steps 20-39"
    assert finding_card.title(HOT) == "Shard 0: overloaded shard"
    nobody = replace(LATE, kind="exposed_communication", ranks=(), phase=None, steps=None)
    assert finding_card.title(nobody) == "Communication not hidden"


def test_of_several_runs_links_name_theirs() -> None:
    """Where several runs are served, every link says of which run it is."""
    store = Store(slow_rank().run, traced(SLOW_RANK), "0123456789ab")
    ways = [
        links.to_timeline(store, LATE),
        links.to_worst_step(store, LATE) or "",
        links.to_shard(store, HOT),
        links.to_span(store, 0, (0,)),
        links.to_step(store, 3),
    ]
    assert {view_of(way).run for way in ways} == {"0123456789ab"}
    assert view_of(links.to_timeline(slow_rank(), LATE)).run is None

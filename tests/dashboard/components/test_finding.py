"""From one span that is called as asked to the next, over all processes of a run, and back again."""

import json

import pytest
from plotly.utils import PlotlyJSONEncoder
from support.web.callbacks import call
from support.web.stores import report_of, sharded, slow_rank
from support.web.views import view_of

from tracelens.load import prepare
from tracelens.simulator.synthetic import Scenario, generate
from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.components.timeline import finding
from tracelens_dashboard.components.timeline.finding import Hit
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.view.state import LONGEST_SEARCH, ViewState
from tracelens_dashboard.view.viewport import Position


def walked(store: Store, asked: str, way: int, steps: int) -> list[Hit]:
    hits: list[Hit] = []
    for _ in range(steps):
        hit = finding.find_next_hit(store, asked, hits[-1].position if hits else None, way)
        assert hit
        hits.append(hit)
    return hits


@pytest.mark.parametrize("way", [pytest.param(1, marks=pytest.mark.slow), -1])
def test_all_are_visited_once_and_then_again(way: int) -> None:
    """As many as there are, each at its own begin, on the rank that recorded it."""
    trace = prepare(generate(Scenario(ranks=4, steps=15)))
    store = Store.from_trace(trace, report_of(trace))
    recorded = {
        (rank, row["start_ns"])
        for rank in store.ranks
        for row in store.spans_of_process(rank).filter(bucket=1).iter_rows(named=True)
    }
    total = len(recorded)
    hits = walked(store, "bucket 1", way, total + 1)
    assert {(hit.position.scene_row, hit.position.moment_ns) for hit in hits} == recorded
    assert {hit.match_count for hit in hits} == {total}
    numbers = [hit.match_number for hit in hits]
    assert numbers[:total] == list(range(1, total + 1))[::way]
    assert hits[-1] == hits[0]


def test_it_goes_on_from_where_one_is() -> None:
    """From a moment on a rank to the next one there, and from the span itself back."""
    store = slow_rank()
    span = store.spans_of_process(2).filter(kind="backprop", step=30).row(0, named=True)
    hit = finding.find_next_hit(store, "backprop", Position(2, span["start_ns"] - 1), 1)
    assert hit
    assert (hit.position.scene_row, hit.position.moment_ns, hit.end_ns) == (
        2,
        span["start_ns"],
        span["end_ns"],
    )
    next_hit = finding.find_next_hit(store, "backprop", hit.position, 1)
    assert next_hit
    assert next_hit.position.moment_ns > span["end_ns"]
    assert finding.find_next_hit(store, "backprop", next_hit.position, -1) == hit


def test_shards_are_searched_too() -> None:
    """What only servers do is found on their tracks."""
    store = sharded()
    hit = finding.find_next_hit(store, "aggregate", None, 1)
    assert hit
    assert store.scene.span_lanes.owners[hit.position.scene_row].role == "ps"
    assert finding.find_next_hit(store, "no such span", None, 1) is None


def test_a_found_span_has_a_link_that_selects_it() -> None:
    """Its process is opened, and the track is found again by what was asked for."""
    store = slow_rank()
    page = json.loads(json.dumps(finding.list_matches(store, "backprop"), cls=PlotlyJSONEncoder))
    cells = page["props"]["children"][2]["props"]["children"][0]["props"]["children"]
    link = cells[-1]["props"]["children"]["props"]["href"]
    view = view_of(link)
    assert (view.opened_row_keys, view.searched_name) == (("2",), "backprop")
    chosen = finding.resolve_selection(store, view)
    assert chosen
    event = store.find_event_at(
        2, chosen["track"] or 0, store.run_window.start_ns + (chosen["at"] or 0)
    )
    assert event
    assert event["kind"] == "backprop"
    assert event["end_ns"] - event["start_ns"] == max(
        row["end_ns"] - row["start_ns"]
        for row in store.spans_of_process(2).filter(kind="backprop").iter_rows(named=True)
    )


def test_a_key_selects_opens_and_leads_there() -> None:
    """What the browser posts is answered with all that changes."""
    app = create_app(slow_rank())
    pressed = {"key": "n", "presses": 1, "text": "bucket 1"}
    values = {"timeline-key.data": pressed, "timeline-opened.data": ["3"]}
    output = next(
        entry["output"].removeprefix("..").split("...")[0]
        for entry in app.server.test_client().get("/_dash-dependencies").get_json()
        if "timeline-hit" in entry["output"]
    )
    answer = call(app, output, values).get_json()["response"]
    assert answer["timeline-hit"]["children"].startswith("1 of ")
    said = json.dumps(answer)
    assert '"3", "0"' in said
    assert "timeline-goto" in said


@pytest.mark.parametrize("junk", [None, 3, [], {"a": 1}, "", "   "])
def test_nothing_asked_finds_nothing(junk: object) -> None:
    assert finding.read_search(junk) == ""
    assert len(finding.read_search("x" * 500)) == LONGEST_SEARCH
    view = ViewState(searched_name="backprop", selected_point=(0, 0))
    assert finding.resolve_selection(slow_rank(), view) == {"lane": 0, "at": 0}

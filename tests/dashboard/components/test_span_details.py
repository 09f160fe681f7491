"""A click says what ran there, how long, how that compares, and what was recorded around it."""

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dash import html
from dash.development.base_component import Component
from plotly.utils import PlotlyJSONEncoder
from support.web.stores import SLOW_RANK, devices, open_run, sharded, slow_rank, traced

from tracelens.accounting import phases
from tracelens.simulator.synthetic import Scenario
from tracelens_dashboard import text
from tracelens_dashboard.components.timeline import finding, inspector, neighbours
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.view import viewport
from tracelens_dashboard.view.viewport import Position


def details_as_sent(store: Store, lane: int, at_ns: int, track: int | None = None) -> str:
    """Write the details as they are sent to the browser."""
    return json.dumps(
        inspector.span_details(store, Position(lane, at_ns, track)), cls=PlotlyJSONEncoder
    )


def test_the_planted_phase_is_named_and_compared() -> None:
    """In rank 2's long backprop: its name, its time, and the shorter median of all ranks."""
    store = slow_rank()
    mine = phases.run(traced(SLOW_RANK)).segments.filter(rank=2, step=25, category="backprop")
    page = details_as_sent(store, 2, mine["start_ns"][0] + 1000)
    assert "backprop on rank 2 in step 25" in page
    assert "peers' median: 10" in page
    assert "Recorded spans at this time" in page
    assert "/timeline?" in page


def test_what_ran_beside_the_code_is_listed() -> None:
    """A reduction in flight under backprop appears with its size and sequence number."""
    store = slow_rank()
    spans = traced(SLOW_RANK).spans.collect()
    bucket = spans.filter(process=0, step=5, kind="reduction", bucket=0)
    page = details_as_sent(store, 0, bucket["start_ns"][0] + 1000)
    assert "backprop on rank 0 in step 5" in page
    assert "allreduce" in page
    assert "4.0 MiB" in page


def test_a_shard_shows_its_request() -> None:
    """On a shard's row: the operation, who asked, and how many bytes."""
    store = sharded()
    lanes = store.scene.span_lanes
    lane = next(i for i, owner in enumerate(lanes.owners) if owner.track_name == "serve")
    first = int(lanes.starts_ns[lanes.item_offsets[lane]])
    page = details_as_sent(store, lane, first)
    assert "server: aggregate on PS shard 0 in step 0" in page
    assert "peer" in page
    assert "24.0 MiB" in page


def test_a_stream_shows_what_ran_on_it() -> None:
    """On a stream's row: the reduction, with its size, when the device did it."""
    store = devices()
    lanes = store.scene.span_lanes
    lane = next(
        i for i, owner in enumerate(lanes.owners) if owner.track_name.endswith("reductions")
    )
    first = int(lanes.starts_ns[lanes.item_offsets[lane]])
    page = details_as_sent(store, lane, first)
    assert "on rank 0, cuda:0 reductions in step 0" in page
    assert "allreduce" in page
    assert "4.0 MiB" in page
    assert "bucket 0" in page


def test_where_nothing_was_recorded_it_says_so() -> None:
    """Before the start there is nothing, and that is what it says."""
    assert "Nothing recorded on rank 1" in details_as_sent(slow_rank(), 1, 0)


def test_a_reduction_in_flight_shows_what_was_recorded() -> None:
    """In its track of the opened rank: its name, kind, and size, though backprop hides it."""
    store = slow_rank()
    spans = traced(SLOW_RANK).spans.collect()
    bucket = spans.filter(process=0, step=5, kind="reduction", bucket=1)
    lanes = store.open_process_tracks(0).scene.span_lanes
    moment_ns = bucket["start_ns"][0] + 1
    tracks = range(len(lanes))
    track = next(i for i in tracks if "reductions" in lanes.owners[i].track_name)
    page = details_as_sent(store, 0, moment_ns, track)
    assert "on rank 0, reductions in step 5" in page
    assert "allreduce" in page
    beside = details_as_sent(store, 0, int(store.run_window.start_ns), track)
    assert "Nothing recorded on rank 0, reductions" in beside
    assert "Nothing recorded" in details_as_sent(store, 0, moment_ns, 99)


def reduction(store: Store, rank: int, step: int) -> tuple[Position, dict[str, Any]]:
    """Find the last reduction of a step: its position in a rank's tracks, and its event."""
    spans = store.spans_of_process(rank).filter(step=step, kind="reduction").sort("seq")
    event = spans.row(-1, named=True)
    lanes = store.open_process_tracks(rank).scene.span_lanes
    track = next(i for i, lane in enumerate(lanes.owners) if lane.track_name == "reductions")
    return Position(rank, event["start_ns"], track), event


def parts_of(page: Component, kind: type[Component]) -> list[Component]:
    """Return the components of a kind, from the top on."""
    every = page._traverse()  # type: ignore[no-untyped-call]
    return [one for one in every if isinstance(one, kind)]


def text_of(part: Component) -> str:
    """Write a component as text, in which signs are as they are shown."""
    return json.dumps(part, cls=PlotlyJSONEncoder, ensure_ascii=False)


def spans_led_to(page: Component) -> list[dict[str, int]]:
    """List the selections of a panel's buttons, from top to bottom."""
    found = parts_of(page, html.Button)
    given = [getattr(one, "data-span", None) for one in found]
    return [json.loads(text) for text in given if text]


def test_the_step_stands_beside_the_median() -> None:
    """Its length on this rank, on the median rank, and that of the median step of the run."""
    store = slow_rank()
    position, _ = reduction(store, 0, 25)
    page = details_as_sent(store, *position)
    lengths = store.category_times.step_ns_by_rank(25)
    usual = [f"median {what}" for what in ("rank", "step")]
    assert all(word in page for word in ("Step 25", *usual))
    for ns in (
        lengths[0],
        float(np.median(list(lengths.values()))),
        store.category_times.median_step_ns,
    ):
        assert text.duration(ns) in page
    steps = store.category_times.sum_time_ns(store.category_times.categories)[0]
    assert lengths[0] == steps[store.category_times.steps.index(25)]
    assert store.category_times.step_ns_by_rank(10**6) == {}


def test_members_of_a_collective_are_listed_by_arrival() -> None:
    """The last one first, marked, with each rank's begin after the first and before the last."""
    store = slow_rank()
    position, event = reduction(store, 0, 25)
    begins = {
        rank: store.spans_of_process(rank).filter(seq=event["seq"], kind="reduction")["start_ns"][0]
        for rank in range(4)
    }
    section = neighbours.members_section(store, position)
    assert section is not None
    rows = parts_of(section, html.Tr)[1:]
    order = sorted(begins, key=lambda rank: -begins[rank])
    assert order[0] == 2
    last_begin_ns, first_begin_ns = begins[order[0]], begins[order[-1]]
    for rank, row in zip(order, rows, strict=True):
        row_text = text_of(row)
        assert f"rank {rank}" in row_text
        assert text.duration(begins[rank] - first_begin_ns) in row_text
        assert text.duration(last_begin_ns - begins[rank]) in row_text
        assert ("badge" in row_text) == (rank == 2)
        assert ("chosen" in row_text) == (rank == 0)
    led = spans_led_to(section)
    assert [one["row"] for one in led] == order
    for one in led:
        hit = finding.hit_of(store, one, inside=True)
        assert hit is not None
        event_there = store.find_event_at(
            *hit.position[:1], hit.position.track_index or 0, hit.position.moment_ns
        )
        assert event_there is not None
        assert (event_there["kind"], event_there["seq"]) == ("reduction", event["seq"])


def test_of_many_members_the_last_the_first_and_the_own_one_are_listed() -> None:
    """What is left out is counted between them."""
    store = open_run(Scenario(ranks=60, steps=3))
    position, event = reduction(store, 7, 1)
    section = neighbours.members_section(store, position)
    assert section is not None
    led = spans_led_to(section)
    call = viewport.call_of(store, position)
    assert call is not None
    order = sorted(call.entered_ns_by_rank, key=lambda rank: -call.entered_ns_by_rank[rank])
    rows = [one["row"] for one in led]
    assert rows[: neighbours.MOST_MEMBERS - 2] == order[: neighbours.MOST_MEMBERS - 2]
    assert rows[-1] == order[-1]
    assert 7 in rows
    section_text = text_of(section)
    left_out = [int(number) for number in re.findall(r"(\d+) more rank", section_text)]
    assert sum(left_out) + len(led) == 60
    assert f"{event['op']} {event['seq']}" in section_text


def test_the_critical_path_before_and_after_a_span() -> None:
    """While rank 2 is slow, its backprop is on the path, and that of a rank which waits is not."""
    store = slow_rank()
    mine = phases.run(traced(SLOW_RANK)).segments.filter(step=25, category="backprop")
    ends = {one["rank"]: (one["start_ns"], one["end_ns"]) for one in mine.to_dicts()}
    slow = neighbours.path_section(store, Position(2, ends[2][0]), ends[2])
    section_of_other = neighbours.path_section(store, Position(0, ends[0][0]), ends[0])
    assert slow is not None
    assert section_of_other is not None
    assert "100 % of this span" in text_of(slow)
    assert "This span is not on it" in text_of(section_of_other)
    link_before, link_after = spans_led_to(slow)
    origin = store.run_window.start_ns
    assert link_before["until"] + origin == ends[2][0]
    assert link_after["at"] + origin == ends[2][1]
    assert link_before["row"] == 2
    assert neighbours.path_section(sharded_without_path(), Position(0, ends[0][0]), ends[0]) is None


def sharded_without_path() -> Store:
    """Return a run without a known critical path."""
    store = open_run(SLOW_RANK)
    tables = {name: one for name, one in store.run.tables.items() if "critical" not in name}
    return Store(replace(store.run, tables=tables), store.span_source)


@pytest.mark.parametrize("span", [{}, {"row": 99, "at": 1, "until": 2}, {"row": "x", "at": []}])
def test_what_leads_nowhere_selects_nothing(span: dict[str, Any]) -> None:
    """The browser may send anything as a button's value."""
    assert finding.hit_of(slow_rank(), span, inside=True) is None

"""A click says what ran there, how long, how that compares, and what was recorded around it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from plotly.utils import PlotlyJSONEncoder
from support.web.stores import SLOW_RANK, devices, sharded, slow_rank, traced

from tracelens.accounting import phases
from tracelens_dashboard.components.timeline import answers
from tracelens_dashboard.view.viewport import Place

if TYPE_CHECKING:
    from tracelens_dashboard.runs.store import Store


def described(store: Store, lane: int, at_ns: int, track: int | None = None) -> str:
    """Write the details as they are sent to the browser."""
    return json.dumps(answers.span_details(store, Place(lane, at_ns, track)), cls=PlotlyJSONEncoder)


def test_the_planted_phase_is_named_and_compared() -> None:
    """In rank 2's long backprop: its name, its time, and the shorter median of all ranks."""
    store = slow_rank()
    mine = phases.run(traced(SLOW_RANK)).segments.filter(rank=2, step=25, category="backprop")
    page = described(store, 2, mine["start_ns"][0] + 1000)
    assert "backprop on rank 2 in step 25" in page
    assert "peers' median: 10" in page
    assert "Recorded spans at this time" in page
    assert "/timeline?" in page


def test_what_ran_beside_the_code_is_listed() -> None:
    """A reduction in flight under backprop appears with its size and sequence number."""
    store = slow_rank()
    spans = traced(SLOW_RANK).spans.collect()
    bucket = spans.filter(process=0, step=5, kind="reduction", bucket=0)
    page = described(store, 0, bucket["start_ns"][0] + 1000)
    assert "backprop on rank 0 in step 5" in page
    assert "allreduce" in page
    assert "4.0 MiB" in page


def test_a_shard_shows_its_request() -> None:
    """On a shard's row: the operation, who asked, and how many bytes."""
    store = sharded()
    lanes = store.scene.lanes
    lane = next(i for i, owner in enumerate(lanes.lanes) if owner.part == "serve")
    first = int(lanes.starts[lanes.offsets[lane]])
    page = described(store, lane, first)
    assert "server: aggregate on PS shard 0 in step 0" in page
    assert "peer" in page
    assert "24.0 MiB" in page


def test_a_stream_shows_what_ran_on_it() -> None:
    """On a stream's row: the reduction, with its size, when the device did it."""
    store = devices()
    lanes = store.scene.lanes
    lane = next(i for i, owner in enumerate(lanes.lanes) if owner.part.endswith("reductions"))
    first = int(lanes.starts[lanes.offsets[lane]])
    page = described(store, lane, first)
    assert "on rank 0, cuda:0 reductions in step 0" in page
    assert "allreduce" in page
    assert "4.0 MiB" in page
    assert "bucket 0" in page


def test_where_nothing_was_recorded_it_says_so() -> None:
    """Before the start there is nothing, and that is what it says."""
    assert "Nothing recorded on rank 1" in described(slow_rank(), 1, 0)


def test_a_reduction_in_flight_shows_what_was_recorded() -> None:
    """In its track of the opened rank: its name, kind, and size, though backprop hides it."""
    store = slow_rank()
    spans = traced(SLOW_RANK).spans.collect()
    bucket = spans.filter(process=0, step=5, kind="reduction", bucket=1)
    lanes = store.opened(0).scene.lanes
    at = bucket["start_ns"][0] + 1
    tracks = range(len(lanes))
    track = next(i for i in tracks if "reductions" in lanes.lanes[i].part)
    page = described(store, 0, at, track)
    assert "on rank 0, reductions in step 5" in page
    assert "allreduce" in page
    beside = described(store, 0, int(store.whole.start_ns), track)
    assert "Nothing recorded on rank 0, reductions" in beside
    assert "Nothing recorded" in described(store, 0, at, 99)

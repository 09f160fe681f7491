"""An opened rank has a row for each thread and depth, with every span where it was recorded."""

from __future__ import annotations

import polars as pl
from support.runs.traces import call, span, trace_of

from tracelens.lod import rank_detail, viewport
from tracelens.lod.lanes import CODES
from tracelens.lod.query import look
from tracelens.lod.viewport import Window
from tracelens.model.trace import SAMPLE_COLUMNS

NAMES = {0: "MainThread", 1: "reductions"}
WHOLE = Window(0, 100_000)


def spans() -> pl.DataFrame:
    """Record a step with nested layers, and a reduction beside it."""
    recorded = [
        span(0, "step", 0, 90_000, step=7),
        span(0, "forward", 1_000, 40_000, depth=1),
        span(0, "forward", 2_000, 20_000, "layer 0", depth=2),
        span(0, "backprop", 40_000, 80_000, depth=1),
        call(0, 0, 30_000, 70_000),
        span(0, "update", 90_000, None),
    ]
    return trace_of(recorded).spans.collect()


def test_threads_and_depths_are_rows() -> None:
    """Rows from the outermost spans to the innermost, thread by thread; open spans are left out."""
    scene = rank_detail.rank_scene(spans(), NAMES, 0, WHOLE)
    names = [lane.part for lane in scene.lanes.lanes]
    assert names == ["MainThread", "MainThread · 1", "MainThread · 2", "reductions"]
    assert scene.lanes.codes[:].tolist() == [
        CODES[name] for name in ("idle", "forward", "backprop", "forward", "transfer")
    ]
    assert scene.lanes.starts[:].tolist() == [0, 1_000, 40_000, 2_000, 30_000]


def test_few_spans_become_shapes() -> None:
    """A window with few of them shows every span."""
    scene = rank_detail.rank_scene(spans(), NAMES, 0, WHOLE)
    picture = look(scene, WHOLE, viewport.plan(scene.lanes))
    assert picture.level == "spans"
    assert picture.spans == 5


def test_a_rank_without_spans_has_no_rows() -> None:
    """Nothing recorded is not an error."""
    scene = rank_detail.rank_scene(spans().clear(), NAMES, 0, WHOLE)
    assert len(scene.lanes) == 0
    assert look(scene, WHOLE, viewport.plan(scene.lanes)).pixels.shape[0] == 1


def test_sampled_code_is_the_last_row() -> None:
    """By its innermost call; two calls in a row are told apart, and each knows its step."""
    rows_seen = [
        (0, 0, 100, "MainThread", 1_000, 4_000, ["main (a:1)", "load (b:2)"]),
        (0, 0, 100, "MainThread", 4_000, 9_000, ["main (a:1)", "work (/home/me/c.py:3)"]),
        (0, 0, 100, "MainThread", 9_000, 9_500, []),
    ]
    samples = pl.DataFrame(rows_seen, schema=SAMPLE_COLUMNS, orient="row")
    lanes = rank_detail.rank_scene(spans(), NAMES, 0, WHOLE, samples).lanes
    assert lanes.lanes[-1].part == "code of MainThread"
    mine = slice(int(lanes.offsets[-2]), int(lanes.offsets[-1]))
    assert [lanes.words[name] for name in lanes.names[mine]] == ["load (b:2)", "work (c.py:3)"]
    assert lanes.codes[mine].tolist() == [CODES["stack"], CODES["next_stack"]]
    assert lanes.ends[mine].tolist() == [4_000, 9_000]
    assert set(lanes.steps[mine].tolist()) == {7}

"""An opened rank has a row for each thread and depth, with every span where it was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.traces import call, span, trace_of

from tracelens.lod import rows, threads
from tracelens.lod.codes import CODES
from tracelens.lod.query import look
from tracelens.lod.window import Window

if TYPE_CHECKING:
    import polars as pl

NAMES = {0: "MainThread", 1: "reductions"}
WHOLE = Window(0, 100_000)


def spans() -> pl.DataFrame:
    """Record a step with nested layers, and a reduction beside it."""
    recorded = [
        span(0, "step", 0, 90_000),
        span(0, "forward", 1_000, 40_000, depth=1),
        span(0, "forward", 2_000, 20_000, "layer 0", depth=2),
        span(0, "backprop", 40_000, 80_000, depth=1),
        call(0, 0, 30_000, 70_000),
        span(0, "update", 90_000, None),
    ]
    return trace_of(recorded).spans.collect()


def test_threads_and_depths_are_rows() -> None:
    """Rows from the outermost spans to the innermost, thread by thread; open spans are left out."""
    scene = threads.opened(spans(), NAMES, 0, WHOLE)
    names = [lane.part for lane in scene.lanes.lanes]
    assert names == ["MainThread", "MainThread · 1", "MainThread · 2", "reductions"]
    assert scene.lanes.codes.tolist() == [
        CODES[name] for name in ("idle", "forward", "backprop", "forward", "transfer")
    ]
    assert scene.lanes.starts.tolist() == [0, 1_000, 40_000, 2_000, 30_000]


def test_few_spans_become_shapes() -> None:
    """A window with few of them shows every span."""
    scene = threads.opened(spans(), NAMES, 0, WHOLE)
    picture = look(scene, WHOLE, rows.plan(scene.lanes))
    assert picture.level == "spans"
    assert picture.spans == 5


def test_a_rank_without_spans_has_no_rows() -> None:
    """Nothing recorded is not an error."""
    scene = threads.opened(spans().clear(), NAMES, 0, WHOLE)
    assert len(scene.lanes) == 0
    assert look(scene, WHOLE, rows.plan(scene.lanes)).pixels.shape[0] == 1

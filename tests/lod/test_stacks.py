"""Stacks are counted over the recorded pieces of a phase, and compared with the median peer's."""

import polars as pl
import pytest
from support.web.stores import slow_rank

from tracelens.accounting.sampled_code import Stack
from tracelens.lod import stacks
from tracelens.lod.viewport import Window

SECOND = 10**9
MAIN, LOAD, READ = "main (a:1)", "load (b:2)", "read (c:3)"
MINE = {(MAIN, LOAD, READ): 6.0 * SECOND, (MAIN, LOAD): 1.0 * SECOND, (MAIN,): 3.0 * SECOND}
PEER = {(MAIN, LOAD, READ): 1.0 * SECOND, (MAIN,): 3.0 * SECOND}
OTHER = {(MAIN, LOAD, READ): 3.0 * SECOND, (MAIN,): 3.0 * SECOND}


def samples(*rows: tuple[int, int, list[str]]) -> pl.DataFrame:
    """Return samples (start and end in seconds)."""
    table = [(a * SECOND, b * SECOND, frames) for a, b, frames in rows]
    return pl.DataFrame(table, schema=["start_ns", "end_ns", "frames"], orient="row")


def test_calls_are_told_with_what_they_call() -> None:
    """Each has its caller's number; callers hold at least as much as all that they call."""
    table = stacks.list_calls(MINE, [PEER, OTHER])
    rows = [(row["frame"], row["ns"] / SECOND, row["parent"]) for row in table.to_dicts()]
    assert rows == [("", 10, None), (MAIN, 10, 0), (LOAD, 7, 1), (READ, 6, 2)]
    assert (table["peers_ns"] / SECOND).to_list() == [5, 5, 2, 2]


def test_many_calls_keep_their_callers() -> None:
    """Only the longest stay, and none of these without those that lead to it."""
    names = [f"f{i} (x:{i})" for i in range(2 * stacks.MOST_CALLS)]
    many: dict[Stack, float] = {(MAIN, name): i + 1.0 for i, name in enumerate(names)}
    table = stacks.list_calls(many, [])
    assert table.height == stacks.MOST_CALLS
    assert set(table["parent"].drop_nulls()) <= set(table["call"])
    assert table["peers_ns"].null_count() == table.height


def test_frames_are_ordered_by_what_is_beyond_the_peers() -> None:
    """By the time in which a frame was the innermost; what all do alike comes last."""
    table = stacks.list_frames(MINE, [PEER, OTHER])
    assert table["frame"].to_list() == [READ, LOAD, MAIN]
    assert (table["self_ns"] / SECOND).to_list() == [6, 1, 3]
    assert (table["ns"] / SECOND).to_list() == [6, 7, 10]
    assert (table["peers_self_ns"] / SECOND).to_list() == [2, 0, 3]


def test_recursion_counts_once() -> None:
    table = stacks.list_frames({(MAIN, LOAD, LOAD): 4.0}, [])
    assert dict(table.select("frame", "ns").iter_rows()) == {MAIN: 4.0, LOAD: 4.0}


def test_when_a_frame_was_on_the_stack() -> None:
    """As a share of each part of the window, innermost or not."""
    seen = samples((0, 3, [MAIN]), (3, 5, [MAIN, LOAD]), (5, 6, [MAIN, LOAD, READ]))
    shares = stacks.measure_share_over_time(seen, LOAD, Window(0, 8 * SECOND), 4)
    assert shares.tolist() == pytest.approx([0, 0.5, 1, 0])


def test_samples_count_only_in_the_pieces() -> None:
    """Few samples are scaled up to the whole time of the pieces."""
    pieces = pl.DataFrame({"start_ns": [0, 8 * SECOND], "end_ns": [2 * SECOND, 10 * SECOND]})
    found = stacks.measure_time_by_stack(samples((1, 8, [MAIN]), (8, 9, [MAIN, LOAD])), pieces)
    assert found == pytest.approx({(MAIN,): 2 * SECOND, (MAIN, LOAD): 2 * SECOND})
    assert stacks.measure_time_by_stack(samples((3, 8, [MAIN])), pieces) == {}


def test_pieces_are_those_of_the_phase_in_the_window() -> None:
    """They lie in it, and last as long as the rank's times of these steps say."""
    store = slow_rank()
    window = store.window_of_steps(20, 39)
    assert window
    table = stacks.list_pieces(store.scene.span_lanes, 2, window, "backprop")
    assert table.filter(pl.col("start_ns") < window.start_ns).is_empty()
    assert table.filter(pl.col("end_ns") > window.end_ns).is_empty()
    told = sum(store.category_times.time_ns_by_rank("backprop", step)[2] for step in range(20, 40))
    lasted = (table["end_ns"] - table["start_ns"]).sum()
    assert lasted == pytest.approx(told, rel=0.02)
    whole = stacks.list_pieces(store.scene.span_lanes, 2, window, None)
    assert (whole["end_ns"] - whole["start_ns"]).sum() > lasted

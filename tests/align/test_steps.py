"""Every worker's time is divided into steps whose windows touch."""

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from support.runs.traces import call, span, trace_of

from tracelens.align import steps


def step(rank: int, number: int, start: int, end: int | None) -> dict[str, object]:
    return span(rank, "step", start, end, step=number)


def windows(trace_rows: list[dict[str, object]], ranks: int = 1) -> list[tuple[object, ...]]:
    trace = steps.divide_into_steps(trace_of(trace_rows, ranks=ranks))
    return trace.steps.select("rank", "step", "start_ns", "end_ns").rows()


def test_windows_touch() -> None:
    """A step lasts until the next begins; the last, until it ends itself: training is over then."""
    rows = [step(0, 0, 10, 20), step(0, 1, 30, 40), span(0, "data", 20, 30), span(0, "gc", 41, 50)]
    assert windows(rows) == [(0, 0, 10, 30), (0, 1, 30, 40)]


def test_an_open_last_step_ends_with_the_last_event() -> None:
    """A killed rank's last step ends with the last that it recorded."""
    rows = [step(0, 0, 10, 20), step(0, 1, 20, None), span(0, "forward", 25, 31)]
    assert windows(rows) == [(0, 0, 10, 20), (0, 1, 20, 31)]


def test_events_get_their_step() -> None:
    """Events without a step belong to the window they start in, on the thread and in flight."""
    rows = [
        step(0, 7, 10, 20),
        step(0, 8, 30, 40),
        span(0, "data", 5, 9),
        span(0, "data", 22, 30),
        call(0, 0, 35, 60),
        span(0, "data", 36, 38, thread=2),
        span(0, "user", 31, 32, step=7),
    ]
    trace = steps.divide_into_steps(trace_of(rows))
    found = trace.events.filter(pl.col("kind") != "step").sort("start_ns").collect()
    assert found["step"].to_list() == [-1, 7, 7, 8, -1]
    assert trace.workers["training_thread"].to_list() == [0]


def test_who_updates_trains() -> None:
    """Without step spans steps are those of the thread that updates, though another one does more.

    On devices PyTorch computes gradients on a thread of its own.
    """
    rows = []
    for begin_ns in (0, 100, 200):
        rows += [
            span(0, "forward", begin_ns, begin_ns + 20),
            span(0, "update", begin_ns + 80, begin_ns + 90),
        ]
        rows += [
            span(0, "backprop", begin_ns + offset_ns, begin_ns + offset_ns + 5, thread=3)
            for offset_ns in range(30, 70, 5)
        ]
    trace = steps.divide_into_steps(trace_of(rows))
    assert trace.workers["training_thread"].to_list() == [0]
    assert trace.steps["start_ns"].to_list() == [0, 100, 200]


def test_repeated_numbers_are_counted() -> None:
    """Step numbers that begin again each epoch become one count, for all ranks, with a note."""
    rows = [
        *(step(0, number % 2, 10 * number, 10 * number + 9) for number in range(4)),
        *(step(1, number, 10 * number, 10 * number + 9) for number in range(3, 7)),
        span(0, "forward", 21, 25, step=0),
    ]
    trace = steps.divide_into_steps(trace_of(rows, ranks=2))
    assert trace.steps["step"].to_list() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [note.kind for note in trace.notes] == ["renumbered"]
    forward = trace.events.filter(pl.col("kind") == "forward").collect()
    assert forward["step"].to_list() == [2]


def test_late_starter_keeps_its_numbers() -> None:
    """A rank that joins at step 5 is at step 5, not at its own step 0."""
    rows = [step(0, n, 10 * n, 10 * n + 9) for n in range(8)]
    rows += [step(1, n, 10 * n, 10 * n + 9) for n in range(5, 8)]
    found = windows(rows, ranks=2)
    assert [row[1] for row in found if row[0] == 1] == [5, 6, 7]


def test_nested_step_spans() -> None:
    """A step span inside another is part of it."""
    rows = [step(0, 0, 0, 50), span(0, "step", 10, 20, step=0, depth=1), step(0, 1, 60, 70)]
    assert windows(rows) == [(0, 0, 0, 60), (0, 1, 60, 70)]


def test_overlapping_step_spans_are_steps() -> None:
    """Each ends where the next begins, and one note counts them; none swallows another."""
    rows = [step(rank, n, 100 * n, 100 * n + 101) for rank in (0, 1) for n in range(3)]
    trace = steps.divide_into_steps(trace_of(rows, ranks=2))
    assert trace.steps.select("rank", "step", "start_ns", "end_ns").rows() == [
        (rank, n, 100 * n, end) for rank in (0, 1) for n, end in enumerate((100, 200, 301))
    ]
    (note,) = trace.notes
    assert note.kind == "incomplete"
    assert note.sentence == (
        "4 of 6 step spans of 2 processes overlap the next: each is taken to end where the next begins."
    )


def test_one_overlap_among_processes_without() -> None:
    """Processes whose spans do not overlap are not counted."""
    rows = [step(0, 0, 0, 10), step(0, 1, 10, 21), step(0, 2, 20, 30)]
    trace = steps.divide_into_steps(
        trace_of([*rows, step(1, 0, 0, 10), step(1, 1, 10, 20)], ranks=2)
    )
    assert [note.sentence for note in trace.notes] == [
        "1 of 3 step spans of 1 process overlaps the next: it is taken to end where the next begins."
    ]


def test_an_open_span_lasts_until_recording_ends() -> None:
    """So it overlaps nothing where it is the last, and what begins in it is nested."""
    last = [step(0, 0, 10, 20), step(0, 1, 19, None), span(0, "forward", 25, 31)]
    assert windows(last) == [(0, 0, 10, 19), (0, 1, 19, 31)]
    outer = [step(0, 7, 0, None), step(0, 0, 10, 20), step(0, 1, 20, None)]
    assert windows(outer) == [(0, 7, 0, 20)]


TIMES = st.tuples(st.integers(0, 30), st.integers(0, 12))


@given(st.lists(TIMES, max_size=12))
def test_what_is_nested_by_definition(drawn: list[tuple[int, int]]) -> None:
    """A span is dropped if and only if another one that is kept holds it whole."""
    rows = sorted(
        ((begin_ns, begin_ns + length) for begin_ns, length in drawn), key=lambda r: (r[0], -r[1])
    )
    begins, ends = np.array(rows, np.int64).reshape(-1, 2).T
    outer = steps.find_outermost(begins, ends)
    for row, (begin_ns, end) in enumerate(rows):
        holders = [
            other
            for other in np.flatnonzero(outer[:row]).tolist()
            if rows[other][0] <= begin_ns < rows[other][1] >= end
        ]
        assert outer[row] == (not holders)


def test_step_numbers_of_other_events_divide_the_time() -> None:
    """Without step spans the numbers on other events divide the time, and a note says so."""
    rows = [span(0, "forward", 10, 20, step=0), span(0, "forward", 30, 40, step=1)]
    trace = steps.divide_into_steps(trace_of(rows))
    assert trace.steps.select("step", "start_ns", "end_ns").rows() == [(0, 10, 30), (1, 30, 40)]
    assert "recorded no step spans" in trace.notes[0].sentence


def test_samples_counters_sum_to_the_work_of_a_step() -> None:
    counter = {"type": "counter", "name": "samples"}
    rows = [step(0, 0, 10, 20), step(0, 1, 30, 40)]
    rows += [span(0, "step", at, at, step=0, value=8.0, **counter) for at in (20, 21)]
    trace = steps.divide_into_steps(trace_of(rows))
    assert trace.steps["samples"].to_list() == [16.0, None]


def test_children_have_no_steps() -> None:
    """Processes that a rank forked do not count as workers."""
    rows = [step(0, 0, 10, 20), step(1, 0, 10, 20)]
    trace = steps.divide_into_steps(trace_of(rows, ranks=2, main=[True, False]))
    assert trace.steps["process"].to_list() == [0]
    assert trace.processes["training_thread"].to_list() == [0, None]

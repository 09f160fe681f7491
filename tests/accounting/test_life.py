"""The wall time of a job's life is divided exactly, and each use gets what it took."""

import polars as pl
import pytest
from support.runs.traces import span, trace_of
from support.watch.lives import BEGIN_NS, STEPS, WALL_BEGIN_NS, PlantedLife, S, plant_life

from tracelens.accounting.life.attempts import find_attempts
from tracelens.accounting.life.ledger import measure_life


@pytest.mark.parametrize("seed", range(30))
def test_each_use_gets_what_it_took(seed: int) -> None:
    job = plant_life(seed)
    life = measure_life(job.trace())
    assert life is not None
    measured = dict(life.uses.group_by("use").agg(pl.col("ns").sum()).iter_rows())
    assert sum(measured.values()) == life.wall_ns == job.now_ns - BEGIN_NS
    assert life.attempts.height == len(job.clocks)
    for use in {*measured, *job.truth}:
        assert measured.get(use, 0) == pytest.approx(job.truth[use], abs=0.01 * life.wall_ns), use


def test_attempts_of_several_ranks_are_told_apart_by_when_they_lived() -> None:
    begins_s = [1, 1, 20, 20, 50, 50]
    ends_s = [10, 11, 40, 40, 60, 60]
    trace = trace_of(
        [
            span(process, "step", begin_s * S, (begin_s + 1) * S, step=0)
            for process, begin_s in enumerate(begins_s)
        ],
        6,
        clocks=[
            {"process": process, "method": "local", "monotonic_ns": 0, "wall_ns": WALL_BEGIN_NS}
            for process in range(6)
        ],
        rank=[0, 1] * 3,
        complete=[False] * 6,
        child=[False] * 6,
        first_ns=[begin_s * S for begin_s in begins_s],
        last_ns=[end_s * S for end_s in ends_s],
    )
    members = [[life.process for life in attempt.lives] for attempt in find_attempts(trace)]
    assert members == [[0, 1], [2, 3], [4, 5]]


def test_worker_that_comes_back_while_the_others_go_on_is_no_new_attempt() -> None:
    trace = trace_of(
        [span(process, "step", 1 * S, 2 * S, step=0) for process in range(4)],
        4,
        clocks=[
            {"process": process, "method": "local", "monotonic_ns": 0, "wall_ns": WALL_BEGIN_NS}
            for process in range(4)
        ],
        rank=[0, 1, 2, 0],
        complete=[False, True, True, True],
        child=[False] * 4,
        first_ns=[1 * S, 1 * S, 1 * S, 30 * S],
        last_ns=[20 * S, 90 * S, 90 * S, 90 * S],
    )
    assert [len(attempt.lives) for attempt in find_attempts(trace)] == [4]


def test_steps_that_each_attempt_counts_from_0_leave_open_what_was_kept() -> None:
    job = PlantedLife(seed=1)
    job.attempt("killed", 9)  # before the first checkpoint
    job.attempt("complete", STEPS)
    life = measure_life(job.trace())
    assert life is not None
    assert not life.is_kept_known

"""Stages with unequal work are an opportunity, and no rank of them is accused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import pytest
from benchmarks.labelled import kinds_of_pipelines, kinds_of_ranks, pipeline
from benchmarks.labelled.endtoend import report
from benchmarks.labelled.label import Case, Label
from benchmarks.labelled.makers import synchronous
from benchmarks.labelled.setting import Setting
from benchmarks.labelled.work import Work
from support.tiers import mark_slow

from tracelens.accounting import phases
from tracelens.accounting.stages import Stages
from tracelens.analyses.stage_imbalance import ALONE, StageImbalance
from tracelens.load import prepare
from tracelens.model.findings import Finding
from tracelens.replay.event_graph import EventGraph

TWO_STAGES: Final = Setting(8, 60, 2, "mild", "lognormal", 11)
FOUR_STAGES: Final = Setting(64, 40, 8, "mild", "lognormal", 11)
LONG_RUN: Final = replace(FOUR_STAGES, steps=120)
LAST_STAGE: Final = tuple(range(48, 64))

SHORT_RUN: Final = replace(TWO_STAGES, steps=20)

small_and_large = pytest.mark.parametrize(
    "setting", mark_slow([TWO_STAGES, LONG_RUN], quick=[TWO_STAGES]), ids=["8", "64"]
)
short_and_long = pytest.mark.parametrize(
    "setting", mark_slow([FOUR_STAGES, LONG_RUN], quick=[FOUR_STAGES]), ids=["40", "120"]
)


def simulate(plant: Callable[[Setting, Work], Label], setting: Setting) -> Case:
    """Simulate a pipeline in which one thing is planted."""
    return kinds_of_pipelines.staged(plant)(setting)


def find_stages(case: Case) -> list[Finding]:
    """Return the report's findings on stages."""
    return [one for one in report(case).findings if one.kind == "stage_imbalance"]


@short_and_long
def test_the_longest_stage_is_named(setting: Setting) -> None:
    """With its ranks, what it takes, and what an even spread would save; no rank is accused."""
    case = simulate(kinds_of_pipelines.unequal_stages, setting)
    run_report = report(case)
    (finding,) = find_stages(case)
    assert not [one for one in run_report.findings if one.category == "fault"]
    assert (finding.category, finding.ranks, finding.phase) == (
        "opportunity",
        LAST_STAGE,
        "backprop",
    )
    assert finding.slowdown == pytest.approx((0.2 + 0.8 * 1.4) / (0.2 + 0.8 * 1.1), abs=0.03)
    assert finding.saving == pytest.approx(case.label.saving, rel=0.05)
    assert finding.sentence.startswith("Stage 3 of 4 (ranks 48, 49")
    assert ALONE not in finding.sentence
    table = run_report.results["stages"]
    assert isinstance(table, StageImbalance)
    assert table.stages["ranks"].to_list() == [16] * 4
    assert table.stages["over_mean"].arg_max() == 3


def test_twenty_steps_tell_the_longest_stage() -> None:
    """And noise alone makes none the longest."""
    case = simulate(kinds_of_pipelines.unequal_stages, SHORT_RUN)
    (finding,) = find_stages(case)
    assert finding.saving == pytest.approx(case.label.saving, rel=0.1)
    assert not find_stages(simulate(kinds_of_ranks.nothing, SHORT_RUN))


@small_and_large
def test_equal_stages_have_none(setting: Setting) -> None:
    """Noise alone makes no stage the longest permanently."""
    assert not find_stages(simulate(kinds_of_ranks.nothing, setting))


@small_and_large
def test_a_straggler_is_no_stage(setting: Setting) -> None:
    """One rank of a stage is slow: that is a fault of the rank."""
    case = simulate(kinds_of_pipelines.straggler, setting)
    faults = [one for one in report(case).findings if one.category == "fault"]
    assert [(one.kind, one.ranks) for one in faults] == [("straggler", case.label.ranks)]


@short_and_long
def test_a_straggler_among_unequal_stages(setting: Setting) -> None:
    """It is compared with its own stage, however long that of others is."""
    make = kinds_of_pipelines.staged(kinds_of_pipelines.straggler, kinds_of_pipelines.uneven)
    case = make(replace(setting, seed=0))
    run_report = report(case)
    faults = [one for one in run_report.findings if one.category == "fault"]
    assert [(one.kind, one.ranks) for one in faults] == [("straggler", case.label.ranks)]
    assert "stage_imbalance" in {one.kind for one in run_report.findings}


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(1, 80), *(pytest.param(seed, 200, marks=pytest.mark.slow) for seed in (1, 2))],
)
def test_a_straggler_whose_neighbours_arrive_last(seed: int, steps: int) -> None:
    """All meet in one collective, to which others come last: they were kept waiting for messages."""
    make = kinds_of_pipelines.staged(kinds_of_pipelines.straggler, by_stage=False)
    case = make(Setting(8, steps, 2, "mild", "lognormal", seed))
    run_report = report(case)
    faults = [one for one in run_report.findings if one.category == "fault"]
    assert [(one.kind, one.ranks) for one in faults] == [("straggler", case.label.ranks)]
    assert run_report.ledger
    assert run_report.ledger.awaited_rank == case.label.ranks[0]


def test_stages_number_their_members() -> None:
    stages = Stages(np.array([1, 0, 1, 0]), np.zeros(4, np.int64))
    assert [members.tolist() for members in stages.columns_by_stage] == [[1, 3], [0, 2]]


PIPELINED_SHARE: Final = 0.8  # of a stage's own time: forward and backprop


def measure_bubble(
    plant: Callable[[Setting, Work], Label], setting: Setting
) -> tuple[float, float]:
    """Return the share of a run that is bubble by its report, and by its schedule."""
    case = kinds_of_pipelines.staged(plant)(setting)
    run_report = report(case)
    assert run_report.ledger
    stages, micro = pipeline.STAGES[setting.ranks], pipeline.MICRO_BATCHES
    result = run_report.results["stages"]
    assert isinstance(result, StageImbalance)
    assert run_report.efficiency
    step_ns = run_report.efficiency.job_ns / setting.steps
    # Each stage is idle for the forward and backward of one micro-batch for each other stage.
    pipelined_ns = PIPELINED_SHARE * result.stages["own_ns"].to_numpy().mean()
    return run_report.ledger.sum_share("bubble"), (stages - 1) / micro * pipelined_ns / step_ns


@pytest.mark.parametrize(
    ("ranks", "seed"),
    [(8, 0), *(pytest.param(*more, marks=pytest.mark.slow) for more in ((8, 1), (64, 0)))],
)
@pytest.mark.parametrize(
    "plant",
    mark_slow(
        [kinds_of_ranks.nothing, kinds_of_pipelines.straggler, kinds_of_pipelines.unequal_stages],
        quick=[kinds_of_pipelines.unequal_stages],
    ),
)
def test_what_the_schedule_makes_is_a_bubble(
    plant: Callable[[Setting, Work], Label], seed: int, ranks: int
) -> None:
    """One micro-batch for each other stage, with noise, a straggler, or unequal stages as without."""
    measured, due = measure_bubble(
        plant, Setting(ranks, 80, ranks // 4, "mild", "lognormal", 5_000_000 + seed)
    )
    assert measured == pytest.approx(due, rel=0.15)


@small_and_large
def test_the_bubble_of_a_recorded_run_is_what_it_waited(setting: Setting) -> None:
    """Without any change, the replay waits as long as is waited in the run."""
    trace = prepare(simulate(kinds_of_ranks.nothing, setting).recording.trace())
    partition = phases.run(trace)
    replay = EventGraph.from_trace(trace, partition)
    assert replay
    waits = partition.sum_ns_by_window("wait").sum()
    assert replay.measure_waits_ns(replay.edges.lag_ns) == pytest.approx(waits, rel=0.01)


def test_other_runs_have_no_bubble() -> None:
    """Ranks that only reduce wait in turns."""
    run_report = report(synchronous(kinds_of_ranks.nothing)(TWO_STAGES))
    assert run_report.ledger
    assert run_report.ledger.sum_share("bubble") == 0
    assert run_report.ledger.sum_share("jitter") > 0

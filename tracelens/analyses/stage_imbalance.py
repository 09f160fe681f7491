"""Stage imbalance: stages of a pipeline that have unequal work, by how the run is built.

Ranks of a stage play the same part, so a slow one of them is a straggler (`stragglers/`). Whole stages
that take longer than others are no fault: layers are spread unevenly, and the stages with less wait for
the one with most. What an even spread would save is found by a replay of the same messages
(`replay/model.py`), in which each stage takes as many times longer or shorter, phase by phase, as
makes its usual rank take what stages take on average.

What stages wait in a replay in which, moreover, no rank and no step differs from the usual one is the
pipeline's bubble: its schedule makes that, and neither imbalance nor noise. It is waited at receives,
and, by stages that end early, at the collective that ends the step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.phases import job_ns
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding
from tracelens.replay.edits.fixes import WorkFix, apply_fix
from tracelens.stats.robust import bootstrap_interval, medians

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.accounting.stages import Stages
    from tracelens.arrays import Floats
    from tracelens.facts import Facts
    from tracelens.replay.model import Model

__all__ = ["STAGE_COLUMNS", "StageImbalance", "run"]

STAGE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "stage": pl.Int32(),  # 0 = where a step begins
    "ranks": pl.Int32(),
    "first_rank": pl.Int32(),
    "own_ns": pl.Float64(),  # of the usual rank, median over steps
    "over_mean": pl.Float64(),  # own / mean of stages - 1
}


# of a step: a stage that is beyond the mean of all by less is not too long [calibrate]
MIN_RESIDUAL_OF_LONG_STAGE: Final = 0.05
MIN_STEPS_FOR_STAGE_TEST: Final = 10  # steps: fewer are not judged [calibrate]
# share of steps: a stage is not reported if it is too long in fewer [calibrate]
MIN_SHARE_OF_STEPS_OF_LONG_STAGE: Final = 0.75
MIN_SAVING_OF_EVEN_STAGES: Final = 0.01  # of the job: an imbalance of less is not reported [policy]


@dataclass(frozen=True, eq=False)
class StageImbalance(DisplayMixin):
    """`stages` has a row a stage; none where all ranks play the same part.

    `bubble_ns` is what all ranks together wait if nothing but the schedule makes them; 0 where that
    cannot be replayed.
    """

    stages: pl.DataFrame
    bubble_ns: float = 0.0
    findings: tuple[Finding, ...] = ()

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """What a report shows."""
        return {"stages": self.stages} if self.stages.height else {}


def run(facts: Facts) -> StageImbalance:
    """Compare the stages."""
    trace = facts.trace
    own = facts.compute_time
    stages = own.stages
    if stages is None or not own.settled.any():
        return StageImbalance(pl.DataFrame(schema=STAGE_COLUMNS))
    replay = facts.replay.build_whole() if trace.exchanged.height else None
    if replay is not None:
        own = _exclude_implicit_waits(own, replay)
    usual = _by_stage(own, stages, own.total)
    if not len(usual):
        return StageImbalance(pl.DataFrame(schema=STAGE_COLUMNS))
    table = _table(own, stages, usual)
    if replay is None:
        return StageImbalance(table)
    found = _finding(facts, replay, own, stages, usual)
    alike = apply_fix(replay, WorkFix(own.steps, _changes(own, stages, alike=True)))
    bubble = replay.measure_waits_ns(alike.lag)
    return StageImbalance(table, bubble, () if found is None else (found,))


def _exclude_implicit_waits(own: ComputeTime, replay: Model) -> ComputeTime:
    """Return compute times without the waits in collectives that no span shows."""
    rows = np.searchsorted(replay.steps, own.steps)
    worked = np.stack([replay.sum_by_step(replay.worked((name,)))[rows] for name in own.phases])
    return replace(own, own=np.where(np.isnan(own.own), np.nan, worked))


def _by_stage(own: ComputeTime, stages: Stages, values: Floats) -> Floats:
    """Return what the median rank of each stage takes, [step, stage], in steps that all stages took."""
    found = [medians(values[own.settled_rows][:, one], axis=1) for one in stages.members]
    whole = np.stack(found, axis=1)
    return np.asarray(whole[~np.isnan(whole).any(axis=1)])


def _table(own: ComputeTime, stages: Stages, usual: Floats) -> pl.DataFrame:
    middle = np.median(usual, axis=0)
    columns = {
        "stage": np.arange(len(middle)),
        "ranks": [len(members) for members in stages.members],
        "first_rank": [own.ranks[members[0]] for members in stages.members],
        "own_ns": middle,
        "over_mean": middle / max(float(middle.mean()), 1.0) - 1,
    }
    return pl.DataFrame(columns, schema=STAGE_COLUMNS)


def _finding(
    facts: Facts, replay: Model, own: ComputeTime, stages: Stages, usual: Floats
) -> Finding | None:
    """Return what is said of the stage that takes longest, if it takes clearly longer for good."""
    middle = np.median(usual, axis=0)
    slowest = int(middle.argmax())
    beyond = (usual[:, slowest] - usual.mean(axis=1)) / max(own.step_ns, 1.0)
    is_long = beyond > MIN_RESIDUAL_OF_LONG_STAGE
    few = len(beyond) < MIN_STEPS_FOR_STAGE_TEST
    if few or is_long.mean() < MIN_SHARE_OF_STEPS_OF_LONG_STAGE:
        return None
    fix = WorkFix(own.steps, _changes(own, stages, alike=False))
    replayed = facts.replay.replay(apply_fix(replay, fix))
    lost = np.maximum(replayed.saved_ns[np.searchsorted(replay.steps, fix.steps)], 0.0)
    job = max(job_ns(facts.trace), 1)
    saving = float(lost.sum()) / job
    if saving < MIN_SAVING_OF_EVEN_STAGES or not replayed.identity.reliable:
        return None
    members = stages.members[slowest]
    ranks = tuple(own.ranks[rank] for rank in members)
    return Finding.of(
        "stage_imbalance",
        {
            "stage": str(slowest),
            "stages": str(len(middle)),
            "ranks": fmt.listing("rank", ranks),
            "own": fmt.duration(float(middle[slowest])),
            "mean": fmt.duration(float(middle.mean())),
        },
        more=[ALONE] if max(map(len, stages.members)) == 1 else [],
        ranks=ranks,
        phase=_phase(own, stages, slowest),
        pattern="persistent",
        slowdown=float(middle[slowest] / max(float(middle.mean()), 1.0)),
        saving=saving,
        interval=replayed.identity.widen(bootstrap_interval(lost, job)),
        fix=fix,
        evidence={
            "stage": slowest,
            "stage_ns": [round(one) for one in middle.tolist()],
        },
    )


ALONE: Final = (
    "No two ranks play the same part: one that is slow looks like a stage with more work."
)


def _changes(
    own: ComputeTime, stages: Stages, *, alike: bool
) -> tuple[tuple[tuple[str, ...], Floats], ...]:
    """Return what is to be taken off each phase so that all stages have as much work, ns.

    If they are to be `alike`, all ranks and steps are, too.
    """
    changes = []
    for name, values in zip(own.phases, own.own, strict=True):
        usual = np.median(_by_stage(own, stages, values), axis=0)
        # What one stage alone does (data loading, say) is nothing that could be spread.
        level = np.full(len(usual), usual.mean()) if usual.all() else usual
        if alike:
            less_ns = values - level[stages.stage]
        else:
            beyond = 1 - usual.mean() / usual if usual.all() else np.zeros(len(usual))
            less_ns = values * beyond[stages.stage]
        changes.append(((name,), np.nan_to_num(less_ns)))
    return tuple(changes)


def _phase(own: ComputeTime, stages: Stages, slowest: int) -> str:
    """Return the phase in which the slowest stage takes most beyond the mean of all."""
    usual = [np.median(_by_stage(own, stages, values), axis=0) for values in own.own]
    return own.phases[int(np.argmax([one[slowest] - one.mean() for one in usual]))]

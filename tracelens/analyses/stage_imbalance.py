"""Stage imbalance: stages of a pipeline that have unequal work, by how the run is built.

Ranks of a stage play the same part, so a slow one of them is a straggler. A replay in which each stage
takes, phase by phase, as long as the mean one says what an even spread would save. What stages still
wait if also no rank and no step differs from the usual one is the pipeline's bubble.
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
    from tracelens.replay.event_graph import EventGraph

# of a step: a stage that is beyond the mean of all by less is not too long [calibrate]
MIN_RESIDUAL_OF_LONG_STAGE: Final = 0.05
MIN_STEPS_FOR_STAGE_TEST: Final = 10  # steps: fewer are not judged [calibrate]
# share of steps: a stage is not reported if it is too long in fewer [calibrate]
MIN_SHARE_OF_STEPS_OF_LONG_STAGE: Final = 0.75
MIN_SAVING_OF_EVEN_STAGES: Final = 0.01  # of the job: an imbalance of less is not reported [policy]
ALONE: Final = (
    "No two ranks play the same part: one that is slow looks like a stage with more work."
)
STAGE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "stage": pl.Int32(),  # 0 = where a step begins
    "ranks": pl.Int32(),
    "first_rank": pl.Int32(),
    "own_ns": pl.Float64(),  # of the usual rank, median over steps
    "over_mean": pl.Float64(),  # own / mean of stages - 1
}


@dataclass(frozen=True, eq=False)
class StageImbalance(DisplayMixin):
    """`stages` has a row a stage; none where all ranks play the same part.

    `bubble_ns` is what all ranks wait because of the schedule alone; 0 where that cannot be replayed.
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
    trace, times = facts.trace, facts.compute_time
    stages = times.stages
    if stages is None or not times.is_comparable_row.any():
        return StageImbalance(pl.DataFrame(schema=STAGE_COLUMNS))
    replay = facts.replay.build_whole() if trace.matched_messages.height else None
    if replay is not None:
        times = _exclude_implicit_waits(times, replay)
    stage_total_ns = _condense_stages(times, stages, times.total_compute_ns)
    if not len(stage_total_ns):
        return StageImbalance(pl.DataFrame(schema=STAGE_COLUMNS))
    stage_ns = np.median(stage_total_ns, axis=0)
    columns = {
        "stage": np.arange(len(stage_ns)),
        "ranks": [len(members) for members in stages.columns_by_stage],
        "first_rank": [times.ranks[members[0]] for members in stages.columns_by_stage],
        "own_ns": stage_ns,
        "over_mean": stage_ns / max(float(stage_ns.mean()), 1.0) - 1,
    }
    table = pl.DataFrame(columns, schema=STAGE_COLUMNS)
    if replay is None:
        return StageImbalance(table)
    finding = _report(facts, replay, times, stages, stage_total_ns)
    uniform_variant = apply_fix(
        replay,
        WorkFix(times.step_numbers, phases_and_effects_ns=_even_out(times, stages, uniform=True)),
    )
    bubble_ns = replay.measure_waits_ns(uniform_variant.lag_ns)
    return StageImbalance(
        stages=table, bubble_ns=bubble_ns, findings=() if finding is None else (finding,)
    )


def _exclude_implicit_waits(times: ComputeTime, replay: EventGraph) -> ComputeTime:
    """Return compute times without the waits in collectives that no span shows."""
    rows = np.searchsorted(replay.step_numbers, times.step_numbers)
    worked = np.stack(
        [
            replay.sum_by_step_and_worker(replay.measure_work_ns((name,)))[rows]
            for name in times.phase_names
        ]
    )
    return replace(times, compute_ns=np.where(np.isnan(times.compute_ns), np.nan, worked))


def _condense_stages(times: ComputeTime, stages: Stages, spent_ns: Floats) -> Floats:
    """Return the median `spent_ns` of the ranks of each stage, [step, stage], in steps that all took."""
    comparable_ns = spent_ns[times.comparable_rows]
    by_stage = [medians(comparable_ns[:, members], axis=1) for members in stages.columns_by_stage]
    stage_ns = np.stack(by_stage, axis=1)
    return np.asarray(stage_ns[~np.isnan(stage_ns).any(axis=1)])


def _report(
    facts: Facts, replay: EventGraph, times: ComputeTime, stages: Stages, total_ns: Floats
) -> Finding | None:
    """Report the stage that takes longest, of [step, stage], if it clearly does in most steps."""
    stage_ns = np.median(total_ns, axis=0)
    slowest, mean_ns = int(stage_ns.argmax()), float(stage_ns.mean())
    residual = (total_ns[:, slowest] - total_ns.mean(axis=1)) / times.typical_step_ns
    long_share = (residual > MIN_RESIDUAL_OF_LONG_STAGE).mean()
    is_short = len(residual) < MIN_STEPS_FOR_STAGE_TEST
    if is_short or long_share < MIN_SHARE_OF_STEPS_OF_LONG_STAGE:
        return None
    fix = WorkFix(times.step_numbers, phases_and_effects_ns=_even_out(times, stages, uniform=False))
    variant_replay = facts.replay.replay(apply_fix(replay, fix))
    lost_ns = np.maximum(
        variant_replay.saved_ns_by_step[np.searchsorted(replay.step_numbers, fix.step_numbers)], 0.0
    )
    run_ns = max(job_ns(facts.trace), 1)
    saving = float(lost_ns.sum()) / run_ns
    if saving < MIN_SAVING_OF_EVEN_STAGES or not variant_replay.identity.is_reliable:
        return None
    ranks = tuple(times.ranks[rank] for rank in stages.columns_by_stage[slowest])
    return Finding.of(
        "stage_imbalance",
        {
            "stage": str(slowest),
            "stages": str(len(stage_ns)),
            "ranks": fmt.listing("rank", ranks),
            "own": fmt.duration(float(stage_ns[slowest])),
            "mean": fmt.duration(mean_ns),
        },
        more=[ALONE] if max(map(len, stages.columns_by_stage)) == 1 else [],
        ranks=ranks,
        phase=_find_longest_phase(times, stages, slowest),
        pattern="persistent",
        slowdown=float(stage_ns[slowest] / max(mean_ns, 1.0)),
        saving=saving,
        interval=variant_replay.identity.widen_interval(bootstrap_interval(lost_ns, run_ns)),
        fix=fix,
        evidence={"stage": slowest, "stage_ns": [round(ns) for ns in stage_ns.tolist()]},
    )


def _even_out(
    times: ComputeTime, stages: Stages, *, uniform: bool
) -> tuple[tuple[tuple[str, ...], Floats], ...]:
    """Return each phase (in a tuple), and what to take off it for even stages, ns, [step, rank].

    If `uniform`, each rank and step of all stages takes the same.
    """
    changes = []
    for phase, phase_ns in zip(times.phase_names, times.compute_ns, strict=True):
        stage_ns = np.median(_condense_stages(times, stages, phase_ns), axis=0)  # [stage]
        # What one stage alone does (data loading, say) is nothing that could be spread.
        is_in_all_stages = stage_ns.all()
        if uniform:
            even_ns = np.full(len(stage_ns), stage_ns.mean()) if is_in_all_stages else stage_ns
            less_ns = phase_ns - even_ns[stages.stage_of_column]
        else:
            less_share = (
                1 - stage_ns.mean() / stage_ns if is_in_all_stages else np.zeros(len(stage_ns))
            )
            less_ns = phase_ns * less_share[stages.stage_of_column]
        changes.append(((phase,), np.nan_to_num(less_ns)))
    return tuple(changes)


def _find_longest_phase(times: ComputeTime, stages: Stages, stage: int) -> str:
    """Return the phase in which a stage takes most beyond the mean of all."""
    by_phase = [np.median(_condense_stages(times, stages, ns), axis=0) for ns in times.compute_ns]
    return times.phase_names[int(np.argmax([ns[stage] - ns.mean() for ns in by_phase]))]

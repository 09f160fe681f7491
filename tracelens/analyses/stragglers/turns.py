"""Delays of single steps, each at another time, on several ranks or on one, for which others wait.

No comparison over the run finds them: no rank is slower than the others by more than at other times, or
it is in so few steps that it could be chance (docs/analyses/stalls-and-slow-phases.md).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from tracelens.accounting.categories import CATEGORIES, UNINSTRUMENTED
from tracelens.accounting.compute_time import COMPUTING, find_proportional_delays
from tracelens.accounting.core_waits import is_machine_busy
from tracelens.accounting.sampled_code import describe_code, find_in_ranks
from tracelens.accounting.watched_stalls import find_watched_stall
from tracelens.analyses.stragglers.location import describe_gap, find_gap
from tracelens.caching import cached_property
from tracelens.model import fmt
from tracelens.model.findings import Finding
from tracelens.replay.delays import price_delay
from tracelens.replay.edits.fixes import WorkFix
from tracelens.stats.robust import drop_minor_values, lower_medians, measure_deviation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.facts import Facts

# of a step: a rank that takes as much longer than the usual rank is late in it [chosen]
MIN_LENGTH_OF_DELAY: Final = 0.10
MIN_LENGTH_OF_PAUSE: Final = 1.0  # of a step: a longer delay is a pause, and no noise [chosen]
# of a step: waits for cores explain no longer delay: a usual step waits for them as well [chosen]
MIN_LENGTH_OF_PAUSE_IF_BUSY: Final = 10.0
# share of steps: a rank that is in time in fewer is a straggler [chosen]
QUANTILE_OF_STEPS_IN_TIME: Final = 0.25
# standard deviations of a rank's change from step to step: a smaller delay is noise [chosen]
MIN_Z_SCORE_OF_DELAY: Final = 6.0
# share of steps with a delay: if half of the ranks or less are delayed in fewer, it is one
# event of many ranks [chosen]
MIN_SHARE_OF_STEPS_OF_FEW_RANKS: Final = 0.5
# share of the delay of the worst rank: if no other rank has as much, that one is delayed alone [chosen]
MIN_SHARE_OF_SECOND_RANK: Final = 0.25
# share of steps: pauses are plain if some rank makes one in as many [calibrate]
MIN_SHARE_OF_STEPS_WITH_PAUSE: Final = 0.5
MIN_LENGTH_OF_PLAIN_PAUSES: Final = 0.10  # of a step: plain pauses are as long [calibrate]
# of the job: plain pauses of less are not reported [policy]
MIN_SAVING_OF_PLAIN_PAUSES: Final = 0.003
# of the job: delays at different times of less are not reported [policy]
MIN_SAVING_OF_TURNS: Final = 0.03
# of the job: garbage collection at different times of less is how equal ranks differ [policy]
MIN_SAVING_OF_PAUSES_IF_FAULT: Final = 0.05
# share of delayed ranks and steps: if fewer are delayed together, ranks are late in turn [chosen]
MIN_SHARE_OF_STEPS_AT_ONCE: Final = 0.6
# of the job: delays of the same ranks of less are not reported; windows of steps show them [policy]
MIN_SAVING_OF_DELAY_AT_ONCE: Final = 0.05
# of the job: equal ranks differ by delays at different times of less [policy]
MIN_SAVING_OF_TURNS_IF_FAULT: Final = 0.10

_KINDS: Final = {"data": "data_stall", "checkpoint": "checkpoint_stall", "gc": "gc_stall"}


def find_turns(
    times: ComputeTime,
    job_ns: float,
    facts: Facts | None = None,
    explained: Mapping[str, Flags] | None = None,
) -> list[Finding]:
    """Report each phase in which ranks are delayed in single steps, and others wait.

    No delay counts where ranks are stragglers, as `explained` flags by phase, [step, rank].
    """
    even_times = times.with_equal_stages
    has_more_work = find_proportional_delays(even_times)
    findings = []
    for phase, phase_ns in zip(times.phase_names, even_times.compute_ns, strict=True):
        spent_ns = np.nan_to_num(phase_ns, nan=0.0)
        delay_ns = spent_ns if phase == "gc" else _find_delays(spent_ns, times.typical_step_ns)
        if phase in COMPUTING:  # more work explains what a rank takes beyond its own usual time
            extra_ns = np.maximum(spent_ns - np.median(spent_ns, axis=0), 0.0)
            delay_ns = np.maximum(delay_ns - np.where(has_more_work, extra_ns, 0.0), 0.0)
        if explained and phase in explained:
            delay_ns = np.where(explained[phase], 0.0, delay_ns)
        if _is_of_few_ranks(delay_ns):
            main_delay_ns = drop_minor_values(_keep_main_ranks(delay_ns))
            delays = _Delays(times, phase, delay_ns=main_delay_ns)
            findings += _report_delays(delays, job_ns, facts)
    return findings


def _find_delays(spent_ns: Floats, step_ns: float) -> Floats:
    """Return by how much longer each rank took where it is late, else 0, ns, [step, rank].

    `spent_ns` is what ranks took for a phase, [step, rank]; a usual step takes `step_ns`.
    """
    extra_ns = spent_ns - lower_medians(spent_ns)[:, None]
    changes_ns = np.diff(extra_ns, axis=0)  # from step to step
    noise_ns = measure_deviation(changes_ns) / np.sqrt(2) if len(changes_ns) else 0.0
    min_delay_ns = max(MIN_LENGTH_OF_DELAY * step_ns, MIN_Z_SCORE_OF_DELAY * noise_ns)
    # How equal ranks differ throughout is no delay; what is clearly more belongs to it.
    usual_extra_ns = np.quantile(extra_ns, QUANTILE_OF_STEPS_IN_TIME, axis=0)
    extra_ns -= np.where(usual_extra_ns > min_delay_ns, 0.0, usual_extra_ns)
    return np.where(extra_ns > min_delay_ns, extra_ns, 0.0)


def _is_of_few_ranks(delay_ns: Floats) -> bool:
    """Return True if in most steps with a delay, [step, rank], half of the ranks or less have one."""
    is_delayed = delay_ns > 0
    late_counts = is_delayed[is_delayed.any(axis=1)].sum(axis=1)  # ranks, [step with a delay]
    few_count = np.count_nonzero(late_counts <= is_delayed.shape[1] // 2)
    min_count = MIN_SHARE_OF_STEPS_OF_FEW_RANKS * len(late_counts)
    return len(late_counts) > 0 and bool(few_count >= min_count)


def _keep_main_ranks(delay_ns: Floats) -> Floats:
    """Return the delays, [step, rank], of the one rank with by far the most delay, else of all ranks."""
    rank_delays_ns = delay_ns.sum(axis=0)
    second_ns, most_ns = np.sort(rank_delays_ns)[-2:]
    is_alone = second_ns < MIN_SHARE_OF_SECOND_RANK * most_ns
    return np.where(rank_delays_ns == most_ns, delay_ns, 0.0) if is_alone else delay_ns


@dataclass(frozen=True, eq=False)
class _Delays:
    """Delays of ranks in single steps of a phase, [step, rank]; some are not 0."""

    times: ComputeTime
    phase: str
    delay_ns: Floats

    @cached_property
    def delayed_rows(self) -> Indices:
        """Rows of the steps with a delay."""
        return np.flatnonzero(self.delay_ns.any(axis=1))

    @property
    def delayed_steps(self) -> Ints:
        return self.times.step_numbers[self.delayed_rows]

    @cached_property
    def delayed_ranks(self) -> tuple[int, ...]:
        """The delayed ranks."""
        return tuple(
            self.times.ranks[column] for column in np.flatnonzero(self.delay_ns.any(axis=0))
        )

    @cached_property
    def is_simultaneous(self) -> bool:
        """Whether these ranks are delayed in the same steps, as one rank always is."""
        is_delayed = self.delay_ns[self.delayed_rows][:, self.delay_ns.any(axis=0)] > 0
        return bool(is_delayed.mean() >= MIN_SHARE_OF_STEPS_AT_ONCE)

    @cached_property
    def mean_delay_ns(self) -> float:
        """How long a delay is, on average."""
        return float(self.delay_ns[self.delay_ns > 0].mean())

    @property
    def min_saving_share(self) -> float:
        """What must be saved without them, as a share of the job, to be reported."""
        if self.phase == "gc":
            is_common = len(self.delayed_rows) >= MIN_SHARE_OF_STEPS_WITH_PAUSE * len(
                self.times.step_numbers
            )
            is_long = self.mean_delay_ns >= MIN_LENGTH_OF_PLAIN_PAUSES * self.times.typical_step_ns
            return MIN_SAVING_OF_PLAIN_PAUSES if is_common and is_long else MIN_SAVING_OF_TURNS
        return MIN_SAVING_OF_DELAY_AT_ONCE if self.is_simultaneous else MIN_SAVING_OF_TURNS


def _report_delays(delays: _Delays, job_ns: float, facts: Facts | None) -> list[Finding]:
    """Report delays if others wait for them and they cost enough."""
    times, phase, steps = delays.times, delays.phase, delays.delayed_steps
    fix = WorkFix(times.step_numbers, phases_and_effects_ns=(((phase,), delays.delay_ns),))
    price = price_delay(times, fix, job_ns, facts.replay if facts else None)
    others_wait = price.waiting_rank_count or price.communicating_rank_count
    is_awaited = others_wait or times.leaves_out_ranks
    if not is_awaited or price.saving_share < delays.min_saving_share:
        return []
    clue_sentences, clue_evidence = _find_clues(facts, delays)
    return [
        Finding.of(
            _KINDS.get(phase, "straggler"),
            _fill_sentence(delays),
            case="at once" if delays.is_simultaneous else "in turn",
            more=clue_sentences,
            category=_categorize(delays, price.saving_share, facts),
            saving=price.saving_share,
            interval=price.saving_interval,
            cost=price.cost_share,
            fix=fix if price.is_replayed else None,
            ranks=delays.delayed_ranks,
            phase=phase,
            pattern="sparse" if delays.is_simultaneous else "migrating",
            steps=(int(steps[0]), int(steps[-1])),
            evidence={"extra_ns": round(delays.mean_delay_ns), "steps_late": len(steps)}
            | clue_evidence,
        )
    ]


def _fill_sentence(delays: _Delays) -> dict[str, str]:
    """Return the fields of the sentence of a finding."""
    steps, extra = delays.delayed_steps.tolist(), fmt.duration(delays.mean_delay_ns)
    steps_text = f"{len(steps)} of {len(delays.times.step_numbers)} steps"
    fields = {
        "who": fmt.capital(fmt.listing("rank", delays.delayed_ranks)),
        "phase": fmt.phase(delays.phase),
        "when": fmt.listing("step", steps) if len(steps) <= fmt.MOST_LISTED else steps_text,
        "extra": extra,
    }
    if delays.is_simultaneous:
        fields["is"] = "are" if len(delays.delayed_ranks) > 1 else "is"
        fields["extra"] = f"{extra} each time" if len(steps) > 1 else extra
    return fields


def _find_clues(facts: Facts | None, delays: _Delays) -> tuple[list[str], dict[str, Any]]:
    """Compare ranks with their peers in the late steps; return sentences on the cause, and evidence."""
    if facts is None:
        return [], {}
    phases, ranks, steps = facts.phases, delays.delayed_ranks, delays.delayed_steps
    peers = tuple(rank for rank in phases.pieces.ranks if rank not in ranks)
    is_uncovered = delays.phase == CATEGORIES[UNINSTRUMENTED]
    gap = find_gap(phases, ranks, peers, steps) if is_uncovered else None
    extra_ns = delays.mean_delay_ns
    culprit = (
        find_in_ranks(
            facts.trace, phases, ranks, peers, delays.phase, step_numbers=steps, extra_ns=extra_ns
        )
        if peers
        else None
    )
    watched = None if culprit else find_watched_stall(facts.trace, ranks, steps)
    sentences = [watched.sentence] if watched else [describe_gap(gap, culprit)] if gap else []
    return [*sentences, *describe_code(culprit)], {
        "place": asdict(gap) if gap else None,
        "samples": culprit.to_evidence() if culprit else None,
        "watched": watched.to_evidence() if watched else None,
    }


def _categorize(
    delays: _Delays, saving: float, facts: Facts | None
) -> Literal["fault", "opportunity"]:
    """Return "fault" unless ranks wait for cores, or the saving (share of the job) may be noise."""
    min_saving = MIN_SAVING_OF_TURNS_IF_FAULT
    if delays.phase == "gc":
        min_saving = MIN_SAVING_OF_PAUSES_IF_FAULT
    elif delays.phase != "data":
        core_wait_share = (facts.core_wait_share if facts else None) or 0.0
        length = delays.mean_delay_ns / delays.times.typical_step_ns  # of a step
        may_be_chance = not (delays.is_simultaneous or length >= MIN_LENGTH_OF_PAUSE)
        may_be_busy = is_machine_busy(core_wait_share) and length < MIN_LENGTH_OF_PAUSE_IF_BUSY
        if delays.phase == "checkpoint" or may_be_chance or may_be_busy:
            return "opportunity"
    return "fault" if saving >= min_saving else "opportunity"

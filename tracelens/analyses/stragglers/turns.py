"""Delays of single steps: each at another time, on several ranks in turns or on one, and all wait.

No comparison over the run sees them, as no rank is slower than the others by more than it is at other
times, or in so few steps that it could be chance. So single steps of single ranks are looked for that
take clearly longer than they take the usual rank in the same step, in any phase, and what they cost
together is weighed. Work that varies in every step and on every rank is no such delay: it raises the
noise that a delay must exceed, and makes forward and backprop longer alike (`imbalance.py` tells it).
Garbage collection counts as it was recorded: ranks that collect in the same steps wait for nobody.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from tracelens.accounting.categories import CATEGORIES, UNINSTRUMENTED
from tracelens.accounting.compute_time import COMPUTING, find_more_work
from tracelens.accounting.sampled_code import code_sentences, of_ranks
from tracelens.analyses.stragglers.location import place_of
from tracelens.model import fmt
from tracelens.model.findings import Finding
from tracelens.replay.delays import price_delay
from tracelens.replay.edits.fixes import WorkFix
from tracelens.stats.robust import deviation, lower_medians

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.accounting.sampled_code import Culprit
    from tracelens.analyses.stragglers.location import Place
    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.facts import Facts

# of a step: a rank that takes as much longer than the usual rank is late in it [chosen]
MIN_LENGTH_OF_DELAY: Final = 0.10
# share of steps: a rank is in time in as many, or it is a straggler [chosen]
QUANTILE_OF_STEPS_IN_TIME: Final = 0.25
# standard deviations of a rank's change from step to step: a smaller delay is noise [chosen]
MIN_Z_SCORE_OF_DELAY: Final = 6.0
# share of steps with a delay: if in fewer of them half of the ranks or less are delayed, it is one event
# of many ranks [chosen]
MIN_SHARE_OF_STEPS_OF_FEW_RANKS: Final = 0.5
# share of all delay: if one rank has more, it is delayed alone [chosen]
MIN_SHARE_OF_DELAY_OF_ONE_RANK: Final = 0.9
# share of steps: pauses are plain if some rank makes one in as many [calibrate]
MIN_SHARE_OF_STEPS_WITH_PAUSE: Final = 0.5
MIN_LENGTH_OF_PLAIN_PAUSES: Final = 0.10  # of a step: plain pauses are as long [calibrate]
# of the job: plain pauses of less are not reported [policy]
MIN_SAVING_OF_PLAIN_PAUSES: Final = 0.003
MIN_SAVING_OF_TURNS: Final = 0.03  # of the job: delays in turns of less are not reported [policy]
# of the job: garbage collection in turns of less is how equal ranks differ [policy]
MIN_SAVING_OF_PAUSES_IF_FAULT: Final = 0.05
# of the job: delays in turns of less may be how equal ranks differ [policy]
MIN_SAVING_OF_TURNS_IF_FAULT: Final = 0.10

_KINDS: Final = {"data": "data_stall", "checkpoint": "checkpoint_stall", "gc": "gc_stall"}


def find_turns(
    own: ComputeTime,
    job_ns: float,
    facts: Facts | None = None,
    explained: Mapping[str, Flags] | None = None,
) -> list[Finding]:
    """Return a finding for each phase in which ranks are delayed in single steps, and others wait.

    Args:
        own: Compute time of all workers.
        job_ns: How long the job took.
        facts: Of the run: its replay, and what was recorded of the code; None without.
        explained: Where ranks are stragglers in a phase, [step, rank]: no delay there counts.
    """
    level = own.levelled
    has_more_work = find_more_work(level)
    found = []
    for phase, values in zip(own.phases, level.own, strict=True):
        spent = np.nan_to_num(values, nan=0.0)
        delay_ns = spent if phase == "gc" else _find_delays(spent, own.step_ns)
        if phase in COMPUTING:
            delay_ns = np.where(has_more_work, 0.0, delay_ns)
        if explained and phase in explained:
            delay_ns = np.where(explained[phase], 0.0, delay_ns)
        if _is_of_few_ranks(delay_ns):
            found += _price(own, phase, delay_ns, job_ns, facts)
    return found


def _find_delays(spent: Floats, step_ns: float) -> Floats:
    """Return by how much longer each rank took in the steps in which it is late, ns, [step, rank]."""
    beyond = spent - lower_medians(spent)[:, None]
    # A rank that is always slower is a straggler.
    beyond -= np.quantile(beyond, QUANTILE_OF_STEPS_IN_TIME, axis=0)
    noise = deviation(np.diff(beyond, axis=0)) / np.sqrt(2) if len(beyond) > 1 else 0.0
    least = max(MIN_LENGTH_OF_DELAY * step_ns, MIN_Z_SCORE_OF_DELAY * noise)
    return np.where(beyond > least, beyond, 0.0)


def _is_of_few_ranks(delay_ns: Floats) -> bool:
    """Return whether in most steps with a delay half of the ranks or less have one."""
    is_delayed = delay_ns > 0
    ranks = is_delayed[is_delayed.any(axis=1)].sum(axis=1)
    few = np.count_nonzero(ranks <= is_delayed.shape[1] // 2)
    return len(ranks) > 0 and bool(few >= MIN_SHARE_OF_STEPS_OF_FEW_RANKS * len(ranks))


def _price(
    own: ComputeTime, phase: str, delay_ns: Floats, job_ns: float, facts: Facts | None
) -> list[Finding]:
    """Return what the delays cost, if others wait for them and it is worth a sentence."""
    cost = price_delay(
        own.total,
        delay_ns,
        own.wait,
        job_ns,
        waits_known=not own.parted,
        length=own.length,
        replay=None
        if facts is None
        else partial(facts.replay.measure_savings, (phase,), steps=own.steps),
    )
    hit = np.flatnonzero(delay_ns.any(axis=1))
    length = float(delay_ns[delay_ns > 0].mean()) if hit.size else 0.0
    is_plain = (
        phase == "gc"
        and len(hit) >= MIN_SHARE_OF_STEPS_WITH_PAUSE * len(own.steps)
        and length >= MIN_LENGTH_OF_PLAIN_PAUSES * own.step_ns
    )
    least = MIN_SAVING_OF_PLAIN_PAUSES if is_plain else MIN_SAVING_OF_TURNS
    is_awaited = cost.waiting or cost.communicating or own.parted
    if not is_awaited or cost.saving < least:
        return []
    by_rank = delay_ns.sum(axis=0)
    is_alone = bool(by_rank.max() >= MIN_SHARE_OF_DELAY_OF_ONE_RANK * by_rank.sum())
    columns = [int(by_rank.argmax())] if is_alone else np.flatnonzero(by_rank).tolist()
    ranks = tuple(own.ranks[column] for column in columns)
    steps = (int(own.steps[hit[0]]), int(own.steps[hit[-1]]))
    clues = _find_clues(facts, phase, ranks, own.steps[hit], length) if facts else _Clues()
    return [
        Finding.of(
            _KINDS.get(phase, "straggler"),
            {
                "who": fmt.capital(fmt.listing("rank", ranks)),
                "phase": fmt.phase(phase),
                "when": _list_steps(hit, own.steps),
                "extra": fmt.duration(length) + " each time" * (is_alone and len(hit) > 1),
            },
            case="alone" if is_alone else "in turn",
            more=clues.sentences,
            category=_categorize(phase, cost.saving),
            saving=cost.saving,
            interval=cost.interval,
            cost=cost.cost,
            fix=WorkFix(own.steps, (((phase,), delay_ns),)) if cost.is_replayed else None,
            ranks=ranks,
            phase=phase,
            pattern="sparse" if is_alone else "migrating",
            steps=steps,
            evidence={"extra_ns": round(length), "steps_late": len(hit)} | clues.evidence,
        )
    ]


@dataclass(frozen=True)
class _Clues:
    """Where a delay is: between which spans, if none covers it, and in which sampled code."""

    place: Place | None = None
    samples: Culprit | None = None

    @property
    def sentences(self) -> list[str]:
        """Return it in words."""
        where = [f"No span covers it; it is {self.place.text}."] if self.place else []
        return [*where, *code_sentences(self.samples)]

    @property
    def evidence(self) -> dict[str, Any]:
        """Return it as numbers."""
        return {
            "place": asdict(self.place) if self.place else None,
            "samples": self.samples.evidence() if self.samples else None,
        }


def _find_clues(
    facts: Facts, phase: str, ranks: tuple[int, ...], steps: Ints, extra_ns: float
) -> _Clues:
    """Compare ranks with their peers in the steps in which they are delayed."""
    trace, phases = facts.trace, facts.phases
    peers = tuple(rank for rank in phases.pieces.ranks if rank not in ranks)
    is_uncovered = phase == CATEGORIES[UNINSTRUMENTED]
    return _Clues(
        place_of(phases, ranks, peers, steps) if is_uncovered else None,
        of_ranks(trace, phases, ranks, peers, phase, steps=steps, extra_ns=extra_ns)
        if peers
        else None,
    )


def _list_steps(rows: Indices, steps: Ints) -> str:
    """Name the steps with a delay, if they are few."""
    if len(rows) <= fmt.MOST_LISTED:
        return fmt.listing("step", steps[rows].tolist())
    return f"{len(rows)} of {len(steps)} steps"


def _categorize(phase: str, saving: float) -> Literal["fault", "opportunity"]:
    least = MIN_SAVING_OF_PAUSES_IF_FAULT if phase == "gc" else MIN_SAVING_OF_TURNS_IF_FAULT
    return "opportunity" if phase == "checkpoint" or saving < least else "fault"

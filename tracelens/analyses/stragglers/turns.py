"""Delays of single steps: each at another time, on several ranks or on one, and all wait.

No comparison over the run sees them, as no rank is slower than the others by more than it is at other
times, or in so few steps that it could be chance. So single steps of single ranks are looked for that
take clearly longer than they take the usual rank in the same step, in any phase, and what they cost
together is weighed. Work that varies in every step and on every rank is no such delay: it raises the
noise that a delay must exceed, and makes forward and backprop longer alike (`imbalance.py` tells it).
Garbage collection counts as it was recorded: ranks that collect in the same steps wait for nobody.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from tracelens.accounting.categories import CATEGORIES, UNINSTRUMENTED
from tracelens.accounting.compute_time import COMPUTING, find_more_work
from tracelens.accounting.core_waits import is_busy
from tracelens.accounting.sampled_code import code_sentences, of_ranks
from tracelens.analyses.stragglers.location import place_of, place_sentences
from tracelens.caching import cached_property
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
MIN_LENGTH_OF_PAUSE: Final = 1.0  # of a step: a longer delay is a pause, and no noise [chosen]
# share of steps: a rank is in time in as many, or it is a straggler [chosen]
QUANTILE_OF_STEPS_IN_TIME: Final = 0.25
# standard deviations of a rank's change from step to step: a smaller delay is noise [chosen]
MIN_Z_SCORE_OF_DELAY: Final = 6.0
# share of steps with a delay: if in fewer of them half of the ranks or less are delayed, it is one event
# of many ranks [chosen]
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
# share of delayed ranks and steps: as many are delayed at once, or each at another time [chosen]
MIN_SHARE_OF_STEPS_AT_ONCE: Final = 0.6
# of the job: delays of the same ranks of less are not reported; windows of steps tell them [policy]
MIN_SAVING_OF_DELAY_AT_ONCE: Final = 0.05
# of the job: delays at different times of less may be how equal ranks differ [policy]
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
        if phase in COMPUTING:  # more work explains what a rank takes beyond its own usual time
            beyond = np.maximum(spent - np.median(spent, axis=0), 0.0)
            delay_ns = np.maximum(delay_ns - np.where(has_more_work, beyond, 0.0), 0.0)
        if explained and phase in explained:
            delay_ns = np.where(explained[phase], 0.0, delay_ns)
        if _is_of_few_ranks(delay_ns):
            found += _price(_Delays(own, phase, _keep_main_ranks(delay_ns)), job_ns, facts)
    return found


def _find_delays(spent: Floats, step_ns: float) -> Floats:
    """Return by how much longer each rank took in the steps in which it is late, ns, [step, rank]."""
    beyond = spent - lower_medians(spent)[:, None]
    noise = deviation(np.diff(beyond, axis=0)) / np.sqrt(2) if len(beyond) > 1 else 0.0
    least = max(MIN_LENGTH_OF_DELAY * step_ns, MIN_Z_SCORE_OF_DELAY * noise)
    # How equal ranks differ for good is no delay; what is clearly more belongs to it.
    usual = np.quantile(beyond, QUANTILE_OF_STEPS_IN_TIME, axis=0)
    beyond -= np.where(usual > least, 0.0, usual)
    return np.where(beyond > least, beyond, 0.0)


def _is_of_few_ranks(delay_ns: Floats) -> bool:
    """Return whether in most steps with a delay half of the ranks or less have one."""
    is_delayed = delay_ns > 0
    ranks = is_delayed[is_delayed.any(axis=1)].sum(axis=1)
    few = np.count_nonzero(ranks <= is_delayed.shape[1] // 2)
    return len(ranks) > 0 and bool(few >= MIN_SHARE_OF_STEPS_OF_FEW_RANKS * len(ranks))


def _keep_main_ranks(delay_ns: Floats) -> Floats:
    """Return the delays of one rank, where it has by far the most delay, else of all ranks."""
    by_rank = delay_ns.sum(axis=0)
    second, most = np.sort(by_rank)[-2:]
    is_alone = second < MIN_SHARE_OF_SECOND_RANK * most
    return np.where(by_rank == most, delay_ns, 0.0) if is_alone else delay_ns


@dataclass(frozen=True, eq=False)
class _Delays:
    """Delays of ranks in single steps of a phase, ns, [step, rank]; some are not 0."""

    own: ComputeTime
    phase: str
    ns: Floats

    @cached_property
    def rows(self) -> Indices:
        """The rows with a delay."""
        return np.flatnonzero(self.ns.any(axis=1))

    @cached_property
    def columns(self) -> list[int]:
        """The columns of the delayed ranks."""
        columns: list[int] = np.flatnonzero(self.ns.any(axis=0)).tolist()
        return columns

    @property
    def is_at_once(self) -> bool:
        """Whether these ranks are delayed in the same steps, as one always is."""
        is_delayed = self.ns[self.rows][:, self.columns] > 0
        return bool(is_delayed.mean() >= MIN_SHARE_OF_STEPS_AT_ONCE)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The delayed ranks."""
        return tuple(self.own.ranks[column] for column in self.columns)

    @property
    def steps(self) -> Ints:
        """The steps with a delay."""
        return self.own.steps[self.rows]

    @property
    def length_ns(self) -> float:
        """How long a delay is, on average."""
        return float(self.ns[self.ns > 0].mean())

    @property
    def least_saving(self) -> float:
        """What must be saved without them, as a share of the job, to be reported."""
        own = self.own
        is_common = len(self.rows) >= MIN_SHARE_OF_STEPS_WITH_PAUSE * len(own.steps)
        is_long = self.length_ns >= MIN_LENGTH_OF_PLAIN_PAUSES * own.step_ns
        if self.phase == "gc":
            return MIN_SAVING_OF_PLAIN_PAUSES if is_common and is_long else MIN_SAVING_OF_TURNS
        return MIN_SAVING_OF_DELAY_AT_ONCE if self.is_at_once else MIN_SAVING_OF_TURNS


def _price(delays: _Delays, job_ns: float, facts: Facts | None) -> list[Finding]:
    """Return what the delays cost, if others wait for them and it is worth a sentence."""
    own, phase = delays.own, delays.phase
    fix = WorkFix(own.steps, (((phase,), delays.ns),))
    cost = price_delay(own, fix, job_ns, facts.replay if facts else None)
    is_awaited = cost.waiting or cost.communicating or own.parted
    if not is_awaited or cost.saving < delays.least_saving:
        return []
    clues = _find_clues(facts, delays) if facts else _Clues()
    steps, is_at_once = delays.steps, delays.is_at_once
    return [
        Finding.of(
            _KINDS.get(phase, "straggler"),
            _fields(delays),
            case="at once" if is_at_once else "in turn",
            more=clues.sentences,
            category=_categorize(delays, cost.saving, facts),
            saving=cost.saving,
            interval=cost.interval,
            cost=cost.cost,
            fix=fix if cost.is_replayed else None,
            ranks=delays.ranks,
            phase=phase,
            pattern="sparse" if is_at_once else "migrating",
            steps=(int(steps[0]), int(steps[-1])),
            evidence={"extra_ns": round(delays.length_ns), "steps_late": len(steps)}
            | clues.evidence,
        )
    ]


def _fields(delays: _Delays) -> dict[str, str]:
    """Return what is filled into the sentence of a finding."""
    steps, extra = delays.steps.tolist(), fmt.duration(delays.length_ns)
    few = len(steps) <= fmt.MOST_LISTED
    fields = {
        "who": fmt.capital(fmt.listing("rank", delays.ranks)),
        "phase": fmt.phase(delays.phase),
        "when": fmt.listing("step", steps)
        if few
        else f"{len(steps)} of {len(delays.own.steps)} steps",
        "extra": extra,
    }
    if not delays.is_at_once:
        return fields
    each = " each time" * (len(steps) > 1)
    is_or_are = "are" if len(delays.ranks) > 1 else "is"
    return fields | {"is": is_or_are, "extra": f"{extra}{each}"}


@dataclass(frozen=True)
class _Clues:
    """Where a delay is: between which spans, if none covers it, and in which sampled code."""

    place: Place | None = None
    samples: Culprit | None = None

    @property
    def sentences(self) -> list[str]:
        """Return it in words."""
        where = place_sentences(self.place, self.samples) if self.place else []
        return [*where, *code_sentences(self.samples)]

    @property
    def evidence(self) -> dict[str, Any]:
        """Return it as numbers."""
        return {
            "place": asdict(self.place) if self.place else None,
            "samples": self.samples.evidence() if self.samples else None,
        }


def _find_clues(facts: Facts, delays: _Delays) -> _Clues:
    """Compare ranks with their peers in the steps in which they are delayed."""
    trace, phases, ranks = facts.trace, facts.phases, delays.ranks
    peers = tuple(rank for rank in phases.pieces.ranks if rank not in ranks)
    is_uncovered = delays.phase == CATEGORIES[UNINSTRUMENTED]
    place = place_of(phases, ranks, peers, delays.steps) if is_uncovered else None
    if not peers:
        return _Clues(place)
    samples = of_ranks(
        trace,
        phases,
        ranks,
        peers,
        delays.phase,
        steps=delays.steps,
        extra_ns=delays.length_ns,
    )
    return _Clues(place, samples)


def _categorize(
    delays: _Delays, saving: float, facts: Facts | None
) -> Literal["fault", "opportunity"]:
    """Return whether something is wrong.

    Not where ranks waited for cores. Nor if ranks compute a part of a step longer, each at another time:
    among many ranks noise does that, too.
    """
    if delays.phase == "checkpoint":
        return "opportunity"
    if delays.phase == "gc":
        return "fault" if saving >= MIN_SAVING_OF_PAUSES_IF_FAULT else "opportunity"
    core_wait = facts.core_wait if facts else None
    is_long = delays.length_ns >= MIN_LENGTH_OF_PAUSE * delays.own.step_ns
    is_chance = core_wait is not None and is_busy(core_wait)
    is_chance |= not (delays.is_at_once or is_long)
    if is_chance and delays.phase != "data":
        return "opportunity"
    return "fault" if saving >= MIN_SAVING_OF_TURNS_IF_FAULT else "opportunity"

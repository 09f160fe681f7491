"""Stragglers: which ranks are late by their own work, in which phase and steps, and what that costs.

Compute time is compared, never how long communication lasts: waiting is the victim's symptom. Three
ranks or more are judged against each other, two by permutations (`stats/window_scan.py`), and of one
rank nothing can be said; where ranks are stages of pipelines, each is compared with those of its stage.
What corroborates a straggler beside its compute time is that others were blocked by it, in collectives
or in messages; of who was blocked meanwhile itself, others down the chain are the victims, too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import polars as pl

from tracelens.accounting import compute_time, sampled_code
from tracelens.accounting.categories import CATEGORIES, UNINSTRUMENTED
from tracelens.accounting.communication.awaited_ranks import (
    blocked_by,
    complete_calls,
    last_share,
    measure_caused_waits,
    sum_by_rank,
)
from tracelens.accounting.compute_time import (
    Workload,
    measure_workload,
    workload_ratios,
    workload_sentences,
)
from tracelens.accounting.core_waits import core_wait_of
from tracelens.accounting.phases import job_ns
from tracelens.analyses.stragglers import episodes
from tracelens.analyses.stragglers.episodes import fix_of, priced
from tracelens.analyses.stragglers.location import parts_of, place_of, place_sentences
from tracelens.analyses.stragglers.turns import find_turns
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import TWO_SIDED, Finding
from tracelens.stats.robust import deviation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.accounting.core_waits import CoreWait
    from tracelens.accounting.phases import Phases
    from tracelens.accounting.sampled_code import Culprit
    from tracelens.analyses.stragglers.detection import Episode
    from tracelens.analyses.stragglers.location import Parts, Place
    from tracelens.arrays import Flags
    from tracelens.facts import Facts
    from tracelens.model.trace import Trace
    from tracelens.replay.delays import Price


# late ranks for each other rank: with more, the median rank is no reliable baseline [chosen]
MAX_LATE_RANKS_PER_OTHER: Final = 0.75
MIN_STEPS_FOR_STRAGGLER_TEST: Final = 30  # steps: fewer are not judged [chosen]
# times the uncertainty of clocks: if a step loses less, arrivals cannot tell [chosen]
MIN_LOSS_IN_CLOCK_UNCERTAINTIES: Final = 3
# share of a loss: ranks for which others waited less are no stragglers [chosen]
MIN_SHARE_OF_LOSS_AWAITED: Final = 0.25
# standard deviations: waits for ranks at collectives may be as much longer than measured [chosen]
Z_SCORE_OF_WAIT_AT_CALLS: Final = 2.0
# standard deviations: waits for ranks in messages may be as much longer than measured [chosen]
Z_SCORE_OF_WAIT_FOR_MESSAGES: Final = 2.0
# of a step: a smaller delay of one of two ranks is an opportunity; of 20 healthy runs of two
# equal processes on one quiet machine, two differed by 10 and 13 % throughout [policy]
MIN_DELAY_OF_PAIR_IF_FAULT: Final = 0.15
# share of a host's ranks: if fewer are late, ranks are named instead of the host [chosen]
MIN_SHARE_OF_LATE_RANKS_OF_HOST: Final = 0.75
MIN_PARTS_TO_NAME_LAYERS: Final = 3  # parts of a phase: of fewer none is named [policy]
# share of a delay: if reductions in flight absorb less, that gets no sentence [policy]
MIN_SHARE_ABSORBED_TO_REPORT: Final = 0.1

_KINDS: Final[dict[str, str]] = {"checkpoint": "checkpoint_stall", "gc": "gc_stall"}


@dataclass(frozen=True)
class Stragglers(DisplayMixin):
    """`statement` says in a sentence what could not be judged; null if everything was."""

    findings: tuple[Finding, ...] = ()
    statement: str | None = None


def run(facts: Facts) -> Stragglers:
    """Find late ranks and price them."""
    trace, phases = facts.trace, facts.phases
    own = facts.compute_time
    statement = _insufficient(own, chosen=trace.choice.steps is not None)
    if statement:
        return Stragglers(statement=statement)
    job = job_ns(trace)
    worth = priced(own, job, facts.replay)
    late = {rank for entry, _ in worth for rank in entry.ranks if entry.pattern != "migrating"}
    others = len(own.ranks) - len(late)
    majority = len(own.ranks) > 2 and len(late) > MAX_LATE_RANKS_PER_OTHER * others
    given = measure_workload(phases, own) if worth else {}
    findings = [
        _finding(trace, own, found, _clues(trace, phases, own, found, given))
        for entry, cost in worth
        if _corroborated(facts, entry, lost_ns=cost.interval[0] * job)
        for found in [_straggler(own, entry, cost, majority=majority)]
    ]
    if own.server is not None:  # whoever is slow makes fewer of its tasks
        return Stragglers(tuple(findings))
    lasting = [entry for entry, _ in worth if entry.pattern != "sparse"]
    explained = _explained_by(lasting, own)
    _exclude_jumps(explained, trace, own)
    turns = find_turns(own, job, facts, explained)
    return Stragglers(tuple(_with_turns(findings, turns)))


def _with_turns(findings: list[Finding], turns: list[Finding]) -> Iterator[Finding]:
    """Yield all findings; ranks that stall at different times are one, and so is one alone."""
    in_turns = {turn.phase for turn in turns if turn.pattern == "migrating"}
    kept = [one for one in findings if one.pattern != "sparse" or one.phase not in in_turns]
    named = {(one.phase, rank) for one in kept for rank in one.ranks}
    yield from kept
    for turn in turns:
        is_known = all((turn.phase, rank) in named for rank in turn.ranks)
        if turn.pattern == "migrating" or not is_known:
            yield turn


def _explained_by(found: list[Episode], own: ComputeTime) -> dict[str, Flags]:
    """Return where, phase by phase, stragglers are delayed, [step, rank]."""
    explained: dict[str, Flags] = {}
    for entry in found:
        for phase in (entry.phase, *entry.also):
            before = explained.get(phase, np.zeros(own.total.shape, np.bool_))
            explained[phase] = before | (entry.effect > 0)
    return explained


def _exclude_jumps(explained: dict[str, Flags], trace: Trace, own: ComputeTime) -> None:
    """Add the steps in which a host's clock jumped: what its ranks did then is not known."""
    for host in trace.alignment.hosts:
        columns = np.flatnonzero(np.array(own.hosts) == host.host)
        for jump in host.jumps:
            inside = trace.steps.filter(pl.col("start_ns") <= jump)["step"].max()
            rows = np.abs(own.steps - (inside if isinstance(inside, int) else own.steps[0])) <= 1
            for phase in own.phases:
                explained.setdefault(phase, np.zeros(own.total.shape, np.bool_))
                explained[phase][np.ix_(rows, columns)] = True


def _insufficient(own: ComputeTime, *, chosen: bool) -> str | None:
    """Return why nothing can be judged, if so; `chosen` says that steps were left out as asked."""
    if len(own.ranks) < 2:
        return f"{len(own.ranks) or 'No'} worker rank: straggler tests compare ranks, so none was made."
    more = ". Choose more with --steps or --time" if chosen else ""
    if len(own.steps) < MIN_STEPS_FOR_STRAGGLER_TEST:
        hint = more or ". Mark steps with tl.step(i)"
        found = fmt.count(len(own.steps), "step")
        return f"Only {found} found; straggler tests need {MIN_STEPS_FOR_STRAGGLER_TEST}{hint}."
    least = MIN_STEPS_FOR_STRAGGLER_TEST - compute_time.WARM_UP
    settled = int(np.count_nonzero(own.settled))
    if settled < least:
        return (
            f"Only {settled} of {len(own.steps)} steps can be compared: not the first "
            f"{compute_time.WARM_UP}, nor those in which all ranks take far longer than usual "
            f"or half are not there; straggler tests need {least}{more}."
        )
    return None


def _corroborated(facts: Facts, late: Episode, *, lost_ns: float) -> bool:
    """Return whether these ranks delayed others, as they must if steps are longer for it.

    `lost_ns` is what is lost at least. Only what is clearly too little speaks against it, for others
    hold up ranks, too, each as noise has it. An update is felt in the step after. Not asked where
    arrivals cannot tell: without communication, within the clocks' uncertainty, and where the lateness
    wanders.
    """
    trace, own = facts.trace, facts.compute_time
    rows = np.union1d(late.touched, np.minimum(late.touched + 1, len(own.steps) - 1))
    ranks = tuple(own.ranks[rank] for rank in late.ranks)
    if own.work_left_to_others(late.ranks):
        return True
    clear_ns = MIN_LOSS_IN_CLOCK_UNCERTAINTIES * trace.uncertainty_ns * len(rows)
    if late.pattern == "migrating" or lost_ns < clear_ns:
        return True
    messages = facts.awaited_messages.filter(pl.col("step").is_in(own.steps[rows]))
    if messages.height:
        peers = tuple(own.ranks[rank] for rank in own.peers_of(late.ranks))
        caused = dict(sum_by_rank(measure_caused_waits(messages, facts.phases)).iter_rows())
        if _beyond(caused, ranks, peers) >= MIN_SHARE_OF_LOSS_AWAITED * lost_ns:
            return True
    held = blocked_by(complete_calls(trace, own.steps[rows]), ranks)
    if held is None:
        return not messages.height
    return held[0] + Z_SCORE_OF_WAIT_AT_CALLS * held[1] >= MIN_SHARE_OF_LOSS_AWAITED * lost_ns


def _beyond(caused: dict[int, int], ranks: tuple[int, ...], peers: tuple[int, ...]) -> float:
    """Return for how long others waited for ranks alone in messages, beyond what they do for a peer."""
    mine = sum(caused.get(rank, 0) for rank in ranks)
    theirs = np.array([caused.get(rank, 0) for rank in peers], np.float64)
    if not len(theirs):
        return float(mine)
    typical = float(np.median(theirs))
    margin = Z_SCORE_OF_WAIT_FOR_MESSAGES * deviation(theirs - typical)
    return mine - len(ranks) * typical + margin


def _straggler(own: ComputeTime, late: Episode, cost: Price, *, majority: bool) -> Straggler:
    """Return the episode as it is reported: ranks, hosts and steps of the run, delay per step."""
    extra = float(late.effect[late.touched].max(axis=1).mean())
    return Straggler(
        late=late,
        cost=cost,
        ranks=tuple(own.ranks[rank] for rank in late.ranks),
        hosts=_whole_hosts(own, late),
        steps=(int(own.steps[late.first]), int(own.steps[late.last])),
        extra_ns=extra,
        share=extra / own.step_ns,
        majority=majority,
        at_own_pace=own.work_left_to_others(late.ranks),
    )


def _clues(
    trace: Trace, phases: Phases, own: ComputeTime, found: Straggler, given: Workload
) -> Clues:
    """Return what points to the cause: work, parts of the phase, neighbouring spans, sampled code."""
    late, ranks = found.late, found.ranks
    others = own.compared_with(late.ranks)
    peers, steps = tuple(own.ranks[rank] for rank in others), own.steps[late.touched]
    mine, usual = _beside_peers(own, late) or (None, None)
    uncovered = late.phase == CATEGORIES[UNINSTRUMENTED]
    return Clues(
        mine_ns=mine,
        usual_ns=usual,
        work=workload_ratios(given, late.ranks, others, late.touched),
        parts=parts_of(phases, ranks, peers, late.phase, steps),
        place=place_of(phases, ranks, peers, steps) if uncovered else None,
        samples=sampled_code.of_ranks(
            trace, phases, ranks, peers, late.phase, steps=steps, extra_ns=found.extra_ns
        ),
        core=core_wait_of(trace, own, late.ranks, slice(late.first, late.last + 1)),
    )


def _finding(trace: Trace, own: ComputeTime, found: Straggler, clues: Clues) -> Finding:
    late, cost = found.late, found.cost
    return Finding.of(
        "slow_host" if found.hosts else _KINDS.get(late.phase, "straggler"),
        fields(found, own.step_ns) | (_at_best(found) if own.parted else {}),
        category=_category(own, found, clues),
        more=_more_sentences(found, clues),
        saving=cost.saving,
        interval=cost.interval,
        fix=fix_of(own, late) if cost.is_replayed else None,
        cost=None if own.parted or cost.communicating or cost.inferred else cost.cost,
        slowdown=clues.slowdown,
        confidence=1.0 - late.p,
        ranks=found.ranks,
        hosts=found.hosts or tuple(dict.fromkeys(own.hosts[rank] for rank in late.ranks)),
        phase=late.phase,
        pattern=late.pattern,
        steps=found.steps,
        function=clues.function,
        evidence=_evidence(trace, own, found) | clues.evidence(),
    )


def _evidence(trace: Trace, own: ComputeTime, found: Straggler) -> dict[str, Any]:
    """Return the numbers of the delay itself and of its price."""
    late, cost, extra = found.late, found.cost, found.extra_ns
    rows, spread = late.touched, TWO_SIDED * late.unsure * extra
    return {
        "extra_ns": round(extra),
        "extra_interval_ns": [round(extra - spread), round(extra + spread)] if spread else None,
        "share_of_step": found.share,
        "steps_late": len(rows),
        "last_share": last_share(complete_calls(trace, own.steps[rows]), found.ranks),
        "ranks_waiting": None if own.parted else cost.waiting,
        "absorbed": cost.absorbed,
        "absorbed_in_flight": cost.in_flight,
        "p_value": late.p,
        "period": late.period,
        "also_late_in": list(late.also),
        "majority_late": found.majority,
    }


def _category(own: ComputeTime, found: Straggler, clues: Clues) -> Literal["fault", "opportunity"]:
    """Return whether something is wrong, or merely could be better."""
    alike = len(own.ranks) == 2 and found.share < MIN_DELAY_OF_PAIR_IF_FAULT
    chance = clues.core is not None and clues.core.is_common
    return "opportunity" if alike or chance or found.late.phase == "checkpoint" else "fault"


def _whole_hosts(own: ComputeTime, late: Episode) -> tuple[str, ...]:
    """Return the hosts that these ranks are, if they are hosts rather than ranks.

    A lateness that wanders from rank to rank visits whole hosts only by chance.
    """
    if late.pattern == "migrating":
        return ()
    members = episodes.ranks_of_hosts(own.hosts)
    hosts = tuple(dict.fromkeys(own.hosts[rank] for rank in late.ranks))
    whole = all(
        len(members[host]) > 1
        and len(set(members[host]) & set(late.ranks))
        >= MIN_SHARE_OF_LATE_RANKS_OF_HOST * len(members[host])
        for host in hosts
    )
    return hosts if whole and len(members) > len(hosts) else ()


def _beside_peers(own: ComputeTime, late: Episode) -> tuple[float, float] | None:
    """Return how long the latest rank and the median one of its peers take for the phase, ns a step."""
    values = own.own[own.phases.index(late.phase)][late.touched]
    peers = values[:, own.peers_of(late.ranks)]
    if not peers.size or np.isnan(peers).all():
        return None
    usual = float(np.nanmedian(peers))
    return float(np.nanmax(np.nanmedian(values[:, late.ranks], axis=0))), usual


LAYERED: Final = ("forward", "backprop", "update")
NO_BASELINE: Final = "So many ranks are stragglers that the median rank is no reliable baseline."


@dataclass(frozen=True, eq=False)
class Straggler:
    """An episode as it is reported; `ranks` and `steps` are those of the run, `hosts` only if whole.

    `at_own_pace` says that none waits, but others do more of the work instead.
    """

    late: Episode
    cost: Price
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    steps: tuple[int, int]
    extra_ns: float
    share: float
    majority: bool
    at_own_pace: bool = False


@dataclass(frozen=True, eq=False)
class Clues:
    """What points to the cause; null is what cannot be known of this straggler.

    `mine_ns` is how long the latest rank takes for the phase and `usual_ns` its median peer, per step;
    `work` is how many times the peers' amounts it has.
    """

    mine_ns: float | None
    usual_ns: float | None
    work: dict[str, float]
    parts: Parts | None
    place: Place | None
    samples: Culprit | None
    core: CoreWait | None

    @property
    def slowdown(self) -> float | None:
        """How many times as long as its peers it takes."""
        return self.mine_ns / self.usual_ns if self.mine_ns is not None and self.usual_ns else None

    @property
    def function(self) -> str | None:
        """The code that was sampled, else the part of the phase, that takes longer."""
        if self.samples:
            return self.samples.frame
        return self.parts.slowest if self.parts else None

    def evidence(self) -> dict[str, Any]:
        """Return it as numbers."""
        parts = self.parts
        return {
            "phase_ns": None if self.mine_ns is None else round(self.mine_ns),
            "peers_phase_ns": None if self.usual_ns is None else round(self.usual_ns),
            "work": self.work,
            "parts": parts.evidence() if parts and len(parts.rows) > 1 else [],
            "samples": self.samples.evidence() if self.samples else None,
            "place": asdict(self.place) if self.place else None,
            "core_wait": self.core.evidence() if self.core else None,
        }


def _more_sentences(found: Straggler, clues: Clues) -> list[str]:
    """Return what is said beside who is late, when and at what price."""
    phase = found.late.phase
    uncovered = phase == CATEGORIES[UNINSTRUMENTED]
    return [
        *([NO_BASELINE] if found.majority else []),
        *(
            clues.core.sentences(fmt.listing("rank", found.ranks), "the others")
            if clues.core
            else []
        ),
        *workload_sentences(clues.work, several=len(found.ranks) > 1),
        *layer_sentences(phase, clues.parts),
        *(place_sentences(clues.place, clues.samples) if uncovered else []),
        *sampled_code.code_sentences(clues.samples),
    ]


def fields(found: Straggler, step_ns: float) -> dict[str, str]:
    """Return what is filled into the sentence of a straggler or slow host."""
    named = found.hosts or found.ranks
    subject = fmt.listing("host" if found.hosts else "rank", named)
    several = len(named) > 1
    return {
        "who": fmt.capital(subject),
        "course": _course(found, several=several),
        "steps": fmt.steps(*found.steps),
        "extra": fmt.duration(found.extra_ns),
        "share": fmt.percent(found.share),
        "step": fmt.duration(step_ns),
        "waiting": _pace(several=several)
        if found.at_own_pace
        else _waiting(found, several=several),
        "it": "them" if several else "it",
        "absorbed": _absorbed(found.cost),
    }


def _at_best(found: Straggler) -> dict[str, str]:
    """Return what the sentence says instead where ranks were left out as asked."""
    pronoun = "it" if len(found.ranks) == 1 else "them"
    return {
        "waiting": f"who waits for {pronoun} is not known",
        "saving": f"at most {fmt.percent(found.cost.interval[1], 1)}",
    }


def layer_sentences(phase: str, parts: Parts | None) -> list[str]:
    """Return which layers it is in, or that all are slower alike, where there are layers to tell."""
    if parts is None or phase not in LAYERED or len(parts.rows) < MIN_PARTS_TO_NAME_LAYERS:
        return []
    where, share = parts.most
    if where:
        return [f"{fmt.percent(share)} of the delay is in {fmt.series(list(where))}."]
    alike = f"All {len(parts.rows)} parts of {fmt.phase(phase)} are slower alike."
    return [alike] if parts.alike else []


def _absorbed(cost: Price) -> str:
    if cost.in_flight < MIN_SHARE_ABSORBED_TO_REPORT:
        return ""
    return f"; reductions in flight absorb {fmt.percent(cost.in_flight)} of the delay"


def _course(found: Straggler, *, several: bool) -> str:
    late = found.late
    phase = fmt.phase(late.phase)
    if late.pattern == "sparse":
        often = f"every {late.period} steps" if late.period else f"in {len(late.touched)} steps"
        stalling = fmt.series([fmt.phase(name) for name in (late.phase, *late.also)])
        return f"{'stall' if several else 'stalls'} in {stalling} {often}"
    if found.hosts:
        slow = "are slow" if several else "is slow"
    else:
        slow = "are stragglers" if several else "is a straggler"
    if late.pattern == "migrating":
        return f"{slow} in {phase}, one after the other"
    if late.pattern == "intermittent":
        return f"{slow} in {phase}, on and off ({len(late.touched)} steps)"
    if late.pattern == "drifting":
        return f"{slow} in {phase}, with growing delay"
    return f"{slow} in {phase}"


def _pace(*, several: bool) -> str:
    return f"no rank waits, but the others make the steps that {'they do' if several else 'it does'} not"


def _waiting(found: Straggler, *, several: bool) -> str:
    pronoun, cost = "them" if several else "it", found.cost
    if cost.waiting:
        wait = "waits" if cost.waiting == 1 else "wait"
        return f"{fmt.count(cost.waiting, 'rank')} {wait} for {pronoun}"
    if cost.communicating:
        rank = fmt.count(cost.communicating, "rank")
        takes = "communicates" if cost.communicating == 1 else "communicate"
        return f"{rank} {takes} longer meanwhile (waits not recorded)"
    if cost.inferred:
        return f"the others wait for {pronoun} in a collective that no span shows (inferred)"
    ends = f", but {'they end' if several else 'it ends'} last" if cost.saving > 0 else ""
    return f"no rank was seen waiting for {pronoun}{ends}"

"""Stragglers: which ranks are late by their own work, in which phase and steps, and what that costs.

Own time is compared, never how long communication lasts: waiting is the victim's symptom. Three ranks
or more are judged against each other (`_detector`), two by permutations (`_paired`), and of one rank
nothing can be said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from tracelens.analyses import _hosts, _late_at_servers, _lateness, _own_time
from tracelens.analyses._counterfactual import TWO_SIDED, Price, as_work_varies, price
from tracelens.analyses._job import job_ns
from tracelens.analyses._late_words import Verdict, in_code, in_parts, sentence
from tracelens.analyses._parts import parts_of
from tracelens.analyses._pipeline import Pipeline
from tracelens.analyses._reference import against_the_rest
from tracelens.analyses._stacks import culprit
from tracelens.analyses._together import put_together
from tracelens.analyses._witnesses import complete_calls, held_up, last_share
from tracelens.analyses._work import Work, ratios, said_of, work
from tracelens.analyses.result import Finding

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.analyses._late import Late
    from tracelens.analyses._own_time import Floats, OwnTime
    from tracelens.analyses.phases import Phases
    from tracelens.analyses.result import FindingKind
    from tracelens.trace import Trace

LEAST_STEPS: Final = 30
LEAST_SAVING: Final = 0.003  # of the job: what is not worth a sentence,
LEAST_LOSS: Final = 0.005  # of a rank's own time: worth one, though others' noise may hide it
OF_A_PAIR: Final = 0.02  # of the job: two ranks hardly tell what is usual,
STALLS_OF_A_PAIR: Final = 0.03  # nor which stalls are
FAULT_OF_A_PAIR: Final = 0.15  # of a step: by less, equal processes differed for whole runs
HELD_UP: Final = 0.3  # of the lost time, to be seen in the arrivals at collectives
BY_CHANCE: Final = 2  # deviations from rank to rank
SIGMAS: Final = 3  # of the clocks' uncertainty: what is less cannot be seen
MAJORITY: Final = 0.4  # of all ranks
_KINDS: Final[dict[str, FindingKind]] = {"checkpoint": "checkpoint_stall", "gc": "gc_stall"}


@dataclass(frozen=True)
class Stragglers:
    """`statement` says in a sentence what could not be judged; null if everything was."""

    findings: tuple[Finding, ...] = ()
    statement: str | None = None


def run(trace: Trace, phases: Phases) -> Stragglers:
    """Find late ranks and price them."""
    own = _own_time.measure(trace, phases)
    statement = _insufficient(own)
    if statement:
        return Stragglers(statement=statement)
    job = job_ns(trace)
    worth = priced(own, job, lambda: Pipeline.of(trace, phases, own))
    worth = _late_at_servers.played(trace, own, worth)
    late = {rank for entry, _ in worth for rank in entry.ranks if entry.pattern != "rotating"}
    majority = len(own.ranks) > 2 and len(late) > MAJORITY * len(own.ranks)
    given = work(trace, own) if worth else {}
    findings = [
        _finding(trace, phases, own, entry, cost, given=given, majority=majority)
        for entry, cost in worth
        if _seen_by_others(trace, own, entry, cost.interval[0] * job)
    ]
    return Stragglers(tuple(findings))


def priced(
    own: OwnTime, job_ns: float, pipeline: Callable[[], Pipeline | None] = lambda: None
) -> list[tuple[Late, Price]]:
    """Return who is late by own time, and what that costs, where it is worth a sentence.

    `pipeline` tells, if somebody is late, what of it reductions under way absorb.
    """
    found = against_the_rest(own, put_together(own, _lateness.find(own)))
    played = pipeline() if found else None
    costs = [(entry, _priced(own, entry, job_ns, played)) for entry in found]
    return [(entry, cost) for entry, cost in costs if cost.saving >= _least_saving(own, entry)]


def _priced(own: OwnTime, late: Late, job_ns: float, pipeline: Pipeline | None) -> Price:
    effect = _without(own, late)
    further = pipeline.further(late, effect) if pipeline else None
    met = _met(own, late)
    return price(met, effect, own.wait, job_ns, unsure=late.unsure, further=further)


def _without(own: OwnTime, late: Late) -> Floats:
    """Return what mending takes away: of what lasts, by what there was to do in each step.

    Steps that were chosen one by one for being late tell by themselves what was lost in them.
    """
    if late.pattern in ("sparse", "rotating"):
        return late.effect
    names = {late.phase, *late.also}
    values = own.own[[name in names for name in own.phases]].sum(axis=0)
    return as_work_varies(values, late.effect)


def _met(own: OwnTime, late: Late) -> Floats:
    """Return what ranks take to meet; what follows the meeting of a step delays that of the next one."""
    return own.between_meetings if {late.phase, *late.also} <= {*_own_time.AFTER} else own.total


def _insufficient(own: OwnTime) -> str | None:
    """Say why nothing can be judged, if so."""
    if len(own.ranks) < 2:
        return (
            f"{len(own.ranks) or 'No'} worker rank: lateness is a comparison between ranks, so "
            "nothing is said about stragglers."
        )
    if (
        len(own.steps) < LEAST_STEPS
        or np.count_nonzero(own.settled) < LEAST_STEPS - _own_time.WARM_UP
    ):
        return (
            f"{len(own.steps)} steps: too few for statistics on stragglers, which need "
            f"{LEAST_STEPS}; times are shown, nothing is judged."
        )
    return None


def _least_saving(own: OwnTime, late: Late) -> float:
    if len(own.ranks) > 2:
        loses = late.effect.sum(axis=0).max() >= LEAST_LOSS * own.length.shape[0] * own.step_ns
        return 0.0 if loses else LEAST_SAVING
    return STALLS_OF_A_PAIR if late.pattern == "sparse" else OF_A_PAIR


def _seen_by_others(trace: Trace, own: OwnTime, late: Late, lost_ns: float) -> bool:
    """Say whether collectives were held up by these ranks, as they must be if steps are longer for it.

    `lost_ns` is what is lost at least. Only what is clearly too little speaks against it, for others
    hold up collectives, too, each as noise has it. An update is felt in the step after. Not asked where
    arrivals cannot tell: without collectives, within the clocks' uncertainty, and where the lateness
    wanders.
    """
    rows = np.union1d(late.touched, np.minimum(late.touched + 1, len(own.steps) - 1))
    ranks = tuple(own.ranks[rank] for rank in late.ranks)
    if late.pattern == "rotating" or lost_ns < SIGMAS * trace.uncertainty_ns * len(rows):
        return True
    held = held_up(complete_calls(trace, own.steps[rows]), ranks)
    return held is None or held[0] + BY_CHANCE * held[1] >= HELD_UP * lost_ns


def _finding(
    trace: Trace,
    phases: Phases,
    own: OwnTime,
    late: Late,
    cost: Price,
    *,
    given: Work,
    majority: bool,
) -> Finding:
    rows = late.touched
    extra = float(late.effect[rows].max(axis=1).mean())
    verdict = Verdict(
        late=late,
        cost=cost,
        ranks=tuple(own.ranks[rank] for rank in late.ranks),
        hosts=_whole_hosts(own, late),
        steps=(int(own.steps[late.first]), int(own.steps[late.last])),
        extra_ns=extra,
        share=extra / own.step_ns,
        majority=majority,
    )
    seen = culprit(trace, phases, verdict.ranks, late.phase, steps=own.steps[rows], extra_ns=extra)
    parts = parts_of(phases, verdict.ranks, late.phase, own.steps[rows])
    more = ratios(given, late.ranks, rows)
    return Finding(
        kind="slow_host" if verdict.hosts else _KINDS.get(late.phase, "straggler"),
        category=_category(own, verdict),
        sentence=" ".join(
            [
                sentence(verdict),
                *said_of(more, several=len(verdict.ranks) > 1),
                *in_parts(late.phase, parts),
                *in_code(seen),
            ]
        ),
        saving=cost.saving,
        interval=cost.interval,
        cost=cost.cost,
        slowdown=_slowdown(own, late),
        confidence=1.0 - late.p,
        ranks=verdict.ranks,
        hosts=verdict.hosts or tuple(dict.fromkeys(own.hosts[rank] for rank in late.ranks)),
        phase=late.phase,
        pattern=late.pattern,
        steps=verdict.steps,
        function=seen.frame if seen else parts.slowest if parts else None,
        evidence=_evidence(trace, own, verdict)
        | {
            "work": more,
            "parts": parts.evidence() if parts and len(parts.rows) > 1 else [],
            "samples": seen.evidence() if seen else None,
        },
    )


def _evidence(trace: Trace, own: OwnTime, verdict: Verdict) -> dict[str, Any]:
    """Return the numbers of the lateness itself and of its price."""
    late, cost, extra = verdict.late, verdict.cost, verdict.extra_ns
    rows, swing = late.touched, TWO_SIDED * late.unsure * extra
    return {
        "extra_ns": round(extra),
        "extra_interval_ns": [round(extra - swing), round(extra + swing)] if swing else None,
        "share_of_step": verdict.share,
        "steps_late": len(rows),
        "last_share": last_share(complete_calls(trace, own.steps[rows]), verdict.ranks),
        "ranks_waiting": cost.waiting,
        "absorbed": cost.absorbed,
        "absorbed_in_flight": cost.in_flight,
        "p_value": late.p,
        "period": late.period,
        "also_late_in": list(late.also),
        "majority_late": verdict.majority,
    }


def _category(own: OwnTime, verdict: Verdict) -> Literal["fault", "opportunity"]:
    """Say whether something is wrong, or merely could be better."""
    alike = len(own.ranks) == 2 and verdict.share < FAULT_OF_A_PAIR
    return "opportunity" if alike or verdict.late.phase == "checkpoint" else "fault"


def _whole_hosts(own: OwnTime, late: Late) -> tuple[str, ...]:
    """Return the hosts that these ranks are, if they are hosts rather than ranks.

    A lateness that wanders from rank to rank visits whole hosts only by chance.
    """
    if late.pattern == "rotating":
        return ()
    members = _hosts.members(own.hosts)
    hosts = tuple(dict.fromkeys(own.hosts[rank] for rank in late.ranks))
    whole = all(
        len(members[host]) > 1
        and len(set(members[host]) & set(late.ranks)) >= _hosts.WHOLE_HOST * len(members[host])
        for host in hosts
    )
    return hosts if whole and len(members) > len(hosts) else ()


def _slowdown(own: OwnTime, late: Late) -> float | None:
    """Return how many times as long as its peers the latest rank takes for the phase."""
    values = own.own[own.phases.index(late.phase)][late.touched]
    peers = np.delete(values, late.ranks, axis=1)
    if not peers.size or np.isnan(peers).all():
        return None
    usual = float(np.nanmedian(peers))
    slow = float(np.nanmax(np.nanmean(values[:, late.ranks], axis=0)))
    return slow / usual if usual > 0 else None

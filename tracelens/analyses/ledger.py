"""The ledger of losses: what of ranks x job time no rank computed in, and which finding explains it.

Findings claim losses in the order of the report, each at most what it costs; of what is left, some
categories speak for themselves. Waiting does not: where ranks wait for each other in turns, as much for
one as for another, it is jitter (of n ranks, some are always a little later than others); what they wait
for one rank beyond that is unexplained, and so is time in code that no span covers, beyond the peers'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.categories import CATEGORIES, UNINSTRUMENTED
from tracelens.accounting.efficiency import USEFUL
from tracelens.accounting.phases import job_ns
from tracelens.analyses.collectives.arrivals import Arrivals
from tracelens.model.finding_kinds import KINDS
from tracelens.model.verdict import Ledger, Loss
from tracelens.stats.robust import deviation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats
    from tracelens.model.finding_kinds import Group
    from tracelens.model.findings import Finding
    from tracelens.model.result import Result
    from tracelens.model.trace import Trace

__all__ = ["measure"]

_UNINSTRUMENTED: Final = CATEGORIES[UNINSTRUMENTED]
_OUTSIDE: Final = "outside"
# In these a straggler's own time beyond its peers' is lost, too.
_OWN_LOSSES: Final = ("data", "checkpoint", "gc", _UNINSTRUMENTED)
_EXPLAINED: Final[dict[Group, tuple[str, ...]]] = {
    "ranks": ("wait", "ps_queue"),
    "network": ("transfer", "wait"),
    "servers": ("ps_queue", "transfer", "wait"),
    "overlap": ("transfer", "ps_queue"),
}
_ASK_WHY: Final = ("wait", "ps_queue", _UNINSTRUMENTED)  # what no category explains
BY_CHANCE: Final = 2  # deviations from rank to rank
_LEAST: Final = 1e-12  # what is less is rounding


def measure(
    trace: Trace,
    phases: Phases,
    findings: Sequence[Finding],
    results: Mapping[str, Result],
) -> Ledger | None:
    """Account for every loss; None where no worker recorded a step."""
    if trace.steps.is_empty():
        return None
    total = trace.steps["process"].n_unique() * max(job_ns(trace), 1)
    spent = phases.spent.sum(axis=0) / total
    shares = dict(zip(CATEGORIES, spent.tolist(), strict=True))
    beyond: dict[str, dict[int, float]] = {
        name: dict(zip(phases.pieces.ranks, _beyond_peers(phases, name) / total, strict=True))
        for name in CATEGORIES
        if name in _OWN_LOSSES
    }
    left = {name: share for name, share in shares.items() if name not in USEFUL}
    left |= {
        _UNINSTRUMENTED: float(sum(beyond[_UNINSTRUMENTED].values())),
        _OUTSIDE: 1.0 - sum(shares.values()),
    }
    useful = 1.0 - sum(left.values())
    losses = list(_claimed(findings, left, beyond))
    last = _arrivals(results)
    named = {rank for finding in findings if finding.category == "fault" for rank in finding.ranks}
    in_turns = left["wait"] * _jitter(last, named)
    left["wait"] -= in_turns
    losses.append(Loss("wait", in_turns, "jitter"))
    losses += [
        Loss(name, share, "unexplained" if name in _ASK_WHY else "known")
        for name, share in left.items()
    ]
    rank, share = _most_awaited(last)
    return Ledger(
        useful=useful,
        losses=tuple(loss for loss in losses if abs(loss.share) > _LEAST),
        startup_ns=_startup_ns(trace),
        awaited_rank=rank,
        awaited_share=share,
    )


def _beyond_peers(phases: Phases, category: str) -> Floats:
    """Return each rank's time in a category beyond what is usual, ns."""
    spent = phases.by_worker(phases.of(category))
    # Of the two in the middle the lower one: of two ranks, the slower one is not usual.
    usual = np.sort(spent)[(len(spent) - 1) // 2]
    return np.asarray(np.maximum(spent - usual, 0.0))


def _claimed(
    findings: Sequence[Finding],
    left: dict[str, float],
    beyond: Mapping[str, Mapping[int, float]],
) -> Iterable[Loss]:
    """Yield what each finding claims, and take it off what is left."""
    for number, finding in enumerate(findings):
        rest = (finding.saving if finding.cost is None else finding.cost) or 0.0
        own = beyond.get(finding.phase or "", {}) if finding.ranks else {}
        mine = sum(own.get(rank, 0.0) for rank in finding.ranks)
        for name in _explained_by(finding):
            is_own = bool(own) and name == finding.phase
            claim = min(left[name], mine if is_own else rest)
            if claim > 0:
                left[name] -= claim
                rest -= 0.0 if is_own else claim
                yield Loss(name, claim, "finding", number)


def _explained_by(finding: Finding) -> tuple[str, ...]:
    """Return which losses a finding can be the reason of, first the likeliest."""
    if finding.phase in _OWN_LOSSES:
        return (finding.phase, *_EXPLAINED["ranks"])
    return _EXPLAINED.get(KINDS[finding.kind].group, ())


def _arrivals(results: Mapping[str, Result]) -> Arrivals | None:
    """Return how long all waited for each rank alone, where ranks came together."""
    found = results.get("arrivals")
    return found if isinstance(found, Arrivals) and found.last.height > 1 else None


def _jitter(found: Arrivals | None, named: set[int]) -> float:
    """Return what share of waits would be if all ranks let the others wait as long as the usual one.

    Ranks that a fault names are not asked: for them others waited for a reason.
    """
    if found is None:
        return 0.0
    last = found.last
    alone = np.sort(last["alone_ns"].filter(~last["rank"].is_in(named)).to_numpy())
    if len(alone) < 2 or not alone.any():
        return 1.0 if len(alone) else 0.0
    usual = alone[(len(alone) - 1) // 2]
    apart = deviation(alone - np.median(alone)) if len(alone) > 2 else 0.0
    usual += BY_CHANCE * max(apart, found.by_chance_ns)
    return float(np.minimum(alone, usual).sum() / alone.sum())


def _most_awaited(found: Arrivals | None) -> tuple[int | None, float | None]:
    """Return for which rank all others waited longest, and for what share of all such time."""
    alone = found.last["alone_ns"].to_numpy() if found else np.zeros(0)
    if found is None or not alone.any():
        return None, None
    most = int(alone.argmax())
    return int(found.last["rank"][most]), float(alone[most] / alone.sum())


def _startup_ns(trace: Trace) -> int | None:
    """Return the time from the first record of a worker to the first step."""
    if not trace.choice.is_all:
        return None
    first, begin = trace.workers["first_ns"].min(), trace.steps["start_ns"].min()
    if not isinstance(first, int) or not isinstance(begin, int):
        return None
    return max(begin - first, 0)

"""The ledger of losses: what of ranks x job time no rank computed in, and which finding explains it.

Findings claim losses in the order of the report, each at most its cost; of the rest, some
categories speak for themselves. Waiting does not: what stages of a pipeline wait for each other if all
are alike is its bubble (`stage_imbalance.py`); a rank that serves the others waits until they ask; where
ranks wait now for one rank, now for another, as much for each and in many steps, it is jitter
(`jitter.py`); what they wait for one rank beyond that, or in few steps, is unexplained. Where time in
code that no span covers is a loss, it is uncovered, and what ranks have of it beyond their peers is
unexplained. It is no loss where no computation is recorded, or a free rank takes the next task of a
rank that hands them out (`efficiency.find_useful`).

Of queues at parameter servers, a finding that names shards claims what workers were queued while these
were at work, or, if it is about that, held requests without a span (`servers/queues.py`), whatever
fixing it would save: the rest may wait for them again. What no finding claims of the time in which
shards were at work is what service takes. What workers wait for each other's pushes is jitter as it is
at collectives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.categories import CATEGORIES, UNINSTRUMENTED
from tracelens.accounting.jitter import Waits
from tracelens.accounting.phases import job_ns
from tracelens.analyses.arrivals import Arrivals
from tracelens.analyses.servers.queues import NO_QUEUES, Queues
from tracelens.analyses.servers.shards import Shards
from tracelens.analyses.stage_imbalance import StageImbalance
from tracelens.arrays import sum_exactly
from tracelens.model.finding_kinds import KINDS
from tracelens.model.verdict import Ledger, Loss
from tracelens.stats.robust import lower_medians

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import polars as pl

    from tracelens.accounting.phases import Phases
    from tracelens.accounting.stages import Roles
    from tracelens.arrays import Floats
    from tracelens.facts import Facts
    from tracelens.model.finding_entries import Group
    from tracelens.model.findings import Finding
    from tracelens.model.result import Result
    from tracelens.model.trace import Trace
    from tracelens.model.verdict import Cause

# steps: time in which shards work is no known loss in a shorter run, since it was not judged
# (`servers/bottleneck.py`) [chosen]
MIN_STEPS_IF_SHARDS_ARE_JUDGED: Final = 20
# of ranks x job time: a smaller loss comes from rounding, and is dropped [policy]
MAX_LOSS_BY_ROUNDING: Final = 1e-9

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


def measure(
    facts: Facts,
    findings: Sequence[Finding],
    results: Mapping[str, Result],
) -> Ledger | None:
    """Account for all time that is not useful; None where no worker recorded a step."""
    trace, phases, roles, spent = facts.trace, facts.phases, facts.roles, facts.spent_time
    if trace.steps.is_empty():
        return None
    total = trace.steps["process"].n_unique() * max(job_ns(trace), 1)
    group_of = _find_peer_groups(trace, roles)
    beyond_peers: dict[str, dict[int, float]] = {
        name: dict(
            zip(
                phases.pieces.ranks,
                _measure_beyond_peers(phases, name, group_of) / total,
                strict=True,
            )
        )
        for name in CATEGORIES
        if name in _OWN_LOSSES and name in spent.lost
    }
    uncovered = sum(beyond_peers.get(_UNINSTRUMENTED, {}).values())
    useful_share = int(sum_exactly(spent.useful_ns)) / total
    lost_shares = {name: ns / total for name, ns in spent.lost.items()}
    lost_shares[_OUTSIDE] = 1.0 - useful_share - sum(lost_shares.values())
    account = _Account(lost_shares, [], uncovered)
    account.book("idle", spent.launching_ns / total, "launching")
    queues = _find_queues(results)
    at_shards = {
        kind: {shard: ns / total for shard, ns in spent.items()}
        for kind, spent in (("", queues.at_work_ns), ("ps_uninstrumented", queues.held_ns))
    }
    account.claim(findings, beyond_peers, at_shards)
    account.book("wait", _find_bubble_ns(results) / total, "bubble")
    account.book("wait", _measure_unasked_ns(phases, roles.server) / total, "known")
    at_calls, at_servers = (
        _find_waits_at_calls(results, phases),
        _find_waits_at_servers(queues, phases),
    )
    accused = {
        awaited_rank
        for finding in findings
        if finding.category == "fault"
        for awaited_rank in finding.ranks
    }
    missing_share = max(queues.missing_ns / total - account.claimed_by_ranks(findings), 0.0)
    for name, waits, awaited in (("wait", at_calls, 1.0), ("ps_queue", at_servers, missing_share)):
        in_turns = waits.jitter(accused, group_of) if waits else 0.0
        account.book(name, min(awaited, account.left[name]) * in_turns, "jitter")
    if trace.steps["step"].n_unique() >= MIN_STEPS_IF_SHARDS_ARE_JUDGED:
        account.book("ps_queue", sum(at_shards[""].values()), "known")
    account.close()
    of_pushes = queues.missing_ns > sum_exactly(phases.sum_time("ps_queue")) / 2
    awaited_rank, awaited_share = _find_most_awaited(
        at_calls or (at_servers if of_pushes else None)
    )
    return Ledger(
        useful=useful_share,
        losses=tuple(loss for loss in account.losses if abs(loss.share) > MAX_LOSS_BY_ROUNDING),
        startup_ns=_measure_startup_ns(trace),
        awaited_rank=awaited_rank,
        awaited_share=awaited_share,
    )


@dataclass(frozen=True)
class _Account:
    """What of each category's loss is `left` to be explained, as shares, and the losses that are.

    `beyond_peers` is what of uncovered time ranks have beyond their peers.
    """

    left: dict[str, float]
    losses: list[Loss]
    beyond_peers: float

    def book(self, category: str, share: float, cause: Cause) -> None:
        """Attribute up to `share` of a category's remaining loss to a cause."""
        booked = min(share, self.left[category])
        self.left[category] -= booked
        self.losses.append(Loss(category, booked, cause))

    def claim(
        self,
        findings: Sequence[Finding],
        beyond_peers: Mapping[str, Mapping[int, float]],
        at_shards: Mapping[str, dict[int, float]],
    ) -> None:
        """Explain what each finding does.

        `at_shards` is what workers were queued in at each shard: for a kind of finding, or all others.
        """
        for number, finding in enumerate(findings):
            cost_left = (finding.saving if finding.cost is None else finding.cost) or 0.0
            beyond_of_ranks = beyond_peers.get(finding.phase or "", {}) if finding.ranks else {}
            own_claim = float(sum(beyond_of_ranks.get(rank, 0.0) for rank in finding.ranks))
            if beyond_of_ranks and beyond_of_ranks.keys() <= {
                *finding.ranks
            }:  # no peers are left to compare with
                own_claim = max(own_claim, finding.saving or 0.0)
            for category in _list_explained_losses(finding):
                is_own = bool(beyond_of_ranks) and category == finding.phase
                limit = cost_left
                if category == "ps_queue" and finding.shards:
                    queued_at = at_shards.get(finding.kind, at_shards[""])
                    limit = sum(queued_at.pop(shard, 0.0) for shard in finding.shards)
                claim = min(self.left.get(category, 0.0), own_claim if is_own else limit)
                if claim > 0:
                    self.left[category] -= claim
                    cost_left = max(cost_left - (0.0 if is_own else claim), 0.0)
                    self.losses.append(Loss(category, claim, "finding", number))

    def claimed_by_ranks(self, findings: Sequence[Finding]) -> float:
        """Sum the queueing that findings without a shard claim: waits for their ranks."""
        return sum(
            loss.share
            for loss in self.losses
            if loss.category == "ps_queue"
            and loss.finding is not None
            and not findings[loss.finding].shards
        )

    def close(self) -> None:
        """Take what is left as explained by its category, as uncovered, or as unexplained."""
        claimed = sum(loss.share for loss in self.losses if loss.category == _UNINSTRUMENTED)
        if _UNINSTRUMENTED in self.left:
            common = self.left[_UNINSTRUMENTED] - max(self.beyond_peers - claimed, 0.0)
            self.book(_UNINSTRUMENTED, max(common, 0.0), "uncovered")
        self.losses.extend(
            Loss(name, share, "unexplained" if name in _ASK_WHY else "known")
            for name, share in self.left.items()
        )


def _find_bubble_ns(results: Mapping[str, Result]) -> float:
    imbalance = results.get("stages")
    return imbalance.bubble_ns if isinstance(imbalance, StageImbalance) else 0.0


def _measure_unasked_ns(phases: Phases, server: int | None) -> float:
    """Return for how long a rank that serves the others waited for what they ask."""
    if server is None:
        return 0.0
    waited_ns = phases.by_worker(phases.sum_time("wait"))
    return float(waited_ns[list(phases.pieces.ranks).index(server)])


def _find_peer_groups(trace: Trace, roles: Roles) -> dict[int, int]:
    """Find which part each rank plays: its stage, or the same one for all who have no peer.

    A rank that serves the others is not their peer.
    """
    ranks, stages = trace.workers["rank"].to_list(), roles.stages
    groups = [-1 if rank == roles.server else 0 for rank in ranks]
    for number, members in enumerate(stages.members if stages else (), 1):
        for rank in members.tolist() if len(members) > 1 else ():
            groups[rank] = number
    return dict(zip(ranks, groups, strict=True))


def _measure_beyond_peers(phases: Phases, category: str, group_of: Mapping[int, int]) -> Floats:
    """Return each rank's time in a category beyond what is usual for its part, ns."""
    spent_ns = phases.by_worker(phases.sum_time(category))
    groups = np.array([group_of[rank] for rank in phases.pieces.ranks])
    beyond_ns = np.zeros(len(spent_ns))
    for group in np.unique(groups):
        is_peer = groups == group
        beyond_ns[is_peer] = np.maximum(spent_ns[is_peer] - lower_medians(spent_ns[is_peer]), 0.0)
    return beyond_ns


def _list_explained_losses(finding: Finding) -> tuple[str, ...]:
    """Find which losses a finding can be the reason of, first the likeliest."""
    if finding.phase in _OWN_LOSSES:
        return (finding.phase, *_EXPLAINED["ranks"])
    if finding.kind == "update_gap":
        return (_UNINSTRUMENTED, *_EXPLAINED["overlap"])
    return _EXPLAINED.get("servers" if finding.shards else KINDS[finding.kind].group, ())


def _find_queues(results: Mapping[str, Result]) -> Queues:
    shards = results.get("shards")
    return shards.queues if isinstance(shards, Shards) else NO_QUEUES


def _find_waits_at_calls(results: Mapping[str, Result], phases: Phases) -> Waits | None:
    """Measure how long all waited for each rank alone, where ranks came together."""
    arrivals = results.get("arrivals")
    if not isinstance(arrivals, Arrivals) or arrivals.last.height < 2:
        return None
    return _to_waits(arrivals.last["rank"], arrivals.alone, phases, "wait")


def _find_waits_at_servers(queues: Queues, phases: Phases) -> Waits | None:
    """Measure how long each rank's push was the only one that was missing."""
    if len(queues.ranks) < 2:
        return None
    return _to_waits(queues.ranks, queues.alone, phases, "ps_queue")


def _to_waits(ranks: Iterable[int], alone: pl.DataFrame, phases: Phases, category: str) -> Waits:
    waited_ns = phases.by_step(phases.sum_time(category)).astype(np.float64)
    return Waits(tuple(ranks), alone, phases.steps, waited_ns)


def _find_most_awaited(waits: Waits | None) -> tuple[int | None, float | None]:
    """Return for which rank all others waited longest, and for what share of all such time."""
    alone_ns = waits.by_rank if waits else np.zeros(0)
    if waits is None or not alone_ns.any():
        return None, None
    index = int(alone_ns.argmax())
    return waits.ranks[index], float(alone_ns[index] / alone_ns.sum())


def _measure_startup_ns(trace: Trace) -> int | None:
    """Return the time from the first record of a worker to the first step."""
    if not trace.choice.is_all:
        return None
    first_ns, begin_ns = trace.workers["first_ns"].min(), trace.steps["start_ns"].min()
    if not isinstance(first_ns, int) or not isinstance(begin_ns, int):
        return None
    return max(begin_ns - first_ns, 0)

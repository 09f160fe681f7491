"""The ledger of losses: the part of ranks x job time without computation, and its explanations.

Findings claim losses in the order of the report, each at most its cost; of the rest, some
categories speak for themselves. Waiting does not: what stages of a pipeline wait for each other if all
are alike is its bubble (`stage_imbalance.py`); a rank that serves the others waits until they ask; where
ranks wait now for one rank, now for another, as much for each and in many steps, it is jitter
(`jitter.py`); what they wait for one rank beyond that, or in few steps, is unexplained. Where time in
code that no span covers is a loss, it is uncovered, and what ranks have of it beyond their peers is
unexplained. It is no loss where no computation is recorded, or a free rank takes the next task of a
rank that hands them out (`efficiency.list_useful_categories`).

A finding that names parameter-server shards claims the time for which workers queued while the shards
were at work. A finding about held requests claims the time for which shards held them without a span
(`servers/queues.py`). Both claim it even if a fix saves less, because requests may queue again. The
unclaimed time in which shards were at work is service. Waits for pushes of other workers are jitter by
the same rule as at collectives.
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
from tracelens.replay.edits.fixes import WorkFix
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
    from tracelens.replay.edits.fixes import Fix

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
    facts: Facts, findings: Sequence[Finding], results: Mapping[str, Result]
) -> Ledger | None:
    """Account for all time that is not useful; None where no worker recorded a step."""
    trace, phases, roles, spent_time = facts.trace, facts.phases, facts.roles, facts.spent_time
    if trace.steps.is_empty():
        return None
    total_ns = trace.steps["process"].n_unique() * max(job_ns(trace), 1)
    group_by_rank = _find_peer_groups(trace, roles)
    shares_beyond_peers: dict[str, dict[int, float]] = {}  # by category and rank
    for name in CATEGORIES:
        if name in _OWN_LOSSES and name in spent_time.lost_ns_by_category:
            rank_shares = _measure_ns_beyond_peers(phases, name, group_by_rank) / total_ns
            shares_beyond_peers[name] = dict(zip(phases.pieces.ranks, rank_shares, strict=True))
    uncovered_beyond_peers = sum(shares_beyond_peers.get(_UNINSTRUMENTED, {}).values())
    useful_share = int(sum_exactly(spent_time.useful_ns)) / total_ns
    lost_shares = {
        name: time_ns / total_ns for name, time_ns in spent_time.lost_ns_by_category.items()
    }
    lost_shares[_OUTSIDE] = 1.0 - useful_share - sum(lost_shares.values())
    account = _Account(
        total_ns,
        remaining_shares=lost_shares,
        losses=[],
        uncovered_beyond_peers=uncovered_beyond_peers,
    )
    account.book("idle", spent_time.launching_ns / total_ns, "launching")
    queues = _find_queues(results)
    queued_shares = {
        kind: {shard: time_ns / total_ns for shard, time_ns in time_ns_by_shard.items()}
        for kind, time_ns_by_shard in (
            ("", queues.at_work_ns_by_shard),
            ("ps_uninstrumented", queues.held_ns_by_shard),
        )
    }
    account.claim(findings, shares_beyond_peers, queued_shares)
    account.book("wait", _find_bubble_ns(results) / total_ns, "bubble")
    account.book("wait", _measure_unasked_ns(phases, roles.server_rank) / total_ns, "known")
    at_calls = _find_waits_at_calls(results, phases)
    at_servers = _find_waits_at_servers(queues, phases)
    faults = [finding for finding in findings if finding.category == "fault"]
    accused_ranks = {rank for fault in faults for rank in fault.ranks}
    push_share = max(queues.missing_push_ns / total_ns - account.sum_rank_claims(findings), 0.0)
    for name, waits, max_share in (("wait", at_calls, 1.0), ("ps_queue", at_servers, push_share)):
        jitter_share = waits.measure_jitter_share(accused_ranks, group_by_rank) if waits else 0.0
        account.book(name, min(max_share, account.remaining_shares[name]) * jitter_share, "jitter")
    if trace.steps["step"].n_unique() >= MIN_STEPS_IF_SHARDS_ARE_JUDGED:
        account.book("ps_queue", sum(queued_shares[""].values()), "known")
    account.close()
    queue_ns = sum_exactly(phases.sum_ns_by_window("ps_queue"))
    is_for_pushes = queues.missing_push_ns > queue_ns / 2  # mostly
    awaited_rank, awaited_share = _find_most_awaited(
        at_calls or (at_servers if is_for_pushes else None)
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
    """The loss of each category that remains to be explained, and explained `losses`.

    All are shares of `total_ns`. `uncovered_beyond_peers` is the uncovered time of ranks beyond their
    peers.
    """

    total_ns: int
    remaining_shares: dict[str, float]
    losses: list[Loss]
    uncovered_beyond_peers: float

    def book(self, category: str, share: float, cause: Cause) -> None:
        """Attribute up to `share` of a category's remaining loss to a cause."""
        booked_share = min(share, self.remaining_shares[category])
        self.remaining_shares[category] -= booked_share
        self.losses.append(Loss(category, share=booked_share, cause=cause))

    def claim(
        self,
        findings: Sequence[Finding],
        shares_beyond_peers: Mapping[str, Mapping[int, float]],
        queued_shares: Mapping[str, dict[int, float]],
    ) -> None:
        """Attribute losses to findings, in their order, each up to its cost; all are shares.

        Args:
            findings: In the order of the report.
            shares_beyond_peers: By category and rank, the time beyond the rank's peers.
            queued_shares: By kind of finding ("" for all others) and shard, the time workers were
                queued at the shard. Shards are removed once they are claimed.
        """
        for number, finding in enumerate(findings):
            remaining_cost = (finding.saving if finding.cost is None else finding.cost) or 0.0
            share_by_rank = (
                shares_beyond_peers.get(finding.phase or "", {}) if finding.ranks else {}
            )
            own_share = float(sum(share_by_rank.get(rank, 0.0) for rank in finding.ranks))
            has_no_peers = share_by_rank.keys() <= {*finding.ranks}
            if share_by_rank and has_no_peers:
                own_share = max(own_share, finding.saving or 0.0)
            if finding.pattern == "migrating":  # in sum all ranks may lose alike
                own_share = max(own_share, _sum_work_ns(finding.fix) / self.total_ns)
            for category in _list_explained_losses(finding):
                is_own = bool(share_by_rank) and category == finding.phase
                max_share = own_share if is_own else remaining_cost
                if category == "ps_queue" and finding.shards and not is_own:
                    share_by_shard = queued_shares.get(finding.kind, queued_shares[""])
                    max_share = sum(share_by_shard.pop(shard, 0.0) for shard in finding.shards)
                share = min(self.remaining_shares.get(category, 0.0), max_share)
                if share > 0:
                    self.remaining_shares[category] -= share
                    remaining_cost = max(remaining_cost - (0.0 if is_own else share), 0.0)
                    self.losses.append(Loss(category, share, cause="finding", finding=number))

    def sum_rank_claims(self, findings: Sequence[Finding]) -> float:
        """Sum the queueing that findings without a shard claim: waits for their ranks."""
        return sum(
            loss.share
            for loss in self.losses
            if loss.category == "ps_queue"
            and loss.finding is not None
            and not findings[loss.finding].shards
        )

    def close(self) -> None:
        """Book the remainder as explained by its category, as uncovered, or as unexplained.

        Uncovered time beyond the peers, as far as no finding claims it, stays unexplained.
        """
        claimed_share = sum(loss.share for loss in self.losses if loss.category == _UNINSTRUMENTED)
        if _UNINSTRUMENTED in self.remaining_shares:
            unclaimed_share = max(self.uncovered_beyond_peers - claimed_share, 0.0)
            common_share = max(self.remaining_shares[_UNINSTRUMENTED] - unclaimed_share, 0.0)
            self.book(_UNINSTRUMENTED, common_share, "uncovered")
        self.losses.extend(
            Loss(category=name, share=share, cause="unexplained" if name in _ASK_WHY else "known")
            for name, share in self.remaining_shares.items()
        )


def _find_bubble_ns(results: Mapping[str, Result]) -> float:
    imbalance = results.get("stages")
    return imbalance.bubble_ns if isinstance(imbalance, StageImbalance) else 0.0


def _measure_unasked_ns(phases: Phases, server_rank: int | None) -> float:
    """Return for how long the rank that serves the others waited until they asked; 0 without one."""
    if server_rank is None:
        return 0.0
    waited_ns = phases.sum_by_worker(phases.sum_ns_by_window("wait"))
    return float(waited_ns[list(phases.pieces.ranks).index(server_rank)])


def _find_peer_groups(trace: Trace, roles: Roles) -> dict[int, int]:
    """Return the group of peers of each rank: its stage from 1 on, 0 for ranks without one.

    A rank that serves the others is not their peer: its group is -1.
    """
    ranks, stages = trace.workers["rank"].to_list(), roles.stages
    groups = [-1 if rank == roles.server_rank else 0 for rank in ranks]
    for stage, columns in enumerate(stages.columns_by_stage if stages else (), 1):
        for column in columns.tolist() if len(columns) > 1 else ():
            groups[column] = stage
    return dict(zip(ranks, groups, strict=True))


def _measure_ns_beyond_peers(
    phases: Phases, category: str, group_by_rank: Mapping[int, int]
) -> Floats:
    """Return each rank's time in a category beyond the median of its group of peers, ns, [rank]."""
    spent_ns = phases.sum_by_worker(phases.sum_ns_by_window(category))
    groups = np.array([group_by_rank[rank] for rank in phases.pieces.ranks])
    beyond_ns = np.zeros(len(spent_ns))
    for group in np.unique(groups):
        is_peer = groups == group
        beyond_ns[is_peer] = np.maximum(spent_ns[is_peer] - lower_medians(spent_ns[is_peer]), 0.0)
    return beyond_ns


def _sum_work_ns(fix: Fix | None) -> float:
    """Sum the work of all ranks and steps that a fix takes away, ns."""
    changes = fix.phases_and_effects_ns if isinstance(fix, WorkFix) else ()
    return sum(float(work_ns.sum()) for _, work_ns in changes)


def _list_explained_losses(finding: Finding) -> tuple[str, ...]:
    """List the categories of losses that a finding can be the reason of, the likeliest first."""
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
    return _make_waits(arrivals.last["rank"], arrivals.alone, phases, "wait")


def _find_waits_at_servers(queues: Queues, phases: Phases) -> Waits | None:
    """Measure how long each rank's push was the only one that was missing."""
    if len(queues.ranks) < 2:
        return None
    return _make_waits(queues.ranks, queues.alone, phases, "ps_queue")


def _make_waits(ranks: Iterable[int], alone: pl.DataFrame, phases: Phases, category: str) -> Waits:
    waited_ns = phases.sum_by_step(phases.sum_ns_by_window(category)).astype(np.float64)
    return Waits(
        tuple(ranks), waits_for_one=alone, step_numbers=phases.step_numbers, waited_ns=waited_ns
    )


def _find_most_awaited(waits: Waits | None) -> tuple[int | None, float | None]:
    """Return the rank for which all others waited longest, and its share of all such waits."""
    waits_ns = waits.alone_ns_by_rank if waits else np.zeros(0)
    if waits is None or not waits_ns.any():
        return None, None
    index = int(waits_ns.argmax())
    return waits.ranks[index], float(waits_ns[index] / waits_ns.sum())


def _measure_startup_ns(trace: Trace) -> int | None:
    """Return the time from the first record of a worker to the first step; None = unknown."""
    if not trace.choice.is_whole_run:
        return None
    first_record_ns, first_step_ns = trace.workers["first_ns"].min(), trace.steps["start_ns"].min()
    if not isinstance(first_record_ns, int) or not isinstance(first_step_ns, int):
        return None
    return max(first_step_ns - first_record_ns, 0)

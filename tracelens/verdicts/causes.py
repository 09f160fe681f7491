"""What limits a run that has no fault: the named cause to which most of the time is lost."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.phases import job_ns
from tracelens.accounting.spent_time import COPIES
from tracelens.model import fmt
from tracelens.model.finding_kinds import KINDS
from tracelens.model.findings import first_sentence, name_subject
from tracelens.stats.robust import lower_medians
from tracelens.verdicts.advice import advise
from tracelens.verdicts.last_ranks import find_last_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.facts import Facts
    from tracelens.model.findings import Finding
    from tracelens.model.verdict import Ledger, Loss

# of ranks x job time, or of the job for a saving: a smaller one does not limit a run [policy]
MIN_SHARE_OF_BOTTLENECK: Final = 0.1
MIN_USEFUL_IF_HEALTHY: Final = 0.87  # of ranks x job time: less is not healthy [policy]
# share of what ranks spend on it: if less is beyond the usual rank, no rank is named [policy]
MIN_SHARE_OF_CATEGORY_BEYOND_PEERS: Final = 0.5
# share of what ranks spend beyond the usual rank: a rank with less is not named [policy]
MIN_SHARE_OF_CATEGORY_OF_RANK_NAMED: Final = 0.1
_COMMUNICATION: Final = "communication"
_LAST_RANKS: Final = "waits between ranks"
_SERVERS: Final = "parameter servers"
_BUBBLE: Final = "the bubble of the pipeline"
_SEVERAL: Final = "several causes"
_LAUNCHING: Final = "devices that wait for the host to queue work"
_COPIES: Final = "copies of memory"
_UNASKED: Final = "a rank that waits for requests"
_OF_CAUSE: Final = {
    "unexplained": None,
    "uncovered": None,
    "jitter": _LAST_RANKS,
    "bubble": _BUBBLE,
    "launching": _LAUNCHING,
}
_OF_CATEGORY: Final[dict[str, str]] = {
    "transfer": _COMMUNICATION,
    "wait": _UNASKED,
    "ps_queue": _SERVERS,
    "data": "data loading",
    "checkpoint": "checkpoints",
    "gc": "garbage collection",
    "idle": "idle time",
    COPIES: _COPIES,
    "outside": "time outside steps",
}
# Causes that ranks have each for itself, and the categories of their time.
_OF_RANKS: Final = {_OF_CATEGORY[name]: name for name in ("data", "checkpoint", "gc")}
_NEXT: Final = {
    _COMMUNICATION: (
        "Communicate while ranks compute, send fewer bytes, or use faster links; what each saves: "
        "tracelens whatif --what overlap=on --what bandwidth*2."
    ),
    _SEVERAL: "Begin with the largest bar of the waterfall.",
    _LAST_RANKS: (
        "Give ranks equally much work in each step, or find what interrupts them: page Stragglers "
        "shows who was last in which step."
    ),
    _SERVERS: "Look at how long each shard serves (page PS shards); more shards share the work.",
    _BUBBLE: "Use more micro-batches per step, or a schedule with a smaller bubble.",
    _LAUNCHING: (
        "Queue more work per launch: larger batches, torch.compile or CUDA graphs, fused optimizers; "
        "the timeline shows what the host does between kernels."
    ),
    _COPIES: (
        "Keep data on the device; copy from pinned memory (non_blocking=True), beside computation."
    ),
    _UNASKED: "Use more workers, or let the rank that hands out tasks work on some, too.",
    "data loading": (
        "Load ahead with more workers (num_workers, prefetch_factor), or store the data closer."
    ),
    "checkpoints": "Write checkpoints in the background, or less often.",
    "garbage collection": KINDS["gc_stall"].action,
    "idle time": "Look at the recorded cause of the idle time in the timeline.",
    "time outside steps": (
        "Look at what ranks do before, between and after steps: evaluation, checkpoints, set-up; put it "
        "into spans (tl.span)."
    ),
}


@dataclass(frozen=True)
class Bottleneck:
    """What limits a run: in words, its `share` of ranks x job time, and what would help.

    Of waits between ranks, and where a finding saves more than its cause takes, it is a share of the
    job. `finding` is the one that would save most of it; null without one. `where` says in which phase
    and on which ranks, and may be empty; `why` holds numbers to it.
    """

    cause: str
    share: float
    finding: Finding | None
    why: str
    where: str = ""

    @property
    def is_of_several_causes(self) -> bool:
        """Whether no cause takes much, and all of them together do."""
        return self.cause == _SEVERAL

    @property
    def headline(self) -> str:
        """The verdict's first line, such as "BOUND BY communication: 60 % of the time"."""
        where = f", {self.where}" if self.where else ""
        base = "job" if self.cause == _LAST_RANKS else "time"
        limit = f"BOUND BY {self.cause}{where}: {fmt.percent(self.share)} of the {base}"
        if not self.finding or not self.finding.saving:
            return limit
        name, gain = KINDS[self.finding.kind].name, fmt.percent(self.finding.saving)
        finding_name = "" if self.cause.startswith(name) else f"{name}, "
        return f"{limit} \N{MIDDLE DOT} {finding_name}up to {gain} to gain"

    @property
    def action(self) -> str:
        """What to do next."""
        if self.finding:
            return advise(self.finding)
        return _NEXT[self.cause]


def find_bottleneck(facts: Facts, ledger: Ledger, findings: Sequence[Finding]) -> Bottleneck | None:
    """Find the bottleneck of a run without a fault; None where nearly all of the time is useful."""
    share_by_cause, finding_by_cause = _sum_by_cause(ledger, findings)
    waits_share = share_by_cause[_LAST_RANKS]
    last_ranks = find_last_ranks(facts, waits_share + ledger.unexplained)
    if last_ranks and last_ranks.lost_share < waits_share / 2:
        last_ranks = None  # compute time does not say what they wait for
    if last_ranks:
        share_by_cause[_LAST_RANKS] = last_ranks.lost_share
    best_finding = max(findings, key=_get_saving, default=None)
    saving = _get_saving(best_finding) if best_finding else 0.0
    if best_finding and saving >= MIN_SHARE_OF_BOTTLENECK and saving > max(share_by_cause.values()):
        causes = (cause for cause, finding in finding_by_cause.items() if finding is best_finding)
        cause = next(causes, _name_finding(best_finding))
        finding_by_cause[cause], share_by_cause[cause] = best_finding, saving
    cause = max(share_by_cause, key=share_by_cause.__getitem__)
    share, finding = share_by_cause[cause], finding_by_cause.get(cause)
    if share < MIN_SHARE_OF_BOTTLENECK:
        if ledger.useful >= MIN_USEFUL_IF_HEALTHY:
            return None
        reason = describe_share(facts, cause, share)
        where = f"most of it {cause} ({fmt.percent(share)})"
        return Bottleneck(
            cause=_SEVERAL,
            share=sum(share_by_cause.values()),
            finding=finding,
            why=reason,
            where=where,
        )
    where = _name_ranks(facts, _OF_RANKS[cause]) if cause in _OF_RANKS else ""
    reason = first_sentence(finding) if finding else describe_share(facts, cause, share)
    if last_ranks and cause == _LAST_RANKS:
        reason, where = last_ranks.why, last_ranks.where
    return Bottleneck(cause, share, finding, why=reason, where=where)


def _sum_by_cause(
    ledger: Ledger, findings: Sequence[Finding]
) -> tuple[dict[str, float], dict[str, Finding]]:
    """Return by cause the lost share of ranks x job time, and the finding that saves most of it."""
    share_by_cause: dict[str, float] = defaultdict(float)
    finding_by_cause: dict[str, Finding] = {}
    for loss in ledger.losses:
        cause = _name_cause(loss, findings)
        if cause is None:
            continue
        share_by_cause[cause] += loss.share
        if loss.finding is not None:
            finding = findings[loss.finding]
            best = finding_by_cause.get(cause, finding)
            finding_by_cause[cause] = max(best, finding, key=_get_saving)
    return share_by_cause, finding_by_cause


def _name_ranks(facts: Facts, category: str) -> str:
    """Name the ranks that spend most on a category beyond the median rank; may be empty."""
    phases = facts.phases
    times_ns = phases.sum_by_worker(phases.sum_ns_by_window(category)).astype(np.float64)
    beyond_ns = np.maximum(times_ns - lower_medians(times_ns), 0.0)
    if not beyond_ns.any() or beyond_ns.sum() < MIN_SHARE_OF_CATEGORY_BEYOND_PEERS * times_ns.sum():
        return ""
    worker_indices = np.flatnonzero(
        beyond_ns >= MIN_SHARE_OF_CATEGORY_OF_RANK_NAMED * beyond_ns.sum()
    )
    ranks = [phases.pieces.ranks[worker] for worker in worker_indices.tolist()]
    return f"mostly of {fmt.listing('rank', ranks)}"


def describe_share(facts: Facts, cause: str, share: float) -> str:
    """Describe in a sentence how much of each step a share of ranks x job time is."""
    steps = max(len(facts.phases.step_numbers), 1)
    step_ns = job_ns(facts.trace) / steps
    return (
        f"{fmt.capital(cause)}: {fmt.duration(share * step_ns)} of each step of "
        f"{fmt.duration(step_ns)}, on average over ranks and steps."
    )


def _get_saving(finding: Finding) -> float:
    return finding.saving or 0.0


def _name_cause(loss: Loss, findings: Sequence[Finding]) -> str | None:
    """Name what a loss goes to, as headlines do; None where it is not known."""
    if loss.finding is None:
        return _OF_CAUSE[loss.cause] if loss.cause in _OF_CAUSE else _OF_CATEGORY[loss.category]
    finding = findings[loss.finding]
    if finding.phase and finding.kind == f"{finding.phase}_stall":
        return _OF_CATEGORY[finding.phase]
    if KINDS[finding.kind].group == "ranks" and loss.category in {"wait", "ps_queue"}:
        return _LAST_RANKS
    if loss.category == "wait":
        return _COMMUNICATION
    return _OF_CATEGORY.get(loss.category) or _name_finding(finding)


def _name_finding(finding: Finding) -> str:
    """Name a finding by its kind, whom it is about, and the phase."""
    named = " ".join(filter(None, (KINDS[finding.kind].name, name_subject(finding))))
    return f"{named}, {fmt.phase(finding.phase)}" if finding.ranks and finding.phase else named

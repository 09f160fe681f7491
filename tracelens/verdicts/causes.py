"""What limits a run that has no fault: the named cause to which most of the time is lost."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.phases import job_ns
from tracelens.model import fmt
from tracelens.model.finding_kinds import KINDS
from tracelens.model.findings import subject
from tracelens.stats.robust import lower_medians
from tracelens.verdicts.advice import advise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.facts import Facts
    from tracelens.model.findings import Finding
    from tracelens.model.verdict import Ledger, Loss

__all__ = ["MIN_SHARE_OF_BOTTLENECK", "Bottleneck", "find_bottleneck"]

# of ranks x job time, or of the job for a saving: a smaller one does not limit a run [policy]
MIN_SHARE_OF_BOTTLENECK: Final = 0.1
MIN_USEFUL_IF_HEALTHY: Final = 0.85  # of ranks x job time: less is not healthy [policy]
# share of the time that is lost to late ranks: a rank with less is not named [policy]
MIN_SHARE_OF_DELAY_OF_RANK_NAMED: Final = 0.1

_COMMUNICATION: Final = "communication"
_IN_TURNS: Final = "ranks that are late in turns"
_SERVERS: Final = "parameter servers"
_BUBBLE: Final = "the bubble of the pipeline"
_UNASKED: Final = "a rank that waits for requests"
_OF_CAUSE: Final = {"unexplained": None, "uncovered": None, "jitter": _IN_TURNS, "bubble": _BUBBLE}
_OF_CATEGORY: Final[dict[str, str]] = {
    "transfer": _COMMUNICATION,
    "wait": _UNASKED,
    "ps_queue": _SERVERS,
    "data": "data loading",
    "checkpoint": "checkpoints",
    "gc": "garbage collection",
    "idle": "idle time",
    "outside": "time outside steps",
}
_NEXT: Final = {
    _COMMUNICATION: (
        "Hide reductions behind backprop, send fewer bytes, or use faster links; what each saves: "
        "tracelens whatif overlap=on, bandwidth*2."
    ),
    _IN_TURNS: (
        "Give ranks equally much work in each step, or find what interrupts them: page Stragglers "
        "shows who was last in which step."
    ),
    _SERVERS: "Look at how long each shard serves (page PS shards); more shards share the work.",
    _BUBBLE: "Use more micro-batches per step, or a schedule with a smaller bubble.",
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

    `finding` is the one that would save most of it; null without one. `where` says in which phase and on
    which ranks, and may be empty; `why` holds numbers to it.
    """

    cause: str
    share: float
    finding: Finding | None
    why: str
    where: str = ""

    @property
    def headline(self) -> str:
        """What to say first."""
        gain = self.finding.saving if self.finding else None
        more = ""
        if self.finding and gain:
            title = KINDS[self.finding.kind].name
            what = "" if self.cause.startswith(title) else f"{title}, "
            more = f" \N{MIDDLE DOT} {what}up to {fmt.percent(gain)} to gain"
        where = f", {self.where}" if self.where else ""
        return f"BOUND BY {self.cause}{where}: {fmt.percent(self.share)} of the time{more}"

    @property
    def action(self) -> str:
        """What to do next."""
        if self.finding:
            return advise(self.finding)
        return _NEXT.get(self.cause, "Look at the timeline of the worst step.")


def find_bottleneck(facts: Facts, ledger: Ledger, findings: Sequence[Finding]) -> Bottleneck | None:
    """Return what limits a run without a fault; None where nearly all of the time is useful."""
    shares: dict[str, float] = defaultdict(float)
    helping: dict[str, Finding] = {}
    for loss in ledger.losses:
        cause = _name_cause(loss, findings)
        if cause is None:
            continue
        shares[cause] += loss.share
        if loss.finding is not None:
            helping[cause] = max(
                helping.get(cause, findings[loss.finding]), findings[loss.finding], key=_saving
            )
    best = max(findings, key=_saving, default=None)
    cause = max(shares, key=shares.__getitem__, default=None)
    largest = shares[cause] if cause else 0.0
    if best and _saving(best) >= MIN_SHARE_OF_BOTTLENECK and _saving(best) > largest:
        named = next((name for name, one in helping.items() if one is best), _name_finding(best))
        return Bottleneck(
            named, max(shares.get(named, 0.0), _saving(best)), best, _first_sentence(best)
        )
    if cause is None or (
        largest < MIN_SHARE_OF_BOTTLENECK and ledger.useful >= MIN_USEFUL_IF_HEALTHY
    ):
        return None
    if cause == _IN_TURNS:
        last = _find_last_ranks(facts)
        if last:
            return Bottleneck(cause, largest, helping.get(cause), last.why, last.where)
    finding = helping.get(cause)
    why = _first_sentence(finding) if finding else describe_share(facts, cause, largest)
    return Bottleneck(cause, largest, finding, why)


def describe_share(facts: Facts, what: str, share: float) -> str:
    """Return in a sentence how much of each step a share of ranks x job time is."""
    steps = max(len(facts.phases.steps), 1)
    step_ns = job_ns(facts.trace) / steps
    return (
        f"{fmt.capital(what)}: {fmt.duration(share * step_ns)} of each step of "
        f"{fmt.duration(step_ns)}, on average over ranks and steps."
    )


def _first_sentence(finding: Finding) -> str:
    return finding.sentence.split(". ")[0].removesuffix(".") + "."


def _saving(finding: Finding) -> float:
    return finding.saving or 0.0


def _name_cause(loss: Loss, findings: Sequence[Finding]) -> str | None:
    """Name what a loss goes to, as headlines do; None where it is not known."""
    if loss.finding is None:
        return _OF_CAUSE[loss.cause] if loss.cause in _OF_CAUSE else _OF_CATEGORY[loss.category]
    finding = findings[loss.finding]
    if finding.phase and finding.kind == f"{finding.phase}_stall":
        return _OF_CATEGORY[finding.phase]
    of_ranks = KINDS[finding.kind].group == "ranks"
    if of_ranks and loss.category in {"wait", "ps_queue"}:
        return _name_finding(finding)
    if loss.category == "wait":
        return _COMMUNICATION
    return _OF_CATEGORY.get(loss.category) or _name_finding(finding)


def _name_finding(finding: Finding) -> str:
    """Name a finding by its kind, whom it is about, and the phase."""
    named = " ".join(filter(None, (KINDS[finding.kind].name, subject(finding))))
    return f"{named}, {fmt.phase(finding.phase)}" if finding.ranks and finding.phase else named


@dataclass(frozen=True)
class _LastRanks:
    """Where ranks that are late in turns take longer, and how often each of them was last."""

    where: str
    why: str


def _find_last_ranks(facts: Facts) -> _LastRanks | None:
    """Return in which phase ranks that are late in turns take longer, and which ranks these are."""
    own = facts.compute_time.levelled
    total = np.nan_to_num(own.total, nan=0.0)
    if not total.size or total.shape[1] < 2:
        return None
    last, rows = total.argmax(axis=1), np.arange(len(total))
    later = np.array(
        [
            np.maximum(spent[rows, last] - lower_medians(spent), 0.0)
            for spent in np.nan_to_num(own.own, nan=0.0)
        ]
    )
    by_phase = later.sum(axis=1)
    if not by_phase.any():
        return None
    phase = fmt.phase(own.phases[int(by_phase.argmax())])
    by_rank = np.bincount(last, later.sum(axis=0), minlength=total.shape[1])
    named = np.flatnonzero(by_rank >= MIN_SHARE_OF_DELAY_OF_RANK_NAMED * by_rank.sum())
    ranks = [own.ranks[column] for column in named.tolist()]
    most = f" (mostly {fmt.listing('rank', ranks)})" if 0 < len(ranks) < len(own.ranks) else ""
    counts = np.bincount(last, minlength=total.shape[1])
    often = np.argsort(-counts, kind="stable")[: fmt.MOST_LISTED].tolist()
    each = fmt.series([f"rank {own.ranks[column]} in {counts[column]:,}" for column in often])
    extra = fmt.duration(float(by_phase.max()) / len(total))
    why = (
        f"Last of {len(total):,} steps was {each}; {phase} takes the last rank {extra} longer than the "
        "usual one."
    )
    return _LastRanks(f"{phase}{most}", why)

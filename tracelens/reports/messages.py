"""The parts of a report that every format writes in the same words."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from tracelens.model import fmt
from tracelens.model.finding_kinds import KINDS
from tracelens.model.findings import name_subject
from tracelens.model.inert import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.model.findings import Finding
    from tracelens.model.result import LifeShares, Report
    from tracelens.model.trace import Note
    from tracelens.model.verdict import Ledger, Loss

# share of the time: if devices wait longer for launches, what the host did before that is said [policy]
MIN_LAUNCHING_TO_EXPLAIN: Final = 0.05
MAX_ATTEMPTS_LISTED: Final = 3  # attempts: a sentence lists no more of one kind [policy]
_MIN_SHARE_TO_NAME: Final = 0.005  # of ranks x job time
_MAX_CATEGORIES_NAMED: Final = 5
_MAX_REASONS: Final = 3
CAUSES: Final = {
    "late_ranks": "wait for other ranks",
    "wait": "wait for other ranks",
    "slow_host": "wait for a slow host",
    "ps_queue": "server queue",
    "transfer": "exposed communication",
    "exposed_transfer": "exposed communication",
    "data": "data loading",
    "checkpoint": "checkpoints",
    "gc": "garbage collection",
    "idle": "idle (cause known)",
    "outside": "outside steps",
    "uninstrumented": "uninstrumented",
}
_BY_CAUSE: Final = {
    "bubble": "pipeline bubble",
    "jitter": "for no rank in particular",
    "launching": "devices wait for launches",
}
_KNOWN: Final = {"wait": "server that waits for requests"}


def name_cause(name: str) -> str:
    """Name a bar of the waterfall in words."""
    return CAUSES.get(name, name.replace("_", " "))


def list_verdict_lines(report: Report) -> list[tuple[str, str]]:
    """List the lines below the headline of a verdict: (name, line)."""
    # `at_most`: waits were not recorded, so the efficiency is an upper bound.
    verdict = report.verdict
    lines = [("Why", verdict.why), ("Next", verdict.action), ("Scope", verdict.scope)]
    if report.ledger:
        at_most = report.efficiency is not None and report.efficiency.at_most
        devices = report.efficiency.devices if report.efficiency else None
        if devices:
            is_host_named = devices.launching >= MIN_LAUNCHING_TO_EXPLAIN and devices.host_text
            host_text = f"; {devices.host_text}" if is_host_named else ""
            lines.append(("Devices", f"{devices.description} of the time{host_text}."))
        lines.append(
            ("Time", f"{describe_losses(report.ledger, report.findings, at_most=at_most)}.")
        )
    if report.life and (report.life.attempts > 1 or report.life.failure):
        lines.append(("Life", describe_life(report.life)))
    return [(name, clean(line)) for name, line in lines]


def describe_life(life: LifeShares) -> str:
    """Return in one line what became of the job's wall time."""
    # `goodput` is the share of it in steps that were kept, `uses` are shares by use.
    from tracelens.accounting.life.ledger import name_uses  # noqa: PLC0415 - info reads no tables

    at_least = "" if life.is_kept_known else "at least "
    kept_text = f"{at_least}{fmt.percent(life.goodput)} of it in steps that were kept"
    uses = {use: share for use, share in life.uses.items() if share >= _MIN_SHARE_TO_NAME}
    phrases = name_uses(uses, is_kept_known=life.is_kept_known)
    shares = "; ".join([kept_text, *phrases[:_MAX_CATEGORIES_NAMED]])
    return f"{_count_attempts(life)} in {fmt.duration(life.wall_ns)}: {shares}."


def _count_attempts(life: LifeShares) -> str:
    """State how many attempts there were, and which of them had fewer ranks than others."""
    most_ranks = max(life.worlds, default=0)
    smaller_attempts = [
        f"attempt {number} with {world} of {most_ranks} ranks"
        for number, world in enumerate(life.worlds, 1)
        if 0 < world < most_ranks
    ]
    count_text = fmt.count(life.attempts, "attempt")
    if not smaller_attempts:
        return count_text
    more_count = len(smaller_attempts) - MAX_ATTEMPTS_LISTED
    phrases = smaller_attempts[:MAX_ATTEMPTS_LISTED]
    phrases += [f"{more_count} more with fewer"] if more_count > 0 else []
    return f"{count_text} ({fmt.join_words(phrases)})"


def describe_losses(ledger: Ledger, findings: Sequence[Finding], *, at_most: bool = False) -> str:
    """State in one line where the time went, by the categories of the waterfall, and to whom."""
    # The ledger has shares of ranks x job time: useful, each loss with its category, and
    # unexplained. `at_most`: waits were not recorded, so part of what is useful may be waiting.
    useful_text = f"{fmt.percent(ledger.useful)} useful"
    phrases = [f"at most {useful_text}, as waits are not recorded" if at_most else useful_text]
    share_by_category: dict[str, float] = defaultdict(float)
    for loss in ledger.losses:
        share_by_category[loss.category] += loss.share
    largest_first = sorted(share_by_category.items(), key=lambda entry: -entry[1])
    worth_naming = [(name, share) for name, share in largest_first if share >= _MIN_SHARE_TO_NAME]
    shown_categories = worth_naming[:_MAX_CATEGORIES_NAMED]
    for name, share in shown_categories:
        losses = [loss for loss in ledger.losses if loss.category == name]
        reasons = _explain_losses(losses, findings)
        phrases.append(f"{fmt.percent(share)} {name_cause(name)}{reasons}")
    other_share = 1.0 - ledger.useful - sum(share for _, share in shown_categories)
    phrases += [f"{fmt.percent(other_share)} other"] if other_share >= _MIN_SHARE_TO_NAME else []
    return "; ".join([*phrases, f"{fmt.percent(ledger.unexplained)} unexplained"])


def _explain_losses(losses: Sequence[Loss], findings: Sequence[Finding]) -> str:
    """State in brackets to whom or what a category's time was lost, where that is known."""
    share_by_culprit: dict[str, float] = defaultdict(float)
    for loss in losses:
        share_by_culprit[_name_culprit(loss, findings)] += loss.share
    share_by_culprit.pop("", None)  # of nobody
    largest_first = sorted(share_by_culprit.items(), key=lambda entry: -entry[1])
    worth_naming = [(name, share) for name, share in largest_first if share >= _MIN_SHARE_TO_NAME]
    texts = [f"{fmt.percent(share)} {name}" for name, share in worth_naming]
    return f" ({', '.join(texts[:_MAX_REASONS])})" if texts else ""


def _name_culprit(loss: Loss, findings: Sequence[Finding]) -> str:
    """Name to whom or what a loss goes; empty where the category says it all, or nothing does."""
    # `loss.finding` is the index of the finding that explains it, None without one.
    if loss.finding is None:
        return _BY_CAUSE.get(loss.cause) or (
            _KNOWN.get(loss.category, "") if loss.cause == "known" else ""
        )
    finding = findings[loss.finding]
    culprit = name_subject(finding)
    if KINDS[finding.kind].group != "ranks" or not culprit:
        name = KINDS[finding.kind].name
        return "" if name == name_cause(loss.category) else name
    phase_and_steps = [fmt.phase(finding.phase)] if finding.phase else []
    phase_and_steps += [fmt.steps(*finding.steps)] if finding.steps else []
    where_text = f" in {', '.join(phase_and_steps)}" if phase_and_steps else ""
    return f"lost to {culprit}{where_text}"


def write_saving(finding: Finding) -> str:
    """Write the saving of fixing a finding, with its interval; empty if it is unknown."""
    if finding.saving is None:
        return ""
    prefix = "up to " if finding.category == "opportunity" else ""
    text = f"{prefix}{fmt.percent(finding.saving, digits=1)} of the job's time"
    if finding.interval is None:
        return text
    low, high = finding.interval
    return f"{text} (95 % CI: {fmt.percent(low, digits=1)} to {fmt.percent(high, digits=1)})"


def write_note(note: Note) -> str:
    """Write a note, with its file if it does not name it itself."""
    has_no_prefix = not note.file or note.file in note.sentence
    return clean(note.sentence if has_no_prefix else f"{note.file}: {note.sentence}")

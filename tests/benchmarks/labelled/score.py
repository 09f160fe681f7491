"""Holds a report against the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.labelled.label import HEALTHY
from benchmarks.labelled.peers import PEERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.labelled.label import Label, Seen

    from tracelens.model.findings import Finding

HALF_A_POINT: Final = 0.005  # of the job: by what share a smaller saving is wrong says nothing
# Reported beside a verdict, not instead of one.
ASIDE: Final = ("clock_jump", "dropped_events")
OF_RANKS: Final = ("straggler", "slow_host", "gc_stall")


def outcome(findings: Sequence[Finding], label: Label) -> dict[str, Any]:
    """Say what was right and wrong; numbers are null where the label or the report has none.

    ``right``: the first verdict is of the label's kind, names who it is, and no fault is reported that
    is none. ``wrong_blame``: a fault names a rank that has none.
    """
    reported = [finding for finding in findings if finding.kind not in (*ASIDE, *label.also)]
    faults = [finding for finding in reported if finding.category == "fault"]
    verdict = _first_kind(reported, faults, label)
    meant = [f for f in reported if f.kind == label.verdict and (f in faults) != label.opportunity]
    wrong = [f for f in faults if not _true(f, label)]
    is_found = bool(meant) and _names_ranks(meant, label)
    healthy = label.verdict == HEALTHY
    return {
        "said": verdict,
        "right": not faults if healthy else is_found and verdict == label.verdict and not wrong,
        "found": is_found,
        "false": len(wrong),
        "wrong_blame": any(set(f.ranks) - set(label.ranks) for f in wrong if f.kind in OF_RANKS),
        **(_numbers(meant[0], meant, label) if meant else {}),
    }


def _first_kind(told: list[Finding], faults: list[Finding], label: Label) -> str:
    if faults:
        return faults[0].kind
    chances = [finding.kind for finding in told if finding.category == "opportunity"]
    return chances[0] if label.opportunity and chances else HEALTHY


def _true(finding: Finding, label: Label) -> bool:
    """Say whether a fault is what is planted, and of nobody else."""
    if finding.kind != label.verdict:
        return False
    return not label.ranks or set(finding.ranks) <= set(label.ranks)


def _names_ranks(meant: list[Finding], label: Label) -> bool:
    """Say whether findings name those who are meant."""
    for truth, name in ((label.ranks, "ranks"), (label.hosts, "hosts"), (label.shards, "shards")):
        named = {one for finding in meant for one in getattr(finding, name)}
        if truth and not (named <= set(truth) if label.anyone else named == set(truth)):
            return False
    return True


def _numbers(first_finding: Finding, meant: list[Finding], label: Label) -> dict[str, Any]:
    """Compare phase, pattern, steps and saving."""
    out: dict[str, Any] = {}
    if label.phases:
        out["phase"] = first_finding.phase in label.phases
    if label.patterns:
        out["pattern"] = first_finding.pattern in label.patterns
    if label.steps and first_finding.steps:
        out["onset"] = first_finding.steps[0] - label.steps[0]
        out["end"] = first_finding.steps[1] - label.steps[1]
    if label.saving is not None and first_finding.saving is not None:
        out["saving"] = sum(finding.saving or 0.0 for finding in meant)
        out["truth"] = label.saving
        out["saving_right"] = abs(out["saving"] - label.saving) <= max(
            0.1 * label.saving, HALF_A_POINT
        )
        if first_finding.interval and len(meant) == 1:
            out["covered"] = first_finding.interval[0] <= label.saving <= first_finding.interval[1]
    return out


def of_peers(seen: Seen, label: Label) -> dict[str, dict[str, Any]]:
    """Say whom other rules name: whether the truth is among them, and how many others are."""
    truth = set(label.ranks) if label.verdict in OF_RANKS else set()
    ranks_by_rule = {name: rule(seen) for name, rule in PEERS.items()}
    return {
        name: {"found": bool(truth) and truth <= who, "named": len(who), "false": len(who - truth)}
        for name, who in ranks_by_rule.items()
    }

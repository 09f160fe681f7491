"""What to do next about a fault: from what was measured of it, the most telling first.

Sampled code comes first, then a core that was shared, more work than the peers have, the parts of the
phase that are slow, and the place of code that no span covers. Only if nothing of that was measured is
it said what to record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracelens.accounting.sampled_code import path_text
from tracelens.analyses.stragglers.location import Gap
from tracelens.model import fmt
from tracelens.model.finding_kinds import KINDS
from tracelens.model.findings import name_subject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.model.findings import Finding

# times the work of peers: a rank with less has not clearly more [policy]
MIN_WORK_RATIO_IF_UNEVEN: Final = 1.1
MIN_SHARE_OF_DELAY_EXPLAINED: Final = 0.5  # of a delay: less is no reason to act on [policy]
MIN_SHARE_OF_DELAY_IN_PART: Final = 0.5  # of a delay: a part with less is not named [policy]

_MORE_DETAIL: Final = (
    "Record again with --sample: it shows which functions take the time of {phase} on {ranks}."
)
_OF_PHASE: Final = {
    "data": (
        "Look at the data loading of {ranks}: storage, number of workers, size of samples; --sample "
        "shows in which code it waits."
    ),
    "gc": KINDS["gc_stall"].action,
    "checkpoint": KINDS["checkpoint_stall"].action,
}
_PERIODIC: Final = (
    "Look at what the program does every {period} steps: evaluation, logging, or saving; put it into a "
    "span (tl.span), or do it less often."
)
_STOPPED: Final = (
    "Find out what stopped the process of rank {rank}: SIGSTOP, Ctrl-Z, a debugger, or a container that "
    "was paused."
)
_RARE: Final = (
    "Look at what the program does in {steps}, such as evaluation, saving or logging: put it into a "
    "span (tl.span), or record with --sample, which shows the code."
)
_OWN_SPANS: Final = (
    "Do what span '{span}' does less often, or make it shorter, if {steps} took too long for it."
)
_PERIODIC_DATA: Final = (
    "Steps {steps} wait for data, {period} steps apart: if epochs begin there, keep the workers of the "
    "loader (DataLoader(persistent_workers=True)); else load ahead, or use faster storage."
)

_BALANCE_JOINED_INPUTS: Final = (
    "Give all ranks equally many batches (drop_last=True, DistributedSampler): within Join, ranks that "
    "ended early only wait for the others."
)
_LOOK_AT_COMMON_FAILURE: Final = (
    "Look at this code and its inputs: it failed on all ranks, so no single rank is the cause."
)
_SEND_ARRAYS: Final = (
    "Call comm.{buffers} with arrays (NumPy, or any buffer) instead of comm.{method}, which pickles its "
    "objects; then join small arrays into one."
)


def advise(finding: Finding) -> str:
    """Advise about a finding, with ranks, phase and what was measured."""
    evidence, ranks = finding.evidence, _name_ranks(finding)
    action = _advise_by_code(evidence, ranks) or _advise_by_evidence(evidence)
    if action:
        return action
    if finding.kind not in {"straggler", "slow_all", "slow_host", "data_stall"}:
        return KINDS[finding.kind].action
    return (
        _advise_own_core(evidence, ranks)
        or _advise_even_work(evidence, ranks)
        or _advise_slow_part(evidence, ranks)
        or _advise_rare_pauses(finding)
        or _advise_by_period(finding)
        or _advise_by_phase(finding, ranks)
    )


def _advise_by_code(evidence: Mapping[str, Any], ranks: str) -> str | None:
    """Advise on the code that was sampled, or that a watch saw; None where neither was."""
    samples, watched = evidence.get("samples"), evidence.get("watched")
    if samples:
        return f"Look at this code of {ranks}: {path_text(samples['path'])}."
    if not watched:
        return None
    if watched["state"] == "stopped":
        return _STOPPED.format(rank=watched["rank"])
    return f"Look at this code of rank {watched['rank']}: {watched['frame']}."


def _advise_by_evidence(evidence: Mapping[str, Any]) -> str | None:
    """Advise on what evidence alone decides; None where it decides nothing."""
    if evidence.get("ended_early"):
        return _BALANCE_JOINED_INPUTS if evidence.get("joins_on") else KINDS["uneven_inputs"].action
    if evidence.get("is_common"):
        return _LOOK_AT_COMMON_FAILURE
    if evidence.get("pickled"):
        return _SEND_ARRAYS.format(
            method=evidence["pickled"]["method"], buffers=evidence["pickled"]["method"].capitalize()
        )
    return None


def _advise_rare_pauses(finding: Finding) -> str | None:
    """Advise on slow steps of all ranks that are few; None for others, and where a period tells more."""
    evidence = finding.evidence
    if finding.kind != "slow_all" or finding.pattern != "sparse":
        return None
    steps, span = evidence["first_slow_steps"], evidence.get("span")
    are_all = evidence["steps_slow"] == len(steps)
    steps_text = fmt.listing("step", steps) if are_all else "these steps"
    if span:
        return _OWN_SPANS.format(span=span, steps=steps_text)
    return None if evidence["period"] else _RARE.format(steps=steps_text)


def _advise_by_period(finding: Finding) -> str | None:
    """Advise on slow steps of all ranks that keep a period; None for others."""
    evidence = finding.evidence
    period = evidence.get("period")
    if not period or finding.kind not in {"slow_all", "data_stall"}:
        return None
    if finding.kind == "slow_all":
        return _PERIODIC.format(period=period)
    steps = fmt.join_words([str(step) for step in evidence["first_slow_steps"]])
    return _PERIODIC_DATA.format(steps=steps, period=period)


def _name_ranks(finding: Finding) -> str:
    """Name the ranks that a finding is about, also of those that are delayed at different times."""
    return (
        fmt.listing("rank", finding.ranks)
        if finding.ranks
        else name_subject(finding) or "all ranks"
    )


def _advise_own_core(evidence: Mapping[str, Any], ranks: str) -> str | None:
    """Advise to give ranks cores of their own; None unless waiting for one explains the delay."""
    core_wait = evidence.get("core_wait") or {}
    explained_share = core_wait.get("explains") or 0.0
    if explained_share < MIN_SHARE_OF_DELAY_EXPLAINED:
        return None
    waited, explained = fmt.percent(core_wait["share"]), fmt.percent(explained_share)
    return (
        f"Give {ranks} a core that nothing else uses (mpiexec -bind-to core, taskset): {ranks} waited "
        f"for a core {waited} of the time, which explains {explained} of the delay."
    )


def _advise_even_work(evidence: Mapping[str, Any], ranks: str) -> str | None:
    """Advise to spread work evenly; None unless ranks have clearly more of it than their peers."""
    ratios = {noun: ratio for noun, ratio in (evidence.get("work") or {}).items() if ratio}
    noun = max(ratios, key=ratios.__getitem__, default=None)
    if noun is None or ratios[noun] < MIN_WORK_RATIO_IF_UNEVEN:
        return None
    return f"Spread the {noun} evenly: {ranks} had {ratios[noun]:.2f} times as many as the others."


def _advise_slow_part(evidence: Mapping[str, Any], ranks: str) -> str | None:
    """Advise where to look: at a part of the phase, or at code without a span; None if unknown."""
    largest_part = next(iter(evidence.get("parts") or []), None)
    if (
        largest_part
        and largest_part["name"]
        and largest_part["share"] >= MIN_SHARE_OF_DELAY_IN_PART
    ):
        share = fmt.percent(min(largest_part["share"], 1.0))
        return f"Look at {largest_part['name']} of {ranks}: {share} of the delay is there."
    gap = Gap(**evidence["place"]) if evidence.get("place") else None
    if gap and gap.share >= MIN_SHARE_OF_DELAY_IN_PART:
        return (
            f"Put the code of {ranks} {gap.location_text} into a span (tl.span), "
            f"or record with --sample: {fmt.percent(gap.share)} of the delay is there."
        )
    return None


def _advise_by_phase(finding: Finding, ranks: str) -> str:
    """Advise where nothing more was measured than the phase and the steps."""
    if finding.kind == "data_stall":
        return KINDS["data_stall"].action
    if finding.phase in _OF_PHASE:
        return _OF_PHASE[finding.phase].format(ranks=ranks)
    advice = _MORE_DETAIL.format(phase=fmt.phase(finding.phase or "uninstrumented"), ranks=ranks)
    if finding.kind == "straggler":
        return advice
    return f"{KINDS[finding.kind].action} {advice}"

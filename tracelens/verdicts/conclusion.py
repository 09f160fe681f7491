"""The verdict on a run, in four lines: what it is, why, what to do next, and what it is about.

A run is healthy only if no fault was found and nearly all of its time is useful by what was recorded.
One named cause that takes much of the time is its bottleneck. If more is not known than a cause takes,
the verdict is inconclusive, and says where that time is and what to record to know.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from tracelens.accounting import sampled_code
from tracelens.accounting.categories import CATEGORIES, UNINSTRUMENTED
from tracelens.accounting.core_waits import is_machine_busy
from tracelens.accounting.life.orders import describe_order
from tracelens.accounting.phases import job_ns
from tracelens.accounting.sampled_code import path_text
from tracelens.analyses.stragglers.location import find_gap
from tracelens.model import fmt
from tracelens.model.finding_kinds import KINDS
from tracelens.model.findings import first_sentence, name_subject, rate_severity
from tracelens.model.verdict import MOST_UNEXPLAINED, Verdict
from tracelens.verdicts.advice import advise
from tracelens.verdicts.awaited import describe_awaited_rank
from tracelens.verdicts.causes import MIN_SHARE_OF_BOTTLENECK, describe_share, find_bottleneck
from tracelens.verdicts.recognised import find_gaps
from tracelens.verdicts.tasks import measure_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.accounting.phases import Phases
    from tracelens.facts import Facts
    from tracelens.model.findings import Finding
    from tracelens.model.recognition import Gap
    from tracelens.model.result import Summary
    from tracelens.model.trace import Note, Trace
    from tracelens.model.verdict import Ledger, Loss
    from tracelens.verdicts.causes import Bottleneck
    from tracelens.verdicts.tasks import Tasks

# of the job: a fault that costs less is a finding, and no headline [policy]
MIN_SAVING_OF_FAULT_IN_HEADLINE: Final = 0.01
# times the fault's saving: an opportunity that saves more is named beside the fault [policy]
MIN_RATIO_OF_GAIN_BESIDE_FAULT: Final = 2.0
MIN_STEPS_IF_HEALTHY: Final = 10  # steps: a shorter run is not called healthy [policy]
# times the uncovered time: a known cause that takes more comes first, as it can be acted on [policy]
MIN_RATIO_OF_KNOWN_CAUSE: Final = 2 / 3
# of ranks x job time: with more in code that no span covers, a run is not judged [policy]
MAX_UNCOVERED_IF_CONCLUSIVE: Final = 0.1

_MORE_SPANS: Final = (
    "Wrap more code in spans (tl.span), record with --sample, and mark steps (tl.step)."
)
_RECORD: Final = {
    "wait": _MORE_SPANS,
    "uninstrumented": _MORE_SPANS,
    "ps_queue": (
        "Record what shards do beside requests (spans of receive, aggregate, apply, reply; "
        "--sample), and at least 20 steps; page PS shards shows where requests wait."
    ),
}
_NO_STEPS: Final = (
    "INCONCLUSIVE: no steps",
    "No worker recorded a step, so nothing can be compared.",
    "Mark steps with tl.step(i), or record with the hooks of the framework.",
)
_RECORD_ALONE: Final = (
    "Record again where nothing else runs, or give each rank cores of its own (mpiexec -bind-to "
    "core, taskset) and no more threads than these."
)
_BUSY_MACHINE: Final = (
    "Ranks waited for a core while they computed, so it is not known whether any rank is slow."
)
_RECORD_TASKS: Final = (
    "Wrap a task in a span (tl.span), with the sort of task in its name, or record with "
    "--sample: then it shows whether the worker is slow or its tasks are longer."
)
_WAITED: Final = {"wait": "waiting for other ranks", "ps_queue": "waiting in queues of servers"}


def conclude(
    facts: Facts,
    *,
    summary: Summary,
    findings: Sequence[Finding],
    ledger: Ledger | None,
    notes: Sequence[Note],
) -> Verdict:
    """Return the verdict that findings and losses lead to."""
    trace = facts.trace
    gaps_of_trace = find_gaps(trace)
    scope = _describe_outer_end(trace, findings) + _describe_scope(
        facts, summary, ledger, notes, gaps_of_trace
    )
    faults = [finding for finding in findings if finding.category == "fault"]
    gaps = [gap for gap in gaps_of_trace if gap.is_decisive]
    limiting_faults = (fault for fault in faults if not KINDS[fault.kind].ends_job)
    job_has_ended = any(KINDS[fault.kind].ends_job for fault in faults)
    accuses_no_rank = all(KINDS[fault.kind].group == "trace" for fault in limiting_faults)
    if not job_has_ended and (any(gap.voids_faults for gap in gaps) or (gaps and accuses_no_rank)):
        return _make_open_verdict(trace, gaps, scope)
    if faults:
        worst_fault = max(faults, key=lambda one: (KINDS[one.kind].ends_job, one.saving or 0.0))
        if worst_fault.saving is None or worst_fault.saving >= MIN_SAVING_OF_FAULT_IN_HEADLINE:
            why = _explain(worst_fault) + _describe_larger_gain(worst_fault, findings)
            return Verdict(
                state="fault",
                headline=_name_fault(worst_fault),
                why=why,
                action=advise(worst_fault),
                scope=scope,
                kind=worst_fault.kind,
            )
    bottleneck = find_bottleneck(facts, ledger, findings) if ledger else None
    open_verdict = _find_indecision(facts, summary, ledger, bottleneck, findings)
    if open_verdict:
        return Verdict("inconclusive", *open_verdict, scope)
    assert ledger
    where = summary.selection_text and f" in {summary.selection_text}"
    if bottleneck:
        kind = bottleneck.finding.kind if bottleneck.finding else None
        headline = bottleneck.headline + where
        return Verdict(
            state="bottleneck",
            headline=headline,
            why=bottleneck.why,
            action=bottleneck.action,
            scope=scope,
            kind=kind,
        )
    if summary.ranks_seen < 2 or summary.steps < MIN_STEPS_IF_HEALTHY:
        return Verdict("inconclusive", *_describe_short_run(summary, ledger), scope)
    return Verdict(
        state="healthy",
        headline=f"HEALTHY{where}: {fmt.percent(ledger.useful)} of the time is useful",
        why=_describe_largest_loss(ledger),
        action=_advise_if_healthy(findings),
        scope=scope,
    )


def _advise_if_healthy(findings: Sequence[Finding]) -> str:
    """Advise where nothing must be fixed: the finding that would save most, if any would."""
    helpful = [
        finding
        for finding in findings
        if KINDS[finding.kind].group != "trace" and (finding.saving is None or finding.saving > 0)
    ]
    if not helpful:
        return "Nothing to fix: compare later runs with this one (tracelens serve A B)."
    best = max(helpful, key=lambda finding: finding.saving or 0.0)
    saving_text = f"up to {fmt.percent(best.saving)}" if best.saving else "an unknown share"
    return f"Nothing must be fixed; {saving_text} of the job could be saved. {advise(best)}"


def _describe_short_run(summary: Summary, ledger: Ledger) -> tuple[str, str, str]:
    """Return headline, why and action for one rank, or few steps: shares are known, and no more."""
    is_alone = summary.ranks_seen < 2
    amount = "one rank" if is_alone else fmt.count(summary.steps, "step")
    comparison = "compared with another" if is_alone else "compared over time"
    has_more_ranks = is_alone and summary.ranks_expected > 1
    return (
        f"INCONCLUSIVE: {amount} alone; {fmt.percent(ledger.useful)} of the time is useful",
        f"{fmt.capital(amount)} cannot be {comparison}: shares of time are known, and no more.",
        "Give the files of all ranks, in one folder."
        if has_more_ranks
        else "Record at least 30 steps of two ranks or more.",
    )


def _find_indecision(
    facts: Facts,
    summary: Summary,
    ledger: Ledger | None,
    bottleneck: Bottleneck | None,
    findings: Sequence[Finding],
) -> tuple[str, str, str] | None:
    """Return headline, why and action if a run without a fault cannot be judged, else None."""
    trace, phases = facts.trace, facts.phases
    if ledger is None:
        return _NO_STEPS
    if summary.ranks_seen > 1 and not _has_communication(trace, phases):
        ranks = fmt.count(summary.ranks_seen, "rank")
        return (
            "INCONCLUSIVE: no communication was recorded",
            f"{ranks} ran, and no call of one to another is known.",
            "Record with the hooks of what they communicate with, or put calls into spans (tl.span).",
        )
    busy_machine = _find_core_waits(findings) or _find_busy_machine(facts, ledger)
    if busy_machine:
        return busy_machine
    tasks = measure_tasks(trace, phases, facts.roles.server_rank)
    if tasks and tasks.is_slower:
        return (
            f"INCONCLUSIVE: {_describe_slow_tasks(tasks)}",
            f"{fmt.capital(tasks.text)}.",
            _RECORD_TASKS,
        )
    return _find_unknown_time(facts, ledger, bottleneck, tasks.text if tasks else None)


def _find_unknown_time(
    facts: Facts, ledger: Ledger, bottleneck: Bottleneck | None, tasks_text: str | None
) -> tuple[str, str, str] | None:
    """Return headline, why and action if too much of the time is not known, else None.

    It is not too much if a known bottleneck takes more.
    """
    uncovered, unexplained = ledger.sum_share("uncovered"), ledger.unexplained
    is_known = unexplained < MOST_UNEXPLAINED and uncovered < MAX_UNCOVERED_IF_CONCLUSIVE
    if bottleneck and bottleneck.is_of_several_causes:
        is_known = bottleneck.share > unexplained + uncovered
    elif bottleneck:
        is_known |= bottleneck.share > unexplained + MIN_RATIO_OF_KNOWN_CAUSE * uncovered
    if is_known:
        return None
    if uncovered > unexplained:
        return _describe_uncovered(facts, ledger, uncovered)
    return (
        f"INCONCLUSIVE: {fmt.percent(unexplained)} of the time is lost, and nothing recorded says why",
        _describe_unexplained(ledger, tasks_text or describe_awaited_rank(facts, ledger)),
        _RECORD_TASKS if tasks_text else _RECORD[_find_largest_unexplained(ledger).category],
    )


def _describe_uncovered(facts: Facts, ledger: Ledger, share: float) -> tuple[str, str, str]:
    """Return headline, why and action for a `share` of the time in code that no span covers."""
    phases = facts.phases
    gap = find_gap(phases, tuple(phases.pieces.ranks), peers=(), step_numbers=phases.step_numbers)
    where = f", {fmt.percent(gap.share)} of it {gap.location_text}" if gap else ""
    code = sampled_code.find_in_phase(
        facts.trace,
        phases,
        CATEGORIES[UNINSTRUMENTED],
        step_numbers=phases.step_numbers,
        extra_ns=0.0,
    )
    sentences = [describe_share(facts, "Code that no span covers", share)]
    if ledger.unexplained >= MOST_UNEXPLAINED:
        sentences.append(_describe_unexplained(ledger, describe_awaited_rank(facts, ledger)))
    if code:
        sentences.append(f"Most samples there: {path_text(code.call_path)}.")
    gap_text = gap.location_text if gap else "of all ranks"
    return (
        f"INCONCLUSIVE: {fmt.percent(share)} of the time is uninstrumented{where}",
        " ".join(sentences),
        f"Put the code {gap_text} into a span (tl.span), or record with --sample.",
    )


def _describe_slow_tasks(tasks: Tasks) -> str:
    chance = ", maybe by chance" if tasks.may_be_chance else ""
    return f"rank {tasks.slowest_rank} takes {tasks.slowness_ratio:.1f} times as long for a task{chance}"


def _find_core_waits(findings: Sequence[Finding]) -> tuple[str, str, str] | None:
    """Return headline, why and action if a rank was late as it waited for a core, else None."""
    core_wait_findings = [
        finding for finding in findings if (finding.evidence.get("core_wait") or {}).get("is_cause")
    ]
    if not core_wait_findings:
        return None
    worst_finding = max(core_wait_findings, key=lambda finding: finding.saving or 0.0)
    core_wait = worst_finding.evidence["core_wait"]
    culprit, share = name_subject(worst_finding) or "ranks", fmt.percent(core_wait["share"])
    headline = (
        f"INCONCLUSIVE: the machine was busy: {culprit} waited for a core {share} of the time"
    )
    reason = (
        f"{_explain(worst_finding)} Waiting for a core explains "
        f"{fmt.percent(core_wait['explains'])} of it; usual was {fmt.percent(core_wait['usual'])} "
        "of the time."
    )
    return headline, reason, _RECORD_ALONE


def _find_busy_machine(facts: Facts, ledger: Ledger) -> tuple[str, str, str] | None:
    """Return headline, reason and action if waits for cores hide the slow rank, else None."""
    waited_text = _describe_core_waits(facts)
    if waited_text is None:
        return None
    headline = (
        f"INCONCLUSIVE: the machine was busy: ranks waited for a core {waited_text} of the time"
    )
    awaited_text = describe_awaited_rank(facts, ledger)
    certain_text = f" Waits between ranks are as recorded: {awaited_text}." if awaited_text else ""
    return headline, f"{_BUSY_MACHINE}{certain_text}", _RECORD_ALONE


def _describe_core_waits(facts: Facts) -> str | None:
    """Return the share of the time that ranks waited for cores, as text, if it bounds the run."""
    share = facts.core_wait_share
    return fmt.percent(share) if share is not None and is_machine_busy(share) else None


def _make_open_verdict(trace: Trace, gaps: Sequence[Gap], scope: str) -> Verdict:
    """Return the open verdict of a run whose data lack a decisive fact."""
    unknown_facts = fmt.join_words(list(dict.fromkeys(gap.unknown for gap in gaps)))
    missing = "; ".join(gap.missing for gap in gaps)
    in_format = f" In this {trace.recognition.format}: {missing}." if trace.recognition else ""
    return Verdict(
        state="inconclusive",
        headline=f"INCONCLUSIVE: {gaps[0].missing}",
        why=f"Not known: {unknown_facts}.{in_format}",
        action=gaps[0].advice,
        scope=scope,
    )


def _has_communication(trace: Trace, phases: Phases) -> bool:
    return bool(trace.calls) or bool(phases.sum_ns_by_window("wait", "ps_queue", "transfer").any())


def _name_fault(finding: Finding) -> str:
    """Return a headline for a fault: kind, culprit, phase and severity."""
    entry, culprit = KINDS[finding.kind], name_subject(finding)
    where = (
        f", {fmt.phase(finding.phase)}"
        if finding.phase and culprit and entry.group == "ranks"
        else ""
    )
    title = " ".join(filter(None, (entry.title.upper(), culprit)))
    return f"{title}{where} \N{MIDDLE DOT} {rate_severity(finding)}"


def _explain(finding: Finding) -> str:
    """Compare the culprit with its peers if both are known, else use the finding's own words."""
    culprit_ns, peers_ns = (finding.evidence.get(name) for name in ("phase_ns", "peers_phase_ns"))
    if culprit_ns is None or peers_ns is None or not finding.phase:
        return first_sentence(finding)
    steps_text = f", {fmt.steps(*finding.steps)}" if finding.steps else ""
    return (
        f"{name_subject(finding)}: {fmt.duration(culprit_ns)} per step in {fmt.phase(finding.phase)}; "
        f"the others: {fmt.duration(peers_ns)}{steps_text}."
    )


def _describe_larger_gain(fault: Finding, findings: Sequence[Finding]) -> str:
    """Name the opportunity that saves much more than the fault; empty without such an opportunity."""
    opportunities = [finding for finding in findings if finding.category == "opportunity"]
    best_opportunity = max(opportunities, key=lambda finding: finding.saving or 0.0, default=None)
    if best_opportunity is None or not best_opportunity.saving or fault.saving is None:
        return ""
    min_saving = max(MIN_SHARE_OF_BOTTLENECK, MIN_RATIO_OF_GAIN_BESIDE_FAULT * fault.saving)
    if best_opportunity.saving < min_saving:
        return ""
    name, gain = KINDS[best_opportunity.kind].name, fmt.percent(best_opportunity.saving)
    return f" More can be gained elsewhere: {name}, up to {gain} of the job."


def _find_largest_unexplained(ledger: Ledger) -> Loss:
    unexplained = (loss for loss in ledger.losses if loss.cause == "unexplained")
    return max(unexplained, key=lambda loss: loss.share)


def _describe_unexplained(ledger: Ledger, awaited_text: str) -> str:
    """Describe the larger unexplained losses, and (`awaited_text`) for whom ranks waited."""
    losses = sorted(
        (loss for loss in ledger.losses if loss.cause == "unexplained"),
        key=lambda entry: -entry.share,
    )
    loss_texts = [
        f"{fmt.percent(loss.share)} {_WAITED.get(loss.category, 'in code that no span covers')}"
        for loss in losses
        if loss.share >= MOST_UNEXPLAINED / 10
    ]
    return "; ".join(filter(None, (fmt.capital(fmt.join_words(loss_texts)), awaited_text))) + "."


def _describe_largest_loss(ledger: Ledger) -> str:
    """State that no cause takes much of the time, and which category takes most."""
    shares: dict[str, float] = defaultdict(float)
    for loss in ledger.losses:
        shares[loss.category] += loss.share
    largest = max(shares, key=shares.__getitem__, default=None)
    largest_text = (
        f"; the largest: {fmt.percent(shares[largest])} {fmt.phase(largest)}" if largest else ""
    )
    return (
        "No fault costs much of the job, and no cause takes "
        f"{fmt.percent(MIN_SHARE_OF_BOTTLENECK)} of the time{largest_text}."
    )


def _describe_outer_end(trace: Trace, findings: Sequence[Finding]) -> str:
    """Describe that the job was ended from outside, and by whom if known; empty if it was not."""
    outer_end = next((one for one in findings if one.kind == "ended_from_outside"), None)
    if outer_end is None:
        return ""
    causes = fmt.join_words(sorted(set(outer_end.evidence["causes"].values())))
    order = describe_order(trace.journal) or "by whom is not known"
    return f"Ended from outside ({causes} of all ranks): {order}. "


def _describe_scope(
    facts: Facts,
    summary: Summary,
    ledger: Ledger | None,
    notes: Sequence[Note],
    gaps: Sequence[Gap],
) -> str:
    """Describe the data that the verdict is about, and its gaps."""
    trace = facts.trace
    ranks = fmt.count(summary.ranks_seen, "rank")
    if summary.ranks_seen < summary.ranks_expected:
        ranks = f"{summary.ranks_seen} of {summary.ranks_expected} ranks"
    shards = f", {fmt.count(summary.shards, 'PS shard')}" if summary.shards else ""
    selection = f" (only {summary.selection_text}, as asked)" if summary.selection_text else ""
    length_text = f", {fmt.duration(job_ns(trace))}" if ledger else ""
    startup_ns = ledger.startup_ns if ledger else None
    startup_text = f"; start-up of {fmt.duration(startup_ns)} apart" if startup_ns else ""
    unknown_facts = []
    if trace.alignment.untied_clock_domains:
        unknown_facts.append("waits between hosts whose clocks are not aligned")
    if summary.dropped:
        unknown_facts.append("what was dropped while recording")
    if any(note.kind == "unjudged" for note in notes):
        unknown_facts.append("stragglers (too few steps or ranks)")
    if any(note.kind == "unrecorded" for note in notes):
        unknown_facts.append("what binds PS shards (no 'receive' spans)")
    if trace.partial_communicators:
        unknown_facts.append("waits for ranks that were left out")
    waited_text = _describe_core_waits(facts)
    if waited_text:
        unknown_facts.append(
            f"who else is slow (ranks waited for a core {waited_text} of the time)"
        )
    unknown_facts += dict.fromkeys(gap.unknown for gap in gaps)
    missing = f"; not known: {fmt.join_words(unknown_facts)}" if unknown_facts else ""
    steps = fmt.count(summary.steps, "step")
    return f"{ranks}{shards}, {steps}{length_text}{selection}{startup_text}{missing}."

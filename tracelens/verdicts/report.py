"""Run every analysis on a trace, and put together what they found: `analyze`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens import plugins
from tracelens.accounting import efficiency, phases
from tracelens.analyses import ANALYSES
from tracelens.analyses.life import Life
from tracelens.analyses.servers.shards import Shards
from tracelens.analyses.stragglers.findings import Stragglers
from tracelens.distil.outline import list_outlines
from tracelens.errors import InvalidArgument
from tracelens.facts import Facts
from tracelens.memory import free_unused_memory
from tracelens.model.finding_kinds import KINDS
from tracelens.model.findings import Finding, is_suppressed
from tracelens.model.result import Report, Result, Summary
from tracelens.model.trace import Note
from tracelens.verdicts import conclusion, ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Executor

    from tracelens.accounting.phases import Phases
    from tracelens.model.trace import Trace

PARTS_OF_MEMORY: Final = 32  # parts: pieces of workers' time take one of the memory [policy]


def analyze(
    trace: Trace,
    progress: Callable[[int, int], None] | None = None,
    executor: Executor | None = None,
    memory: int | None = None,
) -> Report:
    """Run every analysis and order the findings by what fixing each would save.

    Raises:
        InvalidArgument: `trace` is something else, such as a path.

    Args:
        trace: A run with the default transforms applied, as `tracelens.open` returns it.
        progress: Called with (done, total) as often as something is done, in hundredths of all.
        executor: Accounts for the workers' time; None = in threads of this process.
        memory: About how many bytes to take, where a temporary file can do instead; None = no limit.
    """
    if not hasattr(trace, "steps"):
        kind = type(trace).__name__
        raise InvalidArgument(f"analyze() got a {kind}, expected what tl.open(path) returns.")
    on_progress = progress or (lambda _done, _total: None)
    on_progress(0, 100)
    half_percent = 100 // 2  # cutting time into phases takes as long as all that follows
    phase_results = phases.run(
        trace,
        lambda done, all_: on_progress(half_percent * done // all_, 100),
        executor,
        None if memory is None else memory // PARTS_OF_MEMORY,
    )
    free_unused_memory()
    facts = Facts(trace, phase_results)
    results: dict[str, Result] = {"phases": phase_results}
    for done, analysis in enumerate(ANALYSES, 1):
        results[analysis.name] = analysis.run(facts)
        needed_later = frozenset[str]().union(*(later.needed_facts for later in ANALYSES[done:]))
        for fact in analysis.needed_facts - needed_later:
            facts.drop(fact)
        free_unused_memory()
        on_progress(half_percent + half_percent * done // len(ANALYSES), 100)
    plugin_results, plugin_notes = _run_plugins(trace, phase_results)
    results |= plugin_results
    all_findings = (finding for result in results.values() for finding in result.findings)
    leaves_out_ranks = trace.choice.rank_ranges is not None
    findings = rank_findings(
        f for f in all_findings if not (leaves_out_ranks and KINDS[f.kind].needs_all_ranks)
    )
    time_efficiency = efficiency.measure_efficiency(trace, phase_results, facts.spent_time)
    summary = _summarise(trace, phase_results)
    notes = (*trace.notes, *(() if trace.is_snapshot else _note_unjudged(results)), *plugin_notes)
    losses = ledger.measure(facts, findings, results)
    return Report(
        verdict=conclusion.conclude(
            facts, summary=summary, findings=findings, ledger=losses, notes=notes
        ),
        summary=summary,
        clock=trace.alignment,
        efficiency=efficiency.split_off_slow_hosts(time_efficiency, findings)
        if time_efficiency
        else None,
        ledger=losses,
        findings=findings,
        notes=notes,
        results=results,
        life=results["life"].shares if isinstance(results["life"], Life) else None,
    )


def rank_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Order findings: what limits the trace, then faults, then opportunities, each by saving.

    What other findings explain is left out (`KINDS`).

    A fault without a saving is of the first kind. A fault comes before an opportunity because it is
    certain, and because an opportunity's saving is what could be had at best.
    """
    candidates = list(findings)

    def order_of(finding: Finding) -> tuple[int, float]:
        if finding.category == "opportunity":
            return 2, -(finding.saving or 0.0)
        return (1, -finding.saving) if finding.saving is not None else (0, 0.0)

    kept = (finding for finding in candidates if not is_suppressed(finding, candidates))
    return tuple(sorted(kept, key=order_of))


def _run_plugins(trace: Trace, phases: Phases) -> tuple[dict[str, Result], list[Note]]:
    """Run the analyses of plugins; return results by entry point, and notes on failures."""
    results: dict[str, Result] = {}
    notes = []
    for plugin in plugins.list_plugins(plugins.ANALYSES):
        try:
            result = plugin.load()(trace, phases)
            if not all(isinstance(finding, Finding) for finding in result.findings):
                raise TypeError("its 'findings' are no tracelens.analyses.Finding")  # noqa: TRY301 - as other failures
        except Exception as error:  # noqa: BLE001 - code of others may raise anything; the report stands
            reason = f"{type(error).__name__}: {error}".rstrip(".")
            sentence = (
                f"The analysis '{plugin.name}' of {plugin.distribution} failed, and what it would find "
                f"is not in this report ({reason})."
            )
            notes.append(Note(file="", sentence=sentence, kind="plugin"))
        else:
            results[plugin.name] = result
    return results, notes


def _note_unjudged(results: Mapping[str, Result]) -> tuple[Note, ...]:
    """Return a note for each analysis that could not judge."""
    stragglers, shards = results["stragglers"], results["shards"]
    reason_by_kind = {
        "unjudged": stragglers.statement if isinstance(stragglers, Stragglers) else None,
        "unrecorded": shards.statement if isinstance(shards, Shards) else None,
    }
    return tuple(
        Note(file="", sentence=sentence, kind=kind)
        for kind, sentence in reason_by_kind.items()
        if sentence
    )


def _count_spans(trace: Trace, process: int) -> int:
    """Count the spans of a process that are here."""
    if trace.choice.step_ranges is None and trace.choice.time_range_ns is None:
        return list_outlines(trace)[process].span_count
    return int(np.count_nonzero(trace.source.read_columns(process, ("type",)).is_span))


def _summarise(trace: Trace, phases: Phases) -> Summary:
    """Count ranks, servers, steps and spans; spans by the partition where it has them."""
    span_count = sum(
        phases.span_count_by_process[process]
        if process in phases.span_count_by_process
        else _count_spans(trace, process)
        for process in trace.source.part_by_process
    )
    shards = trace.shards.height
    return Summary(
        ranks_expected=max(trace.expected_ranks - shards, trace.workers.height),
        ranks_seen=trace.workers.height,
        shards=shards,
        steps=trace.steps["step"].n_unique(),
        spans=span_count,
        dropped=trace.dropped,
        selected=None if trace.choice.is_whole_run else trace.choice.text_by_option,
    )

"""A comparison as text (30 lines of 80 columns), as JSON, and as Markdown (docs/compare.md)."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

from tracelens.comparison import messages
from tracelens.comparison.series import CATEGORY_OF, EFFICIENCY
from tracelens.reports.lines import (
    COLUMNS,
    escape_markdown,
    json_text,
    markdown_row,
    write_named_lines,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelens.comparison.changes import Comparison, FindingChange, Metric
    from tracelens.comparison.gates import Outcome
    from tracelens.comparison.messages import MetricRow
    from tracelens.comparison.series import RunMetrics

COMPARISON_FORMAT: Final = "tracelens.comparison/1"
MAX_LINES: Final = 30  # lines: a comparison is no longer, so that it fits on a screen [policy]
MAX_LINES_OF_NOTE: Final = 2  # lines: a note, name or gate is no longer [policy]
MAX_FINDINGS_SHOWN: Final = 6  # findings: no more new and gone findings are shown [policy]
MIN_ROWS_SHOWN: Final = 4  # rows: the table shows as many, however little room there is [policy]


def to_text(comparison: Comparison, outcomes: Sequence[Outcome], /) -> str:
    """Write a comparison for a terminal; what there is no room for is counted."""
    baseline_text, new_text = messages.describe_runs(comparison)
    facts = [
        ("Verdict", f"{messages.name_verdict(comparison)}: {messages.write_headline(comparison)}"),
        ("Baseline", baseline_text),
        ("New", new_text),
        *(("Note", sentence) for sentence in messages.list_cautions(comparison)),
    ]
    gates = [
        ("FAILED" if outcome.has_failed else "passed", f"{outcome.gate.text}: {outcome.reason}")
        for outcome in outcomes
    ]
    head_lines, gate_lines = (
        [line for fact in names_and_texts for line in write_named_lines(*fact, MAX_LINES_OF_NOTE)]
        for names_and_texts in (facts, gates)
    )
    last_lines = [*_write_findings(comparison), *([""] if gate_lines else []), *gate_lines]
    free_lines = MAX_LINES - len(head_lines) - len(last_lines)
    return "\n".join([*head_lines, *_write_metrics(comparison, free_lines), *last_lines]) + "\n"


def _write_metrics(comparison: Comparison, free_lines: int) -> list[str]:
    """Return the table of metrics as lines; if room is short, with the phases that changed most."""
    # A phase is a part of a step (`CATEGORY_OF`).
    if not comparison.metrics:
        return []
    free_rows = max(free_lines - 3, MIN_ROWS_SHOWN)  # a blank line, the headings, the last line
    step_metrics = [metric for metric in comparison.metrics if metric.name not in CATEGORY_OF]
    phases = comparison.phase_metrics[: max(free_rows - len(step_metrics), 0)]
    shown_names = {metric.name for metric in (*step_metrics, *phases)}
    rows = [
        messages.write_row(metric) for metric in comparison.metrics if metric.name in shown_names
    ]
    hidden_count = len(comparison.metrics) - len(rows)
    more_text = f"; {hidden_count} more: --format json" if hidden_count else ""
    note = f"* equal runs would rarely differ so far (p < 0.05){more_text}"
    return ["", *map(_write_row, (messages.HEADINGS, *rows)), note]


def _write_row(row: MetricRow) -> str:
    title, before, after, change, interval, probability, mark = row
    return (
        f"{title[:23]:23} {before:>9} {after:>9} {change:>9} {interval:>16} {probability:>7} {mark}"
    ).rstrip()


def _write_findings(comparison: Comparison) -> list[str]:
    """Return lines on new, remaining and gone findings, at most `MAX_FINDINGS_SHOWN`."""
    if not comparison.finding_changes:
        return ["", "Findings none in any run"]
    lines = [
        textwrap.shorten(
            ": ".join(_describe_finding(change, comparison)), COLUMNS - 2, placeholder=" ..."
        )
        for change in comparison.finding_changes[:MAX_FINDINGS_SHOWN]
    ]
    if len(comparison.finding_changes) > len(lines):
        lines.append(f"and {len(comparison.finding_changes) - len(lines)} more: --format json")
    return ["", "Findings", *(f"  {line}" for line in lines)]


def _describe_finding(change: FindingChange, comparison: Comparison) -> tuple[str, str]:
    """Return the state of a finding (new, gone, still there), and the finding in a line."""
    return messages.STATES[change.state], messages.describe_finding(
        change, len(comparison.baseline_runs)
    )


def to_markdown(comparison: Comparison, outcomes: Sequence[Outcome], /) -> str:
    """Write a comparison for an issue or a job summary, with all metrics and findings."""
    headline = escape_markdown(messages.write_headline(comparison))
    baseline_text, new_text = messages.describe_runs(comparison)
    facts = [f"Baseline: {baseline_text}", f"New: {new_text}", *messages.list_cautions(comparison)]
    lines = [f"**TraceLens: {messages.name_verdict(comparison)}**: {headline}", ""]
    lines += [f"- {escape_markdown(fact)}" for fact in facts]
    if outcomes:
        lines += ["", "| gate | outcome | why |", "|---|---|---|"]
        lines += [
            f"| `{outcome.gate.text}` | {'**failed**' if outcome.has_failed else 'passed'} "
            f"| {escape_markdown(outcome.reason)} |"
            for outcome in outcomes
        ]
    if comparison.metrics:
        lines += ["", markdown_row(messages.HEADINGS), "|---|---:|---:|---:|---:|---:|---|"]
        lines += [markdown_row(messages.write_row(metric)) for metric in comparison.metrics]
    if comparison.finding_changes:
        lines += ["", "| finding | |", "|---|---|"]
        lines += [
            markdown_row(_describe_finding(change, comparison))
            for change in comparison.finding_changes
        ]
    return "\n".join(lines) + "\n"


def to_json(comparison: Comparison, outcomes: Sequence[Outcome], /) -> str:
    """Write a comparison for programs; what is not known is null."""
    return json_text(
        {
            "format": COMPARISON_FORMAT,
            "verdict": messages.name_verdict(comparison).lower().replace(" ", "_"),
            "summary": messages.write_headline(comparison),
            "baselines": [_run_object(run) for run in comparison.baseline_runs],
            "new": _run_object(comparison.new_run),
            "metrics": [_metric_object(metric) for metric in comparison.metrics],
            "findings": [_finding_object(change) for change in comparison.finding_changes],
            "gates": [
                {
                    "condition": outcome.gate.text,
                    "state": outcome.state,
                    "reason": outcome.reason,
                    "probability": outcome.p_value,
                }
                for outcome in outcomes
            ],
            "notes": messages.list_cautions(comparison),
        }
    )


def _run_object(run: RunMetrics) -> dict[str, Any]:
    sizes = {"ranks": run.rank_count, "shards": run.shard_count, "steps": run.step_count}
    return {"name": run.name, **sizes}


def _metric_object(metric: Metric) -> dict[str, Any]:
    """Return a metric as JSON; changes are shares of the baselines' mean, null where that is 0."""
    change = metric.change
    interval = [
        change.to_share(bound)
        for bound in (change.low_difference, change.high_difference)
        if bound is not None
    ]
    return {
        "name": metric.name,
        "statistic": metric.statistic,
        "unit": "share" if metric.name == EFFICIENCY else "ns",
        "baseline": change.value_before,
        "new": change.value_after,
        "change": change.to_share(change.difference),
        "interval": interval or None,
        "between_baselines": change.deviation_of_baselines,
        "probability": metric.p_value,
        "clear": metric.is_clear,
    }


def _finding_object(change: FindingChange) -> dict[str, Any]:
    finding = change.finding
    return {
        "state": change.state,
        **{name: getattr(finding, name) for name in ("kind", "category", "phase")},
        **{name: list(getattr(finding, name)) for name in ("ranks", "hosts", "shards")},
        "saving_before": change.saving_share_before,
        "saving": change.saving_share_after,
        "baselines": change.baseline_count,
        "sentence": finding.sentence,
    }


# Each writes a comparison with the outcomes of its gates.
COMPARISONS: Final[dict[str, Callable[[Comparison, Sequence[Outcome]], str]]] = {
    "text": to_text,
    "json": to_json,
    "markdown": to_markdown,
}

"""A comparison as text (30 lines of 80 columns), as JSON, and as Markdown (docs/compare.md)."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

from tracelens.comparison import messages
from tracelens.comparison.series import CATEGORY_OF, EFFICIENCY
from tracelens.reports.lines import COLUMNS, escaped, json_text, markdown_row, named_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelens.comparison.changes import Comparison, FindingChange, Metric
    from tracelens.comparison.gates import Outcome
    from tracelens.comparison.messages import Row
    from tracelens.comparison.series import Steps

COMPARISON_FORMAT: Final = "tracelens.comparison/1"
MAX_LINES: Final = 30  # lines: a comparison is no longer, so that it fits on a screen [policy]
MAX_LINES_OF_NOTE: Final = 2  # lines: a note, name or gate is no longer [policy]
MAX_FINDINGS_SHOWN: Final = 6  # findings: no more new and gone findings are shown [policy]
MIN_ROWS_SHOWN: Final = 4  # rows: the table shows as many, however little room there is [policy]


def to_text(comparison: Comparison, outcomes: Sequence[Outcome], /) -> str:
    """Write a comparison for a terminal; what there is no room for is counted."""
    baseline, new = messages.scope(comparison)
    facts = [
        ("Verdict", f"{messages.verdict(comparison)}: {messages.headline(comparison)}"),
        ("Baseline", baseline),
        ("New", new),
        *(("Note", sentence) for sentence in messages.cautions(comparison)),
    ]
    gates = [
        ("FAILED" if outcome.failed else "passed", f"{outcome.gate.text}: {outcome.reason}")
        for outcome in outcomes
    ]
    head, foot = (
        [line for fact in lines for line in named_lines(*fact, MAX_LINES_OF_NOTE)]
        for lines in (facts, gates)
    )
    foot = ["", *foot] if foot else []
    findings = _write_findings(comparison)
    free_lines = MAX_LINES - len(head) - len(foot) - len(findings)
    return "\n".join([*head, *_write_metrics(comparison, free_lines), *findings, *foot]) + "\n"


def _write_metrics(comparison: Comparison, free_lines: int) -> list[str]:
    """Return the table of metrics as lines; if room is short, with the phases that changed most."""
    if not comparison.metrics:
        return []
    free_rows = max(free_lines - 3, MIN_ROWS_SHOWN)  # a blank line, the headings, the last line
    step_metrics = [metric for metric in comparison.metrics if metric.name not in CATEGORY_OF]
    phases = comparison.phases[: max(free_rows - len(step_metrics), 0)]
    names = {metric.name for metric in (*step_metrics, *phases)}
    rows = [messages.row(metric) for metric in comparison.metrics if metric.name in names]
    hidden_count = len(comparison.metrics) - len(rows)
    more_text = f"; {hidden_count} more: --format json" if hidden_count else ""
    note = f"* equal runs would rarely differ so far (p < 0.05){more_text}"
    return ["", *map(_write_row, (messages.HEADINGS, *rows)), note]


def _write_row(row: Row) -> str:
    title, before, after, change, interval, probability, mark = row
    return (
        f"{title[:23]:23} {before:>9} {after:>9} {change:>9} {interval:>16} {probability:>7} {mark}"
    ).rstrip()


def _write_findings(comparison: Comparison) -> list[str]:
    """Return lines on new, remaining and gone findings, at most `MAX_FINDINGS_SHOWN`."""
    if not comparison.findings:
        return ["", "Findings none in any run"]
    lines = [
        textwrap.shorten(
            ": ".join(_describe_finding(change, comparison)), COLUMNS - 2, placeholder=" ..."
        )
        for change in comparison.findings[:MAX_FINDINGS_SHOWN]
    ]
    if len(comparison.findings) > len(lines):
        lines.append(f"and {len(comparison.findings) - len(lines)} more: --format json")
    return ["", "Findings", *(f"  {line}" for line in lines)]


def _describe_finding(change: FindingChange, comparison: Comparison) -> tuple[str, str]:
    """Write the state of a finding (new, gone, still there), and the finding in a line."""
    return messages.STATES[change.state], messages.finding(change, len(comparison.baselines))


def to_markdown(comparison: Comparison, outcomes: Sequence[Outcome], /) -> str:
    """Write a comparison for an issue or a job summary, with all metrics and findings."""
    headline = escaped(messages.headline(comparison))
    baseline, new = messages.scope(comparison)
    facts = [f"Baseline: {baseline}", f"New: {new}", *messages.cautions(comparison)]
    lines = [f"**TraceLens: {messages.verdict(comparison)}**: {headline}", ""]
    lines += [f"- {escaped(fact)}" for fact in facts]
    if outcomes:
        lines += ["", "| gate | outcome | why |", "|---|---|---|"]
        lines += [
            f"| `{outcome.gate.text}` | {'**failed**' if outcome.failed else 'passed'} "
            f"| {escaped(outcome.reason)} |"
            for outcome in outcomes
        ]
    if comparison.metrics:
        lines += ["", markdown_row(messages.HEADINGS), "|---|---:|---:|---:|---:|---:|---|"]
        lines += [markdown_row(messages.row(metric)) for metric in comparison.metrics]
    if comparison.findings:
        lines += ["", "| finding | |", "|---|---|"]
        lines += [
            markdown_row(_describe_finding(change, comparison)) for change in comparison.findings
        ]
    return "\n".join(lines) + "\n"


def to_json(comparison: Comparison, outcomes: Sequence[Outcome], /) -> str:
    """Write a comparison for programs; what is not known is null."""
    return json_text(
        {
            "format": COMPARISON_FORMAT,
            "verdict": messages.verdict(comparison).lower().replace(" ", "_"),
            "summary": messages.headline(comparison),
            "baselines": [_run_object(run) for run in comparison.baselines],
            "new": _run_object(comparison.new),
            "metrics": [_metric_object(metric) for metric in comparison.metrics],
            "findings": [_finding_object(change) for change in comparison.findings],
            "gates": [
                {
                    "condition": outcome.gate.text,
                    "state": outcome.state,
                    "reason": outcome.reason,
                    "probability": outcome.probability,
                }
                for outcome in outcomes
            ],
            "notes": messages.cautions(comparison),
        }
    )


def _run_object(run: Steps) -> dict[str, Any]:
    return {"name": run.name, "ranks": run.ranks, "shards": run.shards, "steps": run.count}


def _metric_object(metric: Metric) -> dict[str, Any]:
    change = metric.change
    interval = [change.share(bound) for bound in (change.low, change.high) if bound is not None]
    return {
        "name": metric.name,
        "statistic": metric.statistic,
        "unit": "share" if metric.name == EFFICIENCY else "ns",
        "baseline": change.before,
        "new": change.after,
        "change": change.share(change.delta),
        "interval": interval or None,
        "between_baselines": change.between,
        "probability": metric.probability,
        "clear": metric.clear,
    }


def _finding_object(change: FindingChange) -> dict[str, Any]:
    finding = change.finding
    return {
        "state": change.state,
        **{name: getattr(finding, name) for name in ("kind", "category", "phase")},
        **{name: list(getattr(finding, name)) for name in ("ranks", "hosts", "shards")},
        "saving_before": change.before,
        "saving": change.after,
        "baselines": change.baselines,
        "sentence": finding.sentence,
    }


# Each writes a comparison with the outcomes of its gates.
COMPARISONS: Final[dict[str, Callable[[Comparison, Sequence[Outcome]], str]]] = {
    "text": to_text,
    "json": to_json,
    "markdown": to_markdown,
}

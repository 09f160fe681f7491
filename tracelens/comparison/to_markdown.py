"""A comparison for an issue, a pull request or a job summary: the same as the text, as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.comparison import messages
from tracelens.reports.to_markdown import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.comparison.changes import Comparison
    from tracelens.comparison.gates import Outcome
    from tracelens.comparison.messages import Row

__all__ = ["render"]


def render(found: Comparison, outcomes: Sequence[Outcome], /) -> str:
    """Write a comparison as Markdown, with all metrics and findings."""
    lines = [f"**TraceLens: {messages.verdict(found)}**: {escaped(messages.headline(found))}", ""]
    baseline, new = messages.scope(found)
    lines += [f"- Baseline: {escaped(baseline)}", f"- New: {escaped(new)}"]
    lines += [f"- {escaped(sentence)}" for sentence in messages.cautions(found)]
    if outcomes:
        lines += ["", "| gate | outcome | why |", "|---|---|---|"]
        lines += [
            f"| `{one.gate.text}` | {'**failed**' if one.failed else 'passed'} | {escaped(one.reason)} |"
            for one in outcomes
        ]
    if found.metrics:
        lines += ["", _row(messages.HEADINGS), "|---|---:|---:|---:|---:|---:|---|"]
        lines += [_row(messages.row(metric)) for metric in found.metrics]
    if found.findings:
        lines += ["", "| finding | |", "|---|---|"]
        lines += [
            f"| {messages.STATES[one.state]} | {escaped(messages.finding(one, len(found.baselines)))} |"
            for one in found.findings
        ]
    return "\n".join(lines) + "\n"


def _row(row: Row) -> str:
    return f"| {' | '.join(map(escaped, row))} |"

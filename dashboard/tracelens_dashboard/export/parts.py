"""Pieces of the report as HTML; every name from a trace is escaped here."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final

from tracelens.reports.tables import sections
from tracelens.reports.words import clean, noted
from tracelens_dashboard import text
from tracelens_dashboard.components import finding_card

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import polars as pl

    from tracelens.analyses.result import Finding, Report

MOST_ROWS: Final = 64


def say(words: object) -> str:
    """Write anything as text that cannot act."""
    return escape(clean(str(words)))


def verdict(report: Report) -> str:
    """Say in a sentence or two how much is useful, and what is worst."""
    faults = [finding for finding in report.findings if finding.category == "fault"]
    useful = report.efficiency
    begin = f"{text.percent(useful.achieved)} of the ranks' time is useful work. " if useful else ""
    return begin + (faults[0].sentence if faults else "No fault was found.")


def findings(found: Sequence[Finding]) -> str:
    """List the findings, dearest first."""
    if not found:
        return "<section><h2>Findings</h2><p>Nothing stands out in this run.</p></section>"
    items = "".join(f"<li>{_finding(finding)}</li>" for finding in found)
    return f'<section><h2>Findings</h2><ul class="findings">{items}</ul></section>'


def _finding(finding: Finding) -> str:
    amount, colour = finding_card.amount(finding)
    return (
        f'<span class="points {colour}">{say(amount)}</span>'
        f"<div><b>{say(finding_card.title(finding))}</b>{say(finding.sentence)}</div>"
    )


def tables(known: Mapping[str, pl.DataFrame]) -> str:
    """Write the report's tables, as its other formats do."""
    found = [
        f"<section><h2>{say(part.title)}</h2>{table(part.headings, part.rows)}</section>"
        for part in sections(known)
    ]
    return "".join(found)


def notes(report: Report) -> str:
    """Say what limits the trace."""
    lines = [noted(note) for note in report.notes]
    lines += [
        f"{number:,} events were dropped while recording: {reason}."
        for reason, number in report.summary.dropped.items()
    ]
    items = "".join(f"<li>{say(line)}</li>" for line in lines)
    return f"<section><h2>What limits this trace</h2><ul>{items}</ul></section>" if lines else ""


def chart(
    number: int, title: str, height: int, summary: str, rows: Sequence[dict[str, Any]]
) -> str:
    """Write the place of a chart, the sentence that says what it shows, and its numbers."""
    return (
        f'<section class="chart"><h2>{say(title)}</h2><p>{say(summary)}</p>'
        f'<div id="chart-{number}" role="img" aria-label="{say(summary)}" style="height:{height}px">'
        f"</div>{_numbers(rows)}</section>"
    )


def _numbers(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return ""
    shown = table(list(rows[0]), [list(row.values()) for row in rows[:MOST_ROWS]])
    more = len(rows) - MOST_ROWS
    rest = f'<p class="quiet">and {text.count(more, "more row")}</p>' if more > 0 else ""
    return f"<details><summary>Table</summary>{shown}{rest}</details>"


def table(headings: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Write a table."""
    head = "".join(f"<th>{say(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{say(c)}</td>' for c in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'

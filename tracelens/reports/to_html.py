"""The report as HTML without charts or scripts: a page, and the same as a part of a notebook.

What a trace named is escaped, and the styles hold only within the part.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final

from tracelens.model.display import find_frames
from tracelens.model.finding_kinds import KINDS
from tracelens.model.fmt import percent
from tracelens.model.inert import clean
from tracelens.reports.messages import list_verdict_lines, name_cause, write_note, write_saving
from tracelens.reports.tables import make_sections

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import polars as pl

    from tracelens.model.findings import Finding
    from tracelens.model.result import Efficiency, Report, Result

_MOST_ROWS: Final = 10  # of a table of a single result
_STYLE: Final = """
.tracelens{color:#1f2328;background:#fff;font:14px/1.5 system-ui,sans-serif;max-width:1100px;padding:8px}
.tracelens h1{font-size:20px;margin:4px 0}.tracelens h2{font-size:15px;margin:14px 0 4px}
.tracelens dl{display:grid;grid-template-columns:max-content 1fr;gap:0 12px;margin:4px 0}
.tracelens dd{margin:0}.tracelens .lead{border-left:4px solid #5c636a;padding-left:12px}
.tracelens .lead-fault{border-color:#c4473a}.tracelens .lead-bottleneck{border-color:#8a6100}
.tracelens .lead-healthy{border-color:#1a7f4b}
.tracelens ul{margin:4px 0;padding-left:20px}.tracelens .fault{color:#c4473a}
.tracelens .opportunity{color:#8a6100}.tracelens table{border-collapse:collapse;font-size:13px}
.tracelens td,.tracelens th{border-bottom:1px solid #e3e6ea;padding:2px 14px 2px 0;text-align:left}
.tracelens .bar{background:#aa3377;display:inline-block;height:9px}.tracelens .useful{background:#4477aa}
.tracelens .scroll{overflow-x:auto}
"""
_PAGE: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title></head><body>
{body}
</body></html>
"""
_BAR_PX: Final = 300


def render(report: Report) -> str:
    """Write the report as a page."""
    title = f"{escape_html(report.verdict.headline)} \N{MIDDLE DOT} TraceLens"
    return _PAGE.format(title=title, body=write_fragment(report))


def write_fragment(report: Report) -> str:
    """Write the report as a part of a page."""
    sections = [verdict_section(report)]
    if report.findings:
        sections.append(f"<section><h2>Findings</h2>{_write_findings(report.findings)}</section>")
    sections += [_write_waterfall(report.efficiency)] if report.efficiency else []
    return _wrap([*sections, table_sections(report.tables), notes_section(report)])


def write_findings_fragment(findings: Sequence[Finding]) -> str:
    """Write findings as a part of a page."""
    return _wrap([_write_findings(findings) if findings else "<p>No findings.</p>"])


def write_result_fragment(result: Result) -> str:
    """Write the findings and the tables of one analysis; of each table the first rows."""
    sections = [_write_findings(result.findings) if result.findings else "<p>No findings.</p>"]
    for name, table in find_frames(result).items():
        if table.height:
            rows = [map(_write_cell, row) for row in table.head(_MOST_ROWS).iter_rows()]
            limit_note = f" ({_MOST_ROWS} of {table.height:,})" * (table.height > _MOST_ROWS)
            html_table = write_table(table.columns, rows)
            sections.append(f"<h2>{escape_html(name + limit_note)}</h2>{html_table}")
    return _wrap([f"<h1>{escape_html(type(result).__name__)}</h1>", *sections])


def escape_html(value: object) -> str:
    """Write anything as text that cannot act."""
    return escape(clean(str(value)))


def _wrap(sections: Iterable[str]) -> str:
    return f'<div class="tracelens"><style>{_STYLE}</style>{"".join(sections)}</div>'


def _write_cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _write_findings(findings: Iterable[Finding]) -> str:
    return f"<ul>{''.join(map(_write_finding, findings))}</ul>"


def _write_finding(finding: Finding) -> str:
    saving_text = write_saving(finding)
    title = f'<b class="{finding.category}">{escape_html(KINDS[finding.kind].title)}</b>'
    note = f" ({escape_html(saving_text)})" if saving_text else ""
    return f"<li>{title}{note}: {escape_html(finding.sentence)}</li>"


def _write_waterfall(efficiency: Efficiency) -> str:
    """Return the shares of the time as a table with bars: of useful computation, then of each loss."""
    useful_name = "useful computation" + ", at most" * efficiency.at_most
    rows = [(useful_name, efficiency.achieved, " useful")]
    rows += [
        (name_cause(bar.cause), bar.share, "")
        for bar in efficiency.waterfall
        if bar.share >= 0.0005
    ]
    body = "".join(
        f"<tr><td>{escape_html(label)}</td><td>{percent(share, digits=1)}</td><td>"
        f'<span class="bar{css_class}" style="width:{max(round(share * _BAR_PX), 1)}px"></span>'
        "</td></tr>"
        for label, share, css_class in rows
    )
    return f"<section><h2>Where the time went</h2><table>{body}</table></section>"


def verdict_section(report: Report) -> str:
    """Return the verdict as a heading, and below it why, what to do next, and what it is about."""
    lines = "".join(
        f"<dt>{name}</dt><dd>{escape_html(line)}</dd>" for name, line in list_verdict_lines(report)
    )
    head = f"<h1>{escape_html(report.verdict.headline)}</h1><dl>{lines}</dl>"
    return f'<div class="lead lead-{report.verdict.state}">{head}</div>'


def table_sections(tables: Mapping[str, pl.DataFrame]) -> str:
    """Write the report's tables, as its other formats do."""
    html_sections = [
        f"<section><h2>{escape_html(section.title)}</h2>"
        f"{write_table(section.headings, section.rows)}</section>"
        for section in make_sections(tables)
    ]
    return "".join(html_sections)


def notes_section(report: Report) -> str:
    """List what limits the trace."""
    lines = [write_note(note) for note in report.notes]
    lines += [
        f"{number:,} events dropped while recording: {reason}."
        for reason, number in report.summary.dropped.items()
    ]
    items = "".join(f"<li>{escape_html(line)}</li>" for line in lines)
    return f"<section><h2>Limitations of this trace</h2><ul>{items}</ul></section>" if lines else ""


def write_table(headings: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Write a table."""
    head = "".join(f"<th>{escape_html(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape_html(c)}</td>' for c in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'

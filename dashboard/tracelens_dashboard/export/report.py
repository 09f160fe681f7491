"""A run's report in one HTML file that works anywhere: no request, no server, light and dark.

All that it draws with is in it; its policy lets it load nothing and run no script but its own two.
Every name from a trace is escaped, here and in `tracelens.reports.to_html`.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final

from tracelens.errors import InvalidArgument
from tracelens.reports.to_html import (
    escape_html,
    notes_section,
    table_sections,
    verdict_section,
    write_table,
)
from tracelens_dashboard import chart_library, text
from tracelens_dashboard.components import finding_card
from tracelens_dashboard.components.table import NOT_MEASURED
from tracelens_dashboard.export.charts import select_charts
from tracelens_dashboard.pages.overview import WATERFALL
from tracelens_dashboard.runs import current
from tracelens_dashboard.theme import DARK, LIGHT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.model.findings import Finding
    from tracelens_dashboard.components.chart import ChartCard
    from tracelens_dashboard.figures.drawing import Drawing, Rows
    from tracelens_dashboard.runs.store import Store


MAX_REPORT_BYTES: Final = 8_000_000  # bytes: what mail and chats take
MARGIN_BYTES: Final = 50_000
MOST_TABLE_ROWS: Final = 64
SUFFIX: Final = ".report.html"
THEMES: Final = (LIGHT, DARK)

_FOLDER: Final = Path(__file__).parent


def write(store: Store, path: Path) -> None:
    """Write the report of a run.

    Raises:
        InvalidArgument: the file cannot be written.
    """
    try:
        path.write_text(render(store), encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"'{path}' cannot be written ({error}).") from error


def render(store: Store, max_bytes: int = MAX_REPORT_BYTES) -> str:
    """Return the report; charts that would make it larger than `max_bytes` are left out, and named."""
    library, page_script = chart_library.source(), _read_file("report.js")
    page_fields = {  # of report.html
        "findings": findings_section(store.report.findings),
        "tables": table_sections({**store.run.tables, **store.report.tables}),
        "notes": notes_section(store.report),
        "name": escape_html(store.name),
        "facts": escape_html(current.describe_size(store)),
        "verdict": verdict_section(store.report),
        "style": _read_file("report.css"),
        "policy": _policy(library, page_script),
        "library": library,
        "script": page_script,
    }
    room_bytes = max_bytes - MARGIN_BYTES - sum(len(part.encode()) for part in page_fields.values())
    chart_sections, figures, left_out = _draw_charts(store, room_bytes)
    note = f"<p>Left out to keep this file small: {escape_html(', '.join(left_out))}.</p>"
    return Template(_read_file("report.html")).substitute(
        page_fields,
        charts="".join(chart_sections),
        figures=f"[{','.join(figures)}]",
        missing=note if left_out else "",
    )


def _draw_charts(store: Store, room_bytes: int) -> tuple[list[str], list[str], list[str]]:
    """Return the charts that have room: sections, figures as JSON, and titles of omitted ones."""
    sections: list[str] = []
    figures: list[str] = []
    omitted_titles: list[str] = []
    for chart in select_charts(store):
        drawings = {theme.scheme: chart.card.draw(store, theme) for theme in THEMES}
        drawing = drawings[LIGHT.scheme]
        if not drawing.figure.data and chart.card is not WATERFALL:
            continue
        section = chart_section(len(sections), chart.card, chart.card.height_px_of(store), drawing)
        members = [f'"{name}":{drawn.figure.to_json()}' for name, drawn in drawings.items()]
        figure_json = "{" + ",".join(members).replace("<", "\\u003c") + "}"
        size_bytes = len(section.encode()) + len(figure_json)
        if size_bytes > room_bytes:
            omitted_titles.append(chart.card.title)
            continue
        room_bytes -= size_bytes
        sections.append(section)
        figures.append(figure_json)
    return sections, figures, omitted_titles


def _policy(*scripts: str) -> str:
    digests = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    known = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {known}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _read_file(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def findings_section(findings: Sequence[Finding]) -> str:
    """List the findings, the most costly first."""
    if not findings:
        return "<section><h2>Findings</h2><p>No findings.</p></section>"
    list_items = []
    for finding in findings:
        amount_text, colour_class = finding_card.amount(finding)
        title = escape_html(finding_card.title(finding))
        list_items.append(
            f'<li><span class="points {colour_class}">{escape_html(amount_text)}</span>'
            f"<div><b>{title}</b>{escape_html(finding.sentence)}</div></li>"
        )
    return f'<section><h2>Findings</h2><ul class="findings">{"".join(list_items)}</ul></section>'


def chart_section(number: int, card: ChartCard, height_px: int, drawing: Drawing) -> str:
    """Write the place of a chart, its sentence, and its numbers."""
    summary = escape_html(drawing.summary)
    return (
        f'<section class="chart"><h2>{escape_html(card.title)}</h2><p>{summary}</p>'
        f'<div id="chart-{number}" role="img" aria-label="{summary}" style="height:{height_px}px">'
        f"</div>{_fold_table(drawing.rows)}</section>"
    )


def _fold_table(rows: Rows) -> str:
    """Write a drawing's first rows as a table that is folded; empty without rows."""
    if not rows:
        return ""
    cells = [
        [NOT_MEASURED if value is None else value for value in row.values()]
        for row in rows[:MOST_TABLE_ROWS]
    ]
    note, more_count = "", len(rows) - MOST_TABLE_ROWS
    if more_count > 0:
        note = f'<p class="quiet">and {text.count(more_count, "more row")}</p>'
    return f"<details><summary>Table</summary>{write_table(list(rows[0]), cells)}{note}</details>"

"""A run's report in one HTML file that works anywhere: no request, no server, light and dark.

All that it draws with is in it; its policy lets it load nothing and run no script but its own two.
Every name from a trace is escaped, here and in `tracelens.reports.to_html`.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Final

from tracelens.errors import InvalidArgument
from tracelens.reports.to_html import (
    escaped,
    html_table,
    notes_section,
    table_sections,
    verdict_section,
)
from tracelens_dashboard import chart_library, text, theme
from tracelens_dashboard.components import finding_card
from tracelens_dashboard.components.table import NOT_MEASURED
from tracelens_dashboard.export.charts import chosen
from tracelens_dashboard.runs import current

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.model.findings import Finding
    from tracelens_dashboard.export.charts import Chart
    from tracelens_dashboard.runs.store import Store


LARGEST: Final = 8_000_000  # bytes: what mail and chats take
MARGIN: Final = 50_000
MOST_TABLE_ROWS: Final = 64
SUFFIX: Final = ".report.html"
SCHEMES: Final = (theme.LIGHT, theme.DARK)

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


def render(store: Store, max_bytes: int = LARGEST) -> str:
    """Return the report; charts that would make it larger than `max_bytes` are left out, and named."""
    library, script = chart_library.source(), _file("report.js")
    parts = {
        "findings": findings_section(store.report.findings),
        "tables": table_sections({**store.run.tables, **store.report.tables}),
        "notes": notes_section(store.report),
        "name": escaped(store.name),
        "facts": escaped(current.facts(store)),
        "verdict": verdict_section(store.report),
        "style": _file("report.css"),
        "policy": _policy(library, script),
        "library": library,
        "script": script,
    }
    room = max_bytes - MARGIN - sum(len(part.encode()) for part in parts.values())
    places, figures, missing = _charts(store, room)
    left_out = f"<p>Left out to keep this file small: {escaped(', '.join(missing))}.</p>"
    return Template(_file("report.html")).substitute(
        parts,
        charts="".join(places),
        figures=f"[{','.join(figures)}]",
        missing=left_out if missing else "",
    )


def _charts(store: Store, room: int) -> tuple[list[str], list[str], list[str]]:
    """Draw what there is room for: places, figures, and the titles of those that are left out."""
    places: list[str] = []
    figures: list[str] = []
    missing: list[str] = []
    for chart in chosen(store):
        place, figure = _drawn(store, chart, len(places))
        size = len(place.encode()) + len(figure)
        if size > room:
            missing.append(chart.title)
            continue
        room -= size
        places.append(place)
        figures.append(figure)
    return places, figures, missing


def _drawn(store: Store, chart: Chart, number: int) -> tuple[str, str]:
    """Draw a chart in both schemes: its place in the page, and its figures as inert JSON."""
    drawings = {scheme.name: chart.draw(store, scheme) for scheme in SCHEMES}
    first = drawings[SCHEMES[0].name]
    place = chart_section(number, chart.title, chart.height(store), first.summary, first.rows)
    figures = [f'"{name}":{drawing.figure.to_json()}' for name, drawing in drawings.items()]
    return place, "{" + ",".join(figures).replace("<", "\\u003c") + "}"


def _policy(*scripts: str) -> str:
    digests = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    known = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {known}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _file(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def findings_section(found: Sequence[Finding]) -> str:
    """List the findings, the most costly first."""
    if not found:
        return "<section><h2>Findings</h2><p>No findings.</p></section>"
    items = "".join(f"<li>{_finding(finding)}</li>" for finding in found)
    return f'<section><h2>Findings</h2><ul class="findings">{items}</ul></section>'


def _finding(finding: Finding) -> str:
    amount, colour = finding_card.amount(finding)
    return (
        f'<span class="points {colour}">{escaped(amount)}</span>'
        f"<div><b>{escaped(finding_card.title(finding))}</b>{escaped(finding.sentence)}</div>"
    )


def chart_section(
    number: int, title: str, height: int, summary: str, rows: Sequence[dict[str, Any]]
) -> str:
    """Write the place of a chart, its sentence, and its numbers."""
    return (
        f'<section class="chart"><h2>{escaped(title)}</h2><p>{escaped(summary)}</p>'
        f'<div id="chart-{number}" role="img" aria-label="{escaped(summary)}" style="height:{height}px">'
        f"</div>{_numbers(rows)}</section>"
    )


def _numbers(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return ""
    shown = html_table(list(rows[0]), [_read(row) for row in rows[:MOST_TABLE_ROWS]])
    more = len(rows) - MOST_TABLE_ROWS
    rest = f'<p class="quiet">and {text.count(more, "more row")}</p>' if more > 0 else ""
    return f"<details><summary>Table</summary>{shown}{rest}</details>"


def _read(row: dict[str, Any]) -> list[Any]:
    """Return a row's cells; those that were not measured are left open."""
    return [NOT_MEASURED if value is None else value for value in row.values()]

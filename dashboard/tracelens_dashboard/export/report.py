"""A run's report in one HTML file that works anywhere: no request, no server, light and dark.

All that it draws with is in it; its policy lets it load nothing and run no script but its own two.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final

from plotly.offline import get_plotlyjs

from tracelens.errors import InvalidArgument
from tracelens_dashboard import facts, theme
from tracelens_dashboard.export import parts
from tracelens_dashboard.export.charts import chosen

if TYPE_CHECKING:
    from tracelens_dashboard.export.charts import Chart
    from tracelens_dashboard.store import Store

LARGEST: Final = 8_000_000  # bytes: what mail and chats take
MARGIN: Final = 50_000
SUFFIX: Final = ".report.html"
SCHEMES: Final = (theme.LIGHT, theme.DARK)

_HERE: Final = Path(__file__).parent


def write(store: Store, path: Path) -> None:
    """Write the report of a run.

    Raises:
        InvalidArgument: the file cannot be written.
    """
    try:
        path.write_text(render(store), encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"'{path}' cannot be written ({error}).") from error


def render(store: Store) -> str:
    """Return the report; charts that would make it larger than 8 MB are left out, and named."""
    library, script = get_plotlyjs(), _file("report.js")
    words = {
        "findings": parts.findings(store.report.findings),
        "tables": parts.tables({**store.run.tables, **store.report.tables}),
        "notes": parts.notes(store.report),
        "name": parts.say(store.name),
        "facts": parts.say(facts.chip(store)),
        "verdict": parts.say(parts.verdict(store.report)),
        "style": _file("report.css"),
        "policy": _policy(library, script),
        "library": library,
        "script": script,
    }
    room = LARGEST - MARGIN - sum(len(text.encode()) for text in words.values())
    places, figures, missing = _charts(store, room)
    left_out = f"<p>Left out to keep this file small: {parts.say(', '.join(missing))}.</p>"
    return Template(_file("report.html")).substitute(
        words,
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
    place = parts.chart(number, chart.title, chart.height(store), first.summary, first.rows)
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
    return (_HERE / name).read_text(encoding="utf-8")

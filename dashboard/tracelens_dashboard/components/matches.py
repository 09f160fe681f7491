"""What a search found: names, how much time they take, and the way to their longest span."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dash import dcc, html

from tracelens.lod.search import MOST_NAMES, find
from tracelens_dashboard import links, text

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens.lod.search import Match
    from tracelens.lod.window import Window
    from tracelens_dashboard.store import Store

LONGEST_SEARCH: Final = 100
_COLUMNS: Final = ("span", "times", "in all", "longest", "")


def of_text(store: Store, wanted: object, seen: Window) -> Component | None:
    """List what is called so in a window; nothing where nothing was asked."""
    asked = wanted.strip()[:LONGEST_SEARCH] if isinstance(wanted, str) else ""
    if not asked:
        return None
    found = find(store.scene.lanes, asked, seen)
    if not found:
        return html.P(f"Nothing in view is called “{asked}”.", className="summary", role="status")
    rows = [html.Tr([html.Td(cell) for cell in _row(store, match)]) for match in found]
    more = f", the {MOST_NAMES} that take most time" if len(found) == MOST_NAMES else ""
    head = html.Thead(html.Tr([html.Th(name) for name in _COLUMNS]))
    caption = html.Caption(f"In view, called “{asked}”{more}")
    return html.Table([caption, head, html.Tbody(rows)], className="spans", role="status")


def _row(store: Store, match: Match) -> list[str | Component]:
    lanes = store.scene.lanes
    lane = lanes.lanes[match.lane]
    length = int(lanes.ends[match.longest] - lanes.starts[match.longest])
    ranks = () if lane.role == "ps" else (lane.rank,)
    where = f"PS {lane.rank}" if lane.role == "ps" else f"rank {lane.rank}"
    href = links.to_span(store, match.longest, ranks)
    return [
        match.name,
        f"{match.count:,}",
        text.duration(match.total_ns),
        f"{text.duration(length)} on {where}, step {lanes.steps[match.longest]}",
        dcc.Link("Show", href=href, className="way"),
    ]

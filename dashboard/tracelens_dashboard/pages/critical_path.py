"""What determines the job's length? The critical path across ranks, its composition, and slack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
import polars as pl
from dash import Input, dcc, html

from tracelens.lod.viewport import Window
from tracelens_dashboard.components import chart, heading
from tracelens_dashboard.figures import critical_path, slack
from tracelens_dashboard.ids import aria
from tracelens_dashboard.view import links

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme
    from tracelens_dashboard.view.state import ViewState

PATH: Final = "/critical-path"
TITLE: Final = "Critical path"

STRIP: Final = "path-strip"
SHARES: Final = "path-shares"
SEGMENTS: Final = "path-pieces"
SLACK: Final = "path-slack"
GROUP: Final = "path-group"
ROW_PX: Final = 24
WHAT_IT_IS: Final = (
    "The critical path is the chain of compute and communication across ranks that determines the "
    "job's length: where a rank waits, it continues on the rank waited for. Shortening anything else "
    "changes nothing."
)
NO_STEPS: Final = (
    "This trace has no steps, so ranks cannot be connected. Hooks of frameworks mark "
    "steps by themselves; in a loop of your own, write “with tl.step(i): …” around what is done for "
    "each batch."
)


def layout(store: Store, _view: ViewState) -> Component:
    """Return the page, or say why there is no path."""
    title = heading.page_title(TITLE)
    if store.table("critical_cells").is_empty():
        card = dmc.Card(html.P(NO_STEPS), className="card prose", id="no-path")
        return html.Div([title, card], className="page")
    rows = min(len(store.ranks), critical_path.MOST_ROWS + 1)
    half = {"base": 12, "lg": 6}
    cards = (
        (chart.card(STRIP, "Ranks on the path, per step", max(230, 130 + ROW_PX * rows)), 12),
        (chart.card(SHARES, "Composition", 400, _choice()), half),
        (chart.card(SEGMENTS, "Longest segments", 400), half),
        (chart.card(SLACK, "Slack", max(220, min(520, 120 + ROW_PX * rows))), 12),
    )
    grid = dmc.Grid([dmc.GridCol(card, span=span) for card, span in cards], gutter="sm")
    way = dcc.Link(
        "Show it on the timeline", links.along_path(links.to_ranks(store, ())), className="way"
    )
    explanation = html.P([WHAT_IT_IS, " ", way], className="summary prose")
    return html.Div([title, explanation, grid], className="page")


def register(app: Dash) -> None:
    """Draw the charts; a click leads to the spans on the path."""
    chart.bind(app, STRIP, _strip)
    chart.bind(app, SHARES, _shares, Input(GROUP, "value"))
    chart.bind(app, SEGMENTS, _segments)
    chart.bind(app, SLACK, _slack)
    chart.follow_clicks(app, STRIP, _to_cell)
    chart.follow_clicks(app, SHARES, _to_group)
    chart.follow_clicks(app, SEGMENTS, _to_segment)
    chart.follow_row_clicks(app, SEGMENTS, _to_row)
    chart.follow_clicks(app, SLACK, _to_rank)


def _choice() -> Component:
    data = [{"value": name, "label": f"by {name}"} for name in critical_path.GROUPS]
    return dmc.SegmentedControl(id=GROUP, data=data, value="rank", size="xs", **aria("group by"))


def _strip(store: Store, theme: Theme) -> Drawing:
    return critical_path.by_step(store.table("critical_cells"), theme)


def _shares(store: Store, theme: Theme, group: Any) -> Drawing:
    by = group if group in critical_path.GROUPS else critical_path.GROUPS[0]
    return critical_path.composition(store.table("critical_path"), store.hosts, by, theme)


def _segments(store: Store, theme: Theme) -> Drawing:
    return critical_path.segments(store.table("critical_longest"), theme)


def _slack(store: Store, theme: Theme) -> Drawing:
    return slack.draw(store.table("slack"), theme)


def _to_cell(store: Store, point: dict[str, Any]) -> str | None:
    rank, step, *_ = point.get("customdata") or (None, None)
    if rank not in store.ranks or not isinstance(step, int):
        return None
    return links.along_path(links.to_step(store, step, (int(rank),)))


def _to_group(store: Store, point: dict[str, Any]) -> str | None:
    """Lead to the longest segment of the path in a group and category, else to the group's ranks."""
    by, group, category = point.get("customdata") or ("", "", "")
    ranks = [rank for rank, host in store.hosts.items() if _named(by, group, rank, host)]
    chosen = (pl.col("category") == category) & pl.col("rank").is_in(ranks)
    found = store.table("critical_longest").filter(chosen)
    return _to_row(store, 0, found) or links.along_path(links.to_ranks(store, tuple(ranks)))


def _named(by: str, group: str, rank: int, host: str) -> bool:
    """Return whether a rank belongs to a group; every one does to that of a category."""
    return by == "category" or (f"rank {rank}" == group if by == "rank" else host == group)


def _to_segment(store: Store, point: dict[str, Any]) -> str | None:
    place = point.get("customdata")
    return _to_row(store, place) if isinstance(place, int) else None


def _to_row(store: Store, place: int, segments: pl.DataFrame | None = None) -> str | None:
    """Lead to a segment of the path, by its place in the table."""
    table = store.table("critical_longest") if segments is None else segments
    if not 0 <= place < table.height:
        return None
    row = table.row(place, named=True)
    window = Window(row["start_ns"], row["end_ns"])
    return links.along_path(links.to_moment(store, window, (row["rank"],)))


def _to_rank(store: Store, point: dict[str, Any]) -> str | None:
    rank, *_ = point.get("customdata") or (None,)
    if rank not in store.ranks:
        return None
    return links.along_path(links.to_ranks(store, (int(rank),)))

"""A marked area of the timeline: tables of the spans in it, by name and process, and one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import dash_mantine_components as dmc
from dash import Input, Output, State, html

from tracelens.lod.tracks import area
from tracelens.lod.viewport import Window
from tracelens.model.inert import clean
from tracelens_dashboard import text
from tracelens_dashboard.components import table
from tracelens_dashboard.components.timeline import names
from tracelens_dashboard.figures import quantity
from tracelens_dashboard.figures.timeline.frame import SECOND
from tracelens_dashboard.runs import current
from tracelens_dashboard.runs.store import subject_of
from tracelens_dashboard.view import viewport
from tracelens_dashboard.view.viewport import Rows as Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dash import Dash
    from dash.development.base_component import Component

    from tracelens.lod.viewport import Band, Plan
    from tracelens_dashboard.figures.drawing import Rows
    from tracelens_dashboard.figures.timeline.frame import Frame
    from tracelens_dashboard.runs.store import Store

TABLE: Final = "timeline-area-table"
MOST_ROWS: Final = 16  # of processes and streams: each is read from its file
MOST_NAMES: Final = 2000  # rows of the table
MOST_SPANS: Final = 500  # rows of the other: the longest
PLACE: Final = ("row", "at", "until")  # of a span; in no column
BY_NAME, ONE_BY_ONE = "By name", "Single spans"
ROW_PX: Final = table.GRID_OPTIONS["rowHeight"]
BESIDE_ROWS_PX: Final = 96  # the heading of the table, and what stands above it
TALLEST_PX: Final = 420
SHOWN: Final = (
    State(names.PINS, "value"),
    State(names.SORT, "value"),
    State(names.VIEW, "data"),
    State(names.WIDE, "data"),
    State(names.OPENED, "data"),
    State(names.ROW, "value"),
    State(names.TALL, "data"),
    current.RUN,
)

Marked = dict[int, "frozenset[int] | None"]  # rows of the scene; tracks of each, null = all of it


@dataclass(frozen=True)
class Area:
    """What is marked: a stretch of time, and rows; `left_out` counts those beyond `MOST_ROWS`."""

    window: Window
    rows: Mapping[int, frozenset[int] | None]
    left_out: int


class Tables(NamedTuple):
    """The rows of both tables; `more`: there are spans beyond the `MOST_SPANS` longest."""

    by_name: Rows
    single: Rows
    more: bool


def register(app: Dash) -> None:
    """Answer a marked area with its table."""

    @app.callback(
        Output(names.AREA, "children"),
        Input(names.GRAPH, "selectedData"),
        *SHOWN,
        prevent_initial_call=True,
    )
    def sum_up(selected: Any, *shown: Any) -> Component | None:
        store, frame = seen(*shown)
        marked = area_of(store, frame, selected)
        return card(store, marked) if marked else None


def seen(*shown: Any) -> tuple[Store, Frame]:
    """Return the run, and what of it is drawn, by the values of `SHOWN`."""
    pins, sort, view, wide, *rows, run = shown
    store = current.store(run)
    return store, viewport.frame(store, view, pins, sort, wide=wide, rows=Shape(*rows))


def marked_window(store: Store, selected: Any) -> Window | None:
    """Read the stretch of time from what the browser sends, which may be anything."""
    ends = _ends(selected, "x")
    if ends is None or not all(abs(end) < SECOND for end in ends):
        return None
    whole = store.whole
    low, high = (whole.start_ns + round(end * SECOND) for end in ends)
    marked = Window(max(low, whole.start_ns), min(high, whole.end_ns))
    return marked if marked.width_ns > 0 else None


def area_of(store: Store, frame: Frame, selected: Any) -> Area | None:
    """Return what is marked, from the top on; None without any time or rows."""
    window, ends = marked_window(store, selected), _ends(selected, "y")
    rows = _rows(store, frame, *ends) if ends else {}
    if window is None or not rows:
        return None
    return Area(window, dict(list(rows.items())[:MOST_ROWS]), max(0, len(rows) - MOST_ROWS))


def _ends(selected: Any, axis: str) -> tuple[float, float] | None:
    extent = selected.get("range") if isinstance(selected, dict) else None
    ends = extent.get(axis) if isinstance(extent, dict) else None
    if not isinstance(ends, list) or len(ends) != 2:
        return None
    if not all(isinstance(end, (int, float)) and abs(end) < float("inf") for end in ends):
        return None
    return min(ends), max(ends)


def _rows(store: Store, frame: Frame, top: float, bottom: float) -> Marked:
    """Return the rows between two heights; of opened processes whose own row is beside, the tracks."""
    found: Marked = {}
    for band in _between(frame.plan, top, bottom):
        found |= dict.fromkeys(band.lanes)
    for one in frame.opened:
        row = store.groups[one.key]
        bands = _between(one.plan, top, bottom)
        if bands and row not in found:
            found[row] = frozenset(lane for band in bands for lane in band.lanes)
    return found


def _between(plan: Plan, top: float, bottom: float) -> list[Band]:
    return [band for band in plan.bands if band.top < bottom and band.top + band.height > top]


def card(store: Store, marked: Area) -> Component:
    """Return the table with its heading."""
    rows, spans, more = tables(store, marked)
    tall = {"height": f"{min(TALLEST_PX, BESIDE_ROWS_PX + ROW_PX * len(rows))}px"}
    by_name = html.Div(table.table(TABLE, rows[:MOST_NAMES]), style=tall)
    shown = (
        dmc.Tabs(
            [
                dmc.TabsList([dmc.TabsTab(title, value=title) for title in (BY_NAME, ONE_BY_ONE)]),
                dmc.TabsPanel(by_name, value=BY_NAME),
                dmc.TabsPanel(_one_by_one(spans, more=more), value=ONE_BY_ONE),
            ],
            value=BY_NAME,
            keepMounted=False,
        )
        if rows
        else html.P("No spans.", className="summary")
    )
    title = dmc.Title("Spans in the marked area", order=2, className="card-title")
    return dmc.Card(
        [title, html.P(sentence(store, marked, len(rows)), className="summary"), shown],
        className="card",
        mt="sm",
    )


def _one_by_one(spans: Rows, *, more: bool) -> Component:
    of_all = f" (the {MOST_SPANS} longest)" if more else ""
    words = f"A click on a span's name leads to it{of_all}; begin: time since the start."
    tall = {"height": f"{min(TALLEST_PX, BESIDE_ROWS_PX + ROW_PX * len(spans))}px"}
    return html.Div(
        [
            html.P(words, className="summary"),
            html.Div(table.table(names.SPANS, spans, beside=PLACE), style=tall),
        ]
    )


def sentence(store: Store, marked: Area, rows: int) -> str:
    """Name the stretch of time, the meaning of the columns, and rows that were left out."""
    begin = text.duration(marked.window.start_ns - store.whole.start_ns)
    parts = [
        f"{text.duration(marked.window.width_ns)} from {begin} on",
        "total and share: time within; mean and p95: whole spans",
    ]
    if marked.left_out:
        parts.append(f"of {marked.left_out + MOST_ROWS:,} marked rows the first {MOST_ROWS}")
    if rows > MOST_NAMES:
        parts.append(f"of {rows:,} names those with the most time")
    return "; ".join(parts) + "."


def tables(store: Store, marked: Area) -> Tables:
    """Return a row for each process or stream and name, the most time first, and the longest spans.

    Each process is read once for both.
    """
    by_name: Rows = []
    single: Rows = []
    for row, tracks in marked.rows.items():
        owner = subject_of(store.scene.lanes.lanes[row])
        spans = store.spans_in_rows(row, tracks)
        by_name += [_of_name(owner, one) for one in area.sums(spans, marked.window).to_dicts()]
        longest = area.longest(spans, marked.window, MOST_SPANS + 1)
        single += [_of_span(store, row, owner, one) for one in longest.to_dicts()]
    by_name.sort(key=lambda one: -one["total"])
    single.sort(key=lambda one: one["at"] - one["until"])
    return Tables(by_name, single[:MOST_SPANS], more=len(single) > MOST_SPANS)


def _of_name(owner: str, one: dict[str, Any]) -> dict[str, Any]:
    return {
        "process": owner,
        "span": clean(one["name"]),
        "kind": one["kind"],
        "count": one["count"],
        "total": quantity.time(one["total_ns"]),
        "share": quantity.share(one["share"]),
        "mean": quantity.time(one["mean_ns"]),
        "p95": quantity.time(one["p95_ns"]),
    }


def _of_span(store: Store, row: int, owner: str, one: dict[str, Any]) -> dict[str, Any]:
    """Return a span with its place; one that is still open has no length."""
    begin = one["start_ns"] - store.whole.start_ns
    return {
        "span": clean(one["name"]),
        "process": owner,
        "kind": one["kind"],
        "begin": quantity.time(begin),
        "length": None if one["open"] else quantity.time(one["length_ns"]),
        "step": one["step"],
        "bytes": quantity.size(one["bytes"]),
        "row": row,
        "at": begin,
        "until": begin + one["length_ns"],
    }

"""A marked area of the timeline: what its time was spent on, and tables of the spans in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import dash_mantine_components as dmc
from dash import Input, Output, html

from tracelens.lod import search
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
from tracelens_dashboard.theme import name_of
from tracelens_dashboard.view import viewport
from tracelens_dashboard.view.viewport import Controls

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
POSITION_COLUMNS: Final = ("row", "at", "until")  # of a span; in no column
BY_NAME, ONE_BY_ONE = "By name", "Single spans"
ROW_PX: Final = table.GRID_OPTIONS["rowHeight"]
BESIDE_ROWS_PX: Final = 96  # the heading of the table, and what stands above it
TALLEST_PX: Final = 420
MOST_CATEGORIES: Final = 6  # of the time in it

TracksByRow = dict[int, "frozenset[int] | None"]  # by row of the scene; null = all of it


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
    """Answer a marked area with its table, and with what its time was spent on."""

    @app.callback(
        Output(names.AREA, "children"),
        Input(names.GRAPH, "selectedData"),
        *names.control_arguments(),
        current.RUN,
        prevent_initial_call=True,
    )
    def sum_up(selected: Any, *values: Any) -> Component | None:
        *controls, run = values
        store = current.store(run)
        frame = viewport.frame(store, Controls(*controls))
        marked = area_of(store, frame, selected)
        return card(store, marked) if marked else None

    @app.callback(
        Output(names.MEASURED, "children"),
        Input(names.GRAPH, "selectedData"),
        current.RUN,
        prevent_initial_call=True,
    )
    def measure(selected: Any, run: Any) -> str:
        return describe_time(current.store(run), selected)


def describe_time(store: Store, selected: Any) -> str:
    """Describe how long the selected time range is, and what all ranks did in it; empty without one."""
    window = marked_window(store, selected)
    if window is None:
        return ""
    spent_ns = search.time_by_category(store.scene.lanes, window)
    total_ns = max(sum(spent_ns.values()), 1)
    shares = ", ".join(
        f"{name_of(label)} {text.percent(ns / total_ns)}"
        for label, ns in list(spent_ns.items())[:MOST_CATEGORIES]
    )
    length, begin = text.duration(window.width_ns), _since_start(store, window)
    return f"Selected: {length}, starting at {begin}. All ranks: {shares or 'nothing recorded'}."


def _since_start(store: Store, window: Window) -> str:
    return text.duration(window.start_ns - store.whole.start_ns)


def marked_window(store: Store, selected: Any) -> Window | None:
    """Read the stretch of time from what the browser sends, which may be anything."""
    ends_s = _read_range(selected, "x")
    if ends_s is None or not all(abs(end_s) < SECOND for end_s in ends_s):
        return None
    whole = store.whole
    low, high = (whole.start_ns + round(end_s * SECOND) for end_s in ends_s)
    window = Window(max(low, whole.start_ns), min(high, whole.end_ns))
    return window if window.width_ns > 0 else None


def area_of(store: Store, frame: Frame, selected: Any) -> Area | None:
    """Describe the marked area, from the top on; None without any time or rows."""
    window, heights = marked_window(store, selected), _read_range(selected, "y")
    rows = _rows_between(store, frame, *heights) if heights else {}
    if window is None or not rows:
        return None
    return Area(window, dict(list(rows.items())[:MOST_ROWS]), max(0, len(rows) - MOST_ROWS))


def _read_range(selected: Any, axis: str) -> tuple[float, float] | None:
    extent = selected.get("range") if isinstance(selected, dict) else None
    ends = extent.get(axis) if isinstance(extent, dict) else None
    if not isinstance(ends, list) or len(ends) != 2:
        return None
    if not all(isinstance(end, (int, float)) and abs(end) < float("inf") for end in ends):
        return None
    return min(ends), max(ends)


def _rows_between(store: Store, frame: Frame, top: float, bottom: float) -> TracksByRow:
    """Return the rows between two heights; of an opened process whose own row is not, the tracks."""
    rows: TracksByRow = {}
    for band in _bands_between(frame.plan, top, bottom):
        rows |= dict.fromkeys(band.lanes)
    for process in frame.opened:
        row = store.groups[process.key]
        bands = _bands_between(process.plan, top, bottom)
        if bands and row not in rows:
            rows[row] = frozenset(lane for band in bands for lane in band.lanes)
    return rows


def _bands_between(plan: Plan, top: float, bottom: float) -> list[Band]:
    return [band for band in plan.bands if band.top < bottom and band.top + band.height > top]


def card(store: Store, marked: Area) -> Component:
    """Return the table with its heading."""
    by_name, spans, has_more_spans = tables(store, marked)
    limit = f" (the {MOST_SPANS} longest)" if has_more_spans else ""
    hint = f"A click on a span's name leads to it{limit}; begin: time since the start."
    panels = {
        BY_NAME: html.Div(table.table(TABLE, by_name[:MOST_NAMES]), style=_fit_rows(len(by_name))),
        ONE_BY_ONE: html.Div(
            [
                html.P(hint, className="summary"),
                html.Div(
                    table.table(names.SPANS, spans, hidden=POSITION_COLUMNS),
                    style=_fit_rows(len(spans)),
                ),
            ]
        ),
    }
    tabs = [dmc.TabsTab(title, value=title) for title in panels]
    parts = [dmc.TabsPanel(panel, value=title) for title, panel in panels.items()]
    tables_in_tabs = dmc.Tabs([dmc.TabsList(tabs), *parts], value=BY_NAME, keepMounted=False)
    title = dmc.Title("Spans in the marked area", order=2, className="card-title")
    summary = html.P(sentence(store, marked, len(by_name)), className="summary")
    content = tables_in_tabs if by_name else html.P("No spans.", className="summary")
    return dmc.Card([title, summary, content], className="card", mt="sm")


def _fit_rows(count: int) -> dict[str, str]:
    return {"height": f"{min(TALLEST_PX, BESIDE_ROWS_PX + ROW_PX * count)}px"}


def sentence(store: Store, marked: Area, rows: int) -> str:
    """Name the stretch of time, the meaning of the columns, and rows that were left out."""
    begin = _since_start(store, marked.window)
    clauses = [
        f"{text.duration(marked.window.width_ns)} from {begin} on",
        "total and share: time within; mean and p95: whole spans",
    ]
    if marked.left_out:
        clauses.append(f"of {marked.left_out + MOST_ROWS:,} marked rows the first {MOST_ROWS}")
    if rows > MOST_NAMES:
        clauses.append(f"of {rows:,} names those with the most time")
    return "; ".join(clauses) + "."


def tables(store: Store, marked: Area) -> Tables:
    """Return a row for each process or stream and name, the most time first, and the longest spans.

    Each process is read once for both.
    """
    by_name: Rows = []
    single: Rows = []
    for row, tracks in marked.rows.items():
        owner = subject_of(store.scene.lanes.lanes[row])
        spans = store.spans_in_rows(row, tracks)
        sums = area.sums(spans, marked.window)
        by_name += [_sum_row(owner, totals) for totals in sums.iter_rows(named=True)]
        longest = area.longest(spans, marked.window, MOST_SPANS + 1)
        single += [_span_row(store, row, owner, span) for span in longest.iter_rows(named=True)]
    by_name.sort(key=lambda totals: -totals["total"])
    single.sort(key=lambda span: span["at"] - span["until"])
    return Tables(by_name, single[:MOST_SPANS], more=len(single) > MOST_SPANS)


def _sum_row(owner: str, totals: dict[str, Any]) -> dict[str, Any]:
    return {
        "process": owner,
        "span": clean(totals["name"]),
        "kind": totals["kind"],
        "count": totals["count"],
        "total": quantity.time(totals["total_ns"]),
        "share": quantity.share(totals["share"]),
        "mean": quantity.time(totals["mean_ns"]),
        "p95": quantity.time(totals["p95_ns"]),
    }


def _span_row(store: Store, row: int, owner: str, span: dict[str, Any]) -> dict[str, Any]:
    """Return a span with its position; one that is still open has no length."""
    begin_ns = span["start_ns"] - store.whole.start_ns
    return {
        "span": clean(span["name"]),
        "process": owner,
        "kind": span["kind"],
        "begin": quantity.time(begin_ns),
        "length": None if span["open"] else quantity.time(span["length_ns"]),
        "step": span["step"],
        "bytes": quantity.size(span["bytes"]),
        "row": row,
        "at": begin_ns,
        "until": begin_ns + span["length_ns"],
    }

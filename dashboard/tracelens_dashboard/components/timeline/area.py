"""A marked area of the timeline: what its time was spent on, and tables of the spans in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import dash_mantine_components as dmc
from dash import Dash, Input, Output, html

from tracelens.lod import search
from tracelens.lod.tracks import area as span_sums
from tracelens.lod.viewport import Band, Plan, Window
from tracelens.model.inert import clean
from tracelens_dashboard import text
from tracelens_dashboard.components import table
from tracelens_dashboard.components.timeline import names
from tracelens_dashboard.figures import quantity
from tracelens_dashboard.figures.timeline.frame import NS_PER_SECOND, Frame
from tracelens_dashboard.runs import current
from tracelens_dashboard.runs.store import Store, subject_of
from tracelens_dashboard.theme import name_of
from tracelens_dashboard.view import viewport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Rows

TABLE: Final = "timeline-area-table"
MOST_ROWS: Final = 16  # of processes and streams: each is read from its file
MAX_LISTED_NAMES: Final = 2000  # rows of the table
MAX_LISTED_SPANS: Final = 500  # rows of the other: the longest
POSITION_COLUMNS: Final = ("row", "at", "until")  # of a span; in no column
BY_NAME, ONE_BY_ONE = "By name", "Single spans"
ROW_PX: Final = table.GRID_OPTIONS["rowHeight"]
BESIDE_ROWS_PX: Final = 96  # the heading of the table, and what stands above it
TALLEST_PX: Final = 420
MOST_CATEGORIES: Final = 6  # of the time in it

TracksByRow = dict[int, "frozenset[int] | None"]  # by row of the scene; None: all of them


@dataclass(frozen=True)
class Area:
    """What is marked: an absolute window, and rows of the scene, at most `MOST_ROWS`.

    Of a row, some tracks of its process are marked, or all (None).
    """

    marked_window: Window
    marked_tracks_by_row: Mapping[int, frozenset[int] | None]
    left_out_row_count: int


class Tables(NamedTuple):
    """The rows of both tables; `has_more_spans`: there are more than the `MAX_LISTED_SPANS` longest."""

    sums_by_name: Rows
    single_spans: Rows
    has_more_spans: bool


def register(app: Dash) -> None:
    """Answer a marked area with its table, and with what its time was spent on."""

    @app.callback(
        Output(names.AREA, "children"),
        Input(names.GRAPH, "selectedData"),
        *names.control_arguments(),
        prevent_initial_call=True,
    )
    def sum_up(selected_data: Any, *values: Any) -> Component | None:
        """Return the card with sums over the marked area; `values` are those of the controls."""
        store, controls = names.read_arguments(values)
        marked_area = area_of(store, viewport.frame(store, controls), selected_data)
        return card(store, marked_area) if marked_area else None

    @app.callback(
        Output(names.MEASURED, "children"),
        Input(names.GRAPH, "selectedData"),
        current.RUN,
        prevent_initial_call=True,
    )
    def measure_time(selected_data: Any, run_key: Any) -> str:
        """Return the length of the marked stretch of time, as a text."""
        return describe_time(current.store_of_run(run_key), selected_data)


def describe_time(store: Store, selected_data: Any) -> str:
    """Return the length of the marked time range, and what all ranks did in it."""
    window = marked_window(store, selected_data)
    if window is None:
        return ""
    time_by_category = search.sum_by_category(store.scene.span_lanes, window)  # ns, the most first
    total_ns = max(sum(time_by_category.values()), 1)
    share_texts = ", ".join(
        f"{name_of(label)} {text.percent(ns / total_ns)}"
        for label, ns in list(time_by_category.items())[:MOST_CATEGORIES]
    )
    length_text, begin_text = text.duration(window.width_ns), _since_start(store, window)
    spent_text = share_texts or "nothing recorded"
    return f"Selected: {length_text}, starting at {begin_text}. All ranks: {spent_text}."


def _since_start(store: Store, window: Window) -> str:
    return text.duration(window.start_ns - store.run_window.start_ns)


def marked_window(store: Store, selected_data: Any) -> Window | None:
    """Read the marked stretch of time, absolute in ns, from what the browser sends."""
    ends_s = _read_range(selected_data, "x")
    if ends_s is None or not all(abs(end_s) < NS_PER_SECOND for end_s in ends_s):
        return None
    run_window = store.run_window
    begin_ns, end_ns = (run_window.start_ns + round(end_s * NS_PER_SECOND) for end_s in ends_s)
    window = Window(max(begin_ns, run_window.start_ns), min(end_ns, run_window.end_ns))
    return window if window.width_ns > 0 else None


def area_of(store: Store, frame: Frame, selected_data: Any) -> Area | None:
    """Return the marked area, its rows from the top on; None without any time or rows.

    Args:
        store: The run.
        frame: The timeline as it is drawn.
        selected_data: Plotly's `selectedData` of the timeline.
    """
    window, top_and_bottom_px = marked_window(store, selected_data), _read_range(selected_data, "y")
    tracks_by_row = _rows_between(store, frame, *top_and_bottom_px) if top_and_bottom_px else {}
    if window is None or not tracks_by_row:
        return None
    first_rows = dict(list(tracks_by_row.items())[:MOST_ROWS])
    return Area(window, first_rows, len(tracks_by_row) - len(first_rows))


def _read_range(selected_data: Any, axis: str) -> tuple[float, float] | None:
    """Read the ends of the marked area on an axis, ``x`` (s) or ``y`` (px); None without any."""
    ranges_by_axis = selected_data.get("range") if isinstance(selected_data, dict) else None
    ends = ranges_by_axis.get(axis) if isinstance(ranges_by_axis, dict) else None
    if not isinstance(ends, list) or len(ends) != 2:
        return None
    if not all(isinstance(end, (int, float)) and abs(end) < float("inf") for end in ends):
        return None
    return min(ends), max(ends)


def _rows_between(store: Store, frame: Frame, top_px: float, bottom_px: float) -> TracksByRow:
    """Return, by row between two heights (px), the marked tracks of its process; None for all."""
    # All are marked if the process's own row is; bands are the strips of pixels of rows or tracks.
    tracks_by_row: TracksByRow = {}
    for band in _bands_between(frame.row_plan, top_px, bottom_px):
        tracks_by_row |= dict.fromkeys(band.lane_indices)
    for process in frame.opened_processes:
        row = store.scene_row_by_key[process.process_key]
        bands = _bands_between(process.row_plan, top_px, bottom_px)
        if bands and row not in tracks_by_row:
            tracks_by_row[row] = frozenset(lane for band in bands for lane in band.lane_indices)
    return tracks_by_row


def _bands_between(plan: Plan, top: float, bottom: float) -> list[Band]:
    return [
        band for band in plan.bands if band.top_px < bottom and band.top_px + band.height_px > top
    ]


def card(store: Store, marked_area: Area) -> Component:
    """Return the card of a marked area: a sentence, and the tables by name and of single spans."""
    sum_rows, span_rows, is_cut = tables(store, marked_area)
    limit_text = f" (the {MAX_LISTED_SPANS} longest)" if is_cut else ""
    hint = f"A click on a span's name leads to it{limit_text}; begin: time since the start."
    panel_by_title = {
        BY_NAME: html.Div(
            table.table(TABLE, sum_rows[:MAX_LISTED_NAMES]), style=_fit_rows(len(sum_rows))
        ),
        ONE_BY_ONE: html.Div(
            [
                html.P(hint, className="summary"),
                html.Div(
                    table.table(names.SPANS, span_rows, hidden_columns=POSITION_COLUMNS),
                    style=_fit_rows(len(span_rows)),
                ),
            ]
        ),
    }
    tabs = [dmc.TabsTab(title, value=title) for title in panel_by_title]
    tab_panels = [dmc.TabsPanel(panel, value=title) for title, panel in panel_by_title.items()]
    tables_in_tabs = dmc.Tabs([dmc.TabsList(tabs), *tab_panels], value=BY_NAME, keepMounted=False)
    title = dmc.Title("Spans in the marked area", order=2, className="card-title")
    summary_line = html.P(describe_area(store, marked_area, len(sum_rows)), className="summary")
    content = tables_in_tabs if sum_rows else html.P("No spans.", className="summary")
    return dmc.Card([title, summary_line, content], className="card", mt="sm")


def _fit_rows(count: int) -> dict[str, str]:
    return {"height": f"{min(TALLEST_PX, BESIDE_ROWS_PX + ROW_PX * count)}px"}


def describe_area(store: Store, marked_area: Area, row_count: int) -> str:
    """Return the marked stretch of time, the meaning of the columns, and what was left out."""
    begin_text = _since_start(store, marked_area.marked_window)
    clauses = [
        f"{text.duration(marked_area.marked_window.width_ns)} from {begin_text} on",
        "total and share: time within; mean and p95: whole spans",
    ]
    if marked_area.left_out_row_count:
        clauses.append(
            f"of {marked_area.left_out_row_count + MOST_ROWS:,} marked rows the first {MOST_ROWS}"
        )
    if row_count > MAX_LISTED_NAMES:
        clauses.append(f"of {row_count:,} names those with the most time")
    return "; ".join(clauses) + "."


def tables(store: Store, marked_area: Area) -> Tables:
    """Return the sums by process and name, the most time first, and the longest spans."""
    # `at` and `until` of a span are its begin and end in ns since the run's start.
    sum_rows: Rows = []
    span_rows: Rows = []
    for row, tracks in marked_area.marked_tracks_by_row.items():
        owner = subject_of(store.scene.span_lanes.owners[row])
        spans = store.spans_of_scene_row(row, tracks)
        sums_by_name = span_sums.sum_by_name(spans, marked_area.marked_window)
        sum_rows += [_sum_row(owner, sum_row) for sum_row in sums_by_name.iter_rows(named=True)]
        longest = span_sums.list_longest(spans, marked_area.marked_window, MAX_LISTED_SPANS + 1)
        span_rows += [_span_row(store, row, owner, span) for span in longest.iter_rows(named=True)]
    sum_rows.sort(key=lambda totals: -totals["total"])
    span_rows.sort(key=lambda span: span["at"] - span["until"])
    return Tables(
        sum_rows, span_rows[:MAX_LISTED_SPANS], has_more_spans=len(span_rows) > MAX_LISTED_SPANS
    )


def _sum_row(owner: str, totals: dict[str, Any]) -> dict[str, Any]:
    """Return the spans of one name of a process as a row of the first table."""
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


def _span_row(store: Store, scene_row: int, owner: str, span: dict[str, Any]) -> dict[str, Any]:
    """Return a span as a row; times are since the run's start, an open one has no length."""
    begin_ns = span["start_ns"] - store.run_window.start_ns
    return {
        "span": clean(span["name"]),
        "process": owner,
        "kind": span["kind"],
        "begin": quantity.time(begin_ns),
        "length": None if span["open"] else quantity.time(span["length_ns"]),
        "step": span["step"],
        "bytes": quantity.size(span["bytes"]),
        "row": scene_row,
        "at": begin_ns,
        "until": begin_ns + span["length_ns"],
    }

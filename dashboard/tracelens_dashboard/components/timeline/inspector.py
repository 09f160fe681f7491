"""The panel next to the timeline: the selected span, its step, and what was recorded around it.

What it is connected with, the collective's members and the critical path, is in `neighbours`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
import numpy as np
from dash import Input, Output, dcc, html
from dash.exceptions import PreventUpdate

from tracelens.lod.lanes import label_of
from tracelens.model.inert import clean
from tracelens.schema.vocabulary import FACTS
from tracelens_dashboard import text
from tracelens_dashboard import theme as themes
from tracelens_dashboard.components.timeline import names, neighbours
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current
from tracelens_dashboard.runs.store import subject_of
from tracelens_dashboard.theme import name_of
from tracelens_dashboard.view import links, viewport
from tracelens_dashboard.view.viewport import Controls

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens.lod.lanes import Lane, Lanes
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState
    from tracelens_dashboard.view.viewport import Position

MOST_SPANS: Final = 12  # that lie around a moment
_TIME_IN_STEP: Final = "in this step"

Fact = tuple[str, str]
Selection = dict[str, int | None]  # what the browser keeps of what is selected


def selection_of(store: Store, position: Position) -> Selection:
    """Pack a selected position for the browser."""
    at_ns = position.at_ns - store.whole.start_ns
    return {"lane": position.lane, "at": at_ns, "track": position.track}


def selection_in(view: ViewState) -> Selection | None:
    """Select what a link names, as a click would."""
    keys = ("lane", "at", "track")
    return dict(zip(keys, view.selected, strict=False)) if view.selected else None


def register(app: Dash) -> None:
    """Describe the span that is clicked."""

    @app.callback(
        Output(names.DETAILS, "children"),
        Output(names.SELECTED, "data"),
        Input(names.GRAPH, "clickData"),
        *names.control_arguments(),
        current.RUN,
        prevent_initial_call=True,
    )
    def describe(click: Any, *values: Any) -> tuple[Component, Selection]:
        *controls, run = values
        store = current.store(run)
        frame = viewport.frame(store, Controls(*controls))
        position = viewport.find_position(store, frame, click)
        if position is None:
            raise PreventUpdate
        return span_details(store, position), selection_of(store, position)


def layout(store: Store, selection: Selection | None) -> Component:
    """Return the panel; where nothing is selected a page shows none (assets/app.css)."""
    position = viewport.read_position(store, selection)
    details = span_details(store, position) if position else None
    label = aria("details of the selected span")
    return html.Aside(details, id=names.DETAILS, className="inspector", **label)


def span_details(store: Store, position: Position) -> Component:
    """Describe what a row, or a track of an opened process, did at a moment."""
    lane = store.scene.lanes.lanes[position.lane]
    if position.track is not None:
        event = store.event_at(position.lane, position.track, position.at_ns)
        tracks = store.opened(position.lane).scene.lanes
        if event is None:
            return _describe_nothing(f"{subject_of(lane)}, {_track_name(tracks, position.track)}")
        return _describe_event(store, position, tracks, event)
    lanes = store.scene.lanes
    items = lanes.items_between(position.lane, position.at_ns, position.at_ns + 1)
    if items.start == items.stop:
        return _describe_nothing(subject_of(lane))
    return _describe_piece(store, position, items.start)


def _describe_nothing(subject: str) -> Component:
    sentence = html.P(f"Nothing recorded on {subject} at this time.", className="summary")
    return html.Div([html.Div([sentence, _close_button()], className="panel-heading")])


def _track_name(tracks: Lanes, track: int) -> str:
    return clean(tracks.lanes[track].part) if track < len(tracks) else "no such track"


def _describe_piece(store: Store, position: Position, item: int) -> Component:
    """Describe a piece of a summary row."""
    lanes = store.scene.lanes
    lane = lanes.lanes[position.lane]
    category, step = label_of(int(lanes.codes[item])), int(lanes.steps[item])
    start, end = int(lanes.starts[item]), int(lanes.ends[item])
    facts = [
        ("span", clean(lanes.words[lanes.names[item]]) or "unnamed"),
        ("kind", name_of(category)),
        *_times(store, start, end),
        ("step", str(step) if step >= 0 else ""),
    ]
    if lane.role == "worker":
        facts.append((_TIME_IN_STEP, _compare_with_peers(store, lane.rank, step, category)))
    heading = f"{name_of(category)} on {subject_of(lane)} in step {step}"
    parts = [_heading(heading, category), _facts(facts)]
    return _panel(store, position, (start, end), parts, step=step)


def _describe_event(
    store: Store, position: Position, tracks: Lanes, event: dict[str, Any]
) -> Component:
    """Describe a recorded span."""
    assert position.track is not None
    lane, track = store.scene.lanes.lanes[position.lane], tracks.lanes[position.track].part
    item = tracks.items_between(position.track, position.at_ns, position.at_ns + 1).start
    begin_ns, end_ns, step = event["start_ns"], event["end_ns"], int(event["step"])
    facts = [
        ("span", clean(event["name"]) or "unnamed"),
        ("kind", event["kind"]),
        *_times(store, begin_ns, end_ns),
        ("track", clean(track)),
        ("step", str(step) if step >= 0 else ""),
        *((name.replace("_", " "), _value(name, event[name])) for name in _recorded_facts(event)),
    ]
    step_text = f" in step {step}" if step >= 0 else ""
    name = clean(event["name"]) or event["kind"]
    heading = f"{name} on {subject_of(lane)}, {clean(track)}{step_text}"
    extent = begin_ns, store.whole.end_ns if end_ns is None else end_ns
    parts = [_heading(heading, label_of(int(tracks.codes[item]))), _facts(facts)]
    return _panel(store, position, extent, parts, step=step)


def _panel(
    store: Store, position: Position, extent: tuple[int, int], parts: list[Component], *, step: int
) -> Component:
    lane = store.scene.lanes.lanes[position.lane]
    sections = (
        _step_section(store, lane, step),
        neighbours.members_section(store, position),
        neighbours.path_section(store, position, extent),
        _spans_section(_spans_at(store, lane, position.at_ns)),
    )
    return html.Div([*parts, *filter(None, sections)])


def _heading(title: str, category: str) -> Component:
    """Return the title with the colour of the span in either scheme."""
    light, dark = themes.LIGHT.categories.get(category), themes.DARK.categories.get(category)
    swatch = html.Span(
        className="swatch", style={"background": f"light-dark({light}, {dark})"} if light else {}
    )
    heading = dmc.Title(title, order=2, className="card-title", id="details-title")
    return html.Div([swatch, heading, _close_button()], className="panel-heading")


def _close_button() -> Component:
    """Return the button that selects nothing; assets/tracks.js makes it work."""
    return html.Button("\N{MULTIPLICATION SIGN}", className="panel-close", **aria("close details"))


def _times(store: Store, start_ns: int, end_ns: int | None) -> list[Fact]:
    lasted = "still open" if end_ns is None else text.duration(end_ns - start_ns)
    began = f"{text.duration(start_ns - store.whole.start_ns)} after the start"
    return [("duration", lasted), ("began", began)]


def _facts(facts: Sequence[Fact]) -> Component:
    """List all that is known, a line each."""
    terms = [
        term
        for name, value in facts
        if value
        for term in (html.Dt(name, className="fact-name"), html.Dd(value, className="fact"))
    ]
    return html.Dl(terms, className="facts")


def _compare_with_peers(store: Store, rank: int, step: int, category: str) -> str:
    """Compare the rank's time in a category with that of its peers in the same step."""
    times_ns = store.times.in_step(category, step)
    rank_ns = times_ns.pop(rank, 0)
    if not times_ns:
        return f"{text.duration(rank_ns)} of {name_of(category)}"
    peers_ns = float(np.median([times_ns[peer] for peer in store.peers_of(rank, times_ns)]))
    return f"{text.duration(rank_ns)} (peers' median: {text.duration(peers_ns)})"


def _step_section(store: Store, lane: Lane, step: int) -> Component | None:
    """Compare the step's length with the median rank in it and the median step of the run."""
    lengths = store.times.lengths_in(step)
    if not lengths:
        return None
    rows = [
        ("median rank", float(np.median(list(lengths.values())))),
        ("median step", store.times.usual_ns),
    ]
    if lane.role != "ps" and lane.rank in lengths:
        rows.insert(0, (f"rank {lane.rank}", float(lengths[lane.rank])))
    longest = max([*(ns for _, ns in rows), 1.0])
    bars = [part for name, ns in rows for part in _bar(name, ns, longest)]
    ranks = () if lane.role == "ps" else (lane.rank,)
    href = links.to_step(store, step, ranks)
    link = dcc.Link(f"Zoom to step {step}", href=href, className="way")
    title = html.H3(f"Step {step}", className="panel-title")
    line = html.Div([title, link], className="panel-line")
    return html.Section([line, html.Div(bars, className="step-bars")], className="panel-part")


def _bar(name: str, ns: float, longest: float) -> list[Component]:
    fill = html.Div(className="meter-fill", style={"width": f"{100 * ns / longest:.1f}%"})
    return [
        html.Span(name, className="fact-name"),
        html.Div(fill, className="step-bar"),
        html.Span(text.duration(ns), className="fact"),
    ]


def _spans_at(store: Store, lane: Lane, at_ns: int) -> pl.DataFrame:
    if lane.role == "device":
        return store.ran_at(lane.process, lane.part, at_ns)
    return store.recorded_at(lane.process, at_ns)


def _spans_section(spans: pl.DataFrame) -> Component:
    """List the recorded spans around the moment, the outermost first."""
    lines = [_line(row) for row in spans.head(MOST_SPANS).iter_rows(named=True)]
    title = html.H3("Recorded spans at this time", className="panel-title")
    head = html.Thead(html.Tr([html.Th(name) for name in ("span", "duration")]))
    table = html.Table([head, html.Tbody(lines)], className="spans")
    return html.Section([title, table], className="panel-part")


def _line(row: dict[str, Any]) -> Component:
    end = row["end_ns"]
    lasted = text.duration(end - row["start_ns"]) if end is not None else "still open"
    facts = ", ".join(
        [row["kind"], *(_fact_text(name, row[name]) for name in _recorded_facts(row))]
    )
    name: list[str | Component] = [clean(row["name"]), html.Div(facts, className="fact-name")]
    indent = {"paddingLeft": f"{10 * row['depth']}px"} if row["depth"] else {}
    return html.Tr([html.Td(html.Div(name, style=indent)), html.Td(lasted, className="number")])


def _recorded_facts(row: dict[str, Any]) -> list[str]:
    return [name for name in FACTS if row[name] not in {None, "closed"}]


def _value(name: str, value: Any) -> str:
    return text.size(value) if name == "bytes" else clean(str(value))


def _fact_text(name: str, value: Any) -> str:
    value_text = _value(name, value)
    is_clear = name in {"bytes", "op", "status"}
    return value_text if is_clear else f"{name.replace('_', ' ')} {value_text}"

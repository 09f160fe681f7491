"""The panel next to the timeline: the selected span, its step, and what was recorded around it.

What it is connected with, the collective's members and the critical path, is in `neighbours`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
import numpy as np
from dash import Dash, Input, Output, dcc, html

from tracelens.lod.lanes import Lane, Lanes, get_label
from tracelens.model.inert import clean
from tracelens.schema.vocabulary import FACTS
from tracelens_dashboard import text
from tracelens_dashboard import theme as themes
from tracelens_dashboard.components.timeline import names, neighbours
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current
from tracelens_dashboard.runs.store import Store, subject_of
from tracelens_dashboard.theme import name_of
from tracelens_dashboard.view import links, viewport

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl
    from dash.development.base_component import Component

    from tracelens_dashboard.view.state import ViewState
    from tracelens_dashboard.view.viewport import Position

MAX_LISTED_SPANS: Final = 12  # that lie around a moment
_TIME_IN_STEP: Final = "in this step"

Fact = tuple[str, str]
Selection = dict[str, int | None]  # what the browser keeps of what is selected


def selection_of(store: Store, position: Position) -> Selection:
    """Pack a selected position for the browser."""
    at_ns = position.moment_ns - store.run_window.start_ns
    return {"lane": position.scene_row, "at": at_ns, "track": position.track_index}


def selection_in(view: ViewState) -> Selection | None:
    """Select what a link names, as a click would."""
    keys = ("lane", "at", "track")
    return dict(zip(keys, view.selected_point, strict=False)) if view.selected_point else None


def register(app: Dash) -> None:
    """Describe the span that is clicked."""

    @app.callback(
        Output(names.DETAILS, "children"),
        Output(names.SELECTED, "data"),
        Input(names.GRAPH, "clickData"),
        *names.control_arguments(),
        prevent_initial_call=True,
    )
    def describe_span(click_data: Any, *values: Any) -> tuple[Component, Selection]:
        """Describe the clicked span, and select it; `values` are those of the controls."""
        store, controls = names.read_arguments(values)
        frame = viewport.frame(store, controls)
        position = current.prevent_update_unless(viewport.find_position(store, frame, click_data))
        return span_details(store, position), selection_of(store, position)


def layout(store: Store, selection: Selection | None) -> Component:
    """Return the panel; where nothing is selected a page shows none (assets/app.css)."""
    position = viewport.read_position(store, selection)
    details = span_details(store, position) if position else None
    label = aria("details of the selected span")
    return html.Aside(details, id=names.DETAILS, className="inspector", **label)


def span_details(store: Store, position: Position) -> Component:
    """Return the panel that says what a row, or a track of an opened process, did at a moment."""
    # A track holds recorded spans, which are events; a row a summary of the process's time.
    lane = store.scene.span_lanes.owners[position.scene_row]
    if position.track_index is not None:
        event = store.find_event_at(position.scene_row, position.track_index, position.moment_ns)
        tracks = store.open_process_tracks(position.scene_row).scene.span_lanes
        if event is None:
            return _describe_nothing(
                f"{subject_of(lane)}, {_track_name(tracks, position.track_index)}"
            )
        return _describe_event(store, position, tracks, event)
    item = store.scene.span_lanes.find_item_at(position.scene_row, position.moment_ns)
    if item is None:
        return _describe_nothing(subject_of(lane))
    return _describe_piece(store, position, item)


def _describe_nothing(subject: str) -> Component:
    sentence = html.P(f"Nothing recorded on {subject} at this time.", className="summary")
    return html.Div([html.Div([sentence, _close_button()], className="panel-heading")])


def _track_name(tracks: Lanes, track_index: int) -> str:
    return (
        clean(tracks.owners[track_index].track_name)
        if track_index < len(tracks)
        else "no such track"
    )


def _describe_piece(store: Store, position: Position, item: int) -> Component:
    """Return the panel of an item of a summary row: a stretch of one category of time."""
    lanes = store.scene.span_lanes
    lane = lanes.owners[position.scene_row]
    category, step = get_label(int(lanes.palette_codes[item])), int(lanes.step_numbers[item])
    begin_ns, end_ns = lanes.find_extent_ns(item)
    facts = [
        ("span", clean(lanes.item_names[lanes.name_indices[item]]) or "unnamed"),
        ("kind", name_of(category)),
        *_times(store, begin_ns, end_ns),
        ("step", str(step) if step >= 0 else ""),
    ]
    if lane.role == "worker":
        facts.append((_TIME_IN_STEP, _compare_with_peers(store, lane.rank, step, category)))
    heading = f"{name_of(category)} on {subject_of(lane)} in step {step}"
    parts = [_heading(heading, category), _facts(facts)]
    return _panel(store, position, (begin_ns, end_ns), parts, step=step)


def _describe_event(
    store: Store, position: Position, tracks: Lanes, event: dict[str, Any]
) -> Component:
    """Return the panel of a recorded span of a track; `event` has its values by column."""
    # Its step is -1 outside of steps, its end is None while it is open.
    assert position.track_index is not None
    lane, track_name = (
        store.scene.span_lanes.owners[position.scene_row],
        tracks.owners[position.track_index].track_name,
    )
    item = tracks.find_item_at(position.track_index, position.moment_ns)
    category = "" if item is None else get_label(int(tracks.palette_codes[item]))
    begin_ns, end_ns, step = event["start_ns"], event["end_ns"], int(event["step"])
    facts = [
        ("span", clean(event["name"]) or "unnamed"),
        ("kind", event["kind"]),
        *_times(store, begin_ns, end_ns),
        ("track", clean(track_name)),
        ("step", str(step) if step >= 0 else ""),
        *((fact.replace("_", " "), _value(fact, event[fact])) for fact in _recorded_facts(event)),
    ]
    step_text = f" in step {step}" if step >= 0 else ""
    span_name = clean(event["name"]) or event["kind"]
    heading = f"{span_name} on {subject_of(lane)}, {clean(track_name)}{step_text}"
    extent_ns = begin_ns, store.run_window.end_ns if end_ns is None else end_ns
    parts = [_heading(heading, category), _facts(facts)]
    return _panel(store, position, extent_ns, parts, step=step)


def _panel(
    store: Store,
    position: Position,
    extent_ns: tuple[int, int],
    parts: list[Component],
    *,
    step: int,
) -> Component:
    """Return the panel: `parts`, then the step, the collective, the path and the open spans."""
    # `extent_ns` are the begin and the end of the selected span; `step` is -1 outside of steps.
    lane = store.scene.span_lanes.owners[position.scene_row]
    sections = (
        _step_section(store, lane, step),
        neighbours.members_section(store, position),
        neighbours.path_section(store, position, extent_ns),
        _spans_section(_spans_at(store, lane, position.moment_ns)),
    )
    return html.Div([*parts, *filter(None, sections)])


def _heading(title: str, category: str) -> Component:
    """Return the title with the colour of the span's category, if it has one, in either scheme."""
    light_colour = themes.LIGHT.colour_by_category.get(category)
    dark_colour = themes.DARK.colour_by_category.get(category)
    swatch = html.Span(
        className="swatch",
        style={"background": f"light-dark({light_colour}, {dark_colour})"} if light_colour else {},
    )
    heading = dmc.Title(title, order=2, className="card-title", id="details-title")
    return html.Div([swatch, heading, _close_button()], className="panel-heading")


def _close_button() -> Component:
    """Return the button that selects nothing; assets/tracks.js makes it work."""
    return html.Button("\N{MULTIPLICATION SIGN}", className="panel-close", **aria("close details"))


def _times(store: Store, start_ns: int, end_ns: int | None) -> list[Fact]:
    lasted = "still open" if end_ns is None else text.duration(end_ns - start_ns)
    began = f"{text.duration(start_ns - store.run_window.start_ns)} after the start"
    return [("duration", lasted), ("began", began)]


def _facts(facts: Sequence[Fact]) -> Component:
    """List the facts, (name, value), that have a value, a line each."""
    terms = [
        term
        for name, value in facts
        if value
        for term in (html.Dt(name, className="fact-name"), html.Dd(value, className="fact"))
    ]
    return html.Dl(terms, className="facts")


def _compare_with_peers(store: Store, rank: int, step: int, category: str) -> str:
    """Return the rank's time in a category in a step, and the median of its peers', as text."""
    time_ns_by_rank = store.category_times.time_ns_by_rank(category, step)
    rank_ns = time_ns_by_rank.pop(rank, 0)
    if not time_ns_by_rank:
        return f"{text.duration(rank_ns)} of {name_of(category)}"
    peers = store.peer_ranks_of(rank, time_ns_by_rank)
    peers_ns = float(np.median([time_ns_by_rank[peer] for peer in peers]))
    return f"{text.duration(rank_ns)} (peers' median: {text.duration(peers_ns)})"


def _step_section(store: Store, lane: Lane, step: int) -> Component | None:
    """Return bars of a step's length on the lane's rank and the median one, and of the usual step."""
    # None outside of steps.
    step_ns_by_rank = store.category_times.step_ns_by_rank(step)
    if not step_ns_by_rank:
        return None
    names_and_lengths = [
        ("median rank", float(np.median(list(step_ns_by_rank.values())))),
        ("median step", store.category_times.median_step_ns),
    ]
    if lane.role != "ps" and lane.rank in step_ns_by_rank:
        names_and_lengths.insert(0, (f"rank {lane.rank}", float(step_ns_by_rank[lane.rank])))
    longest_ns = max([*(ns for _, ns in names_and_lengths), 1.0])
    bar_parts = [part for name, ns in names_and_lengths for part in _bar(name, ns, longest_ns)]
    ranks = () if lane.role == "ps" else (lane.rank,)
    href = links.to_step(store, step, ranks)
    link = dcc.Link(f"Zoom to step {step}", href=href, className="way")
    title = html.H3(f"Step {step}", className="panel-title")
    heading = html.Div([title, link], className="panel-line")
    return html.Section(
        [heading, html.Div(bar_parts, className="step-bars")], className="panel-part"
    )


def _bar(name: str, length_ns: float, longest_ns: float) -> list[Component]:
    fill = html.Div(className="meter-fill", style={"width": f"{100 * length_ns / longest_ns:.1f}%"})
    return [
        html.Span(name, className="fact-name"),
        html.Div(fill, className="step-bar"),
        html.Span(text.duration(length_ns), className="fact"),
    ]


def _spans_at(store: Store, lane: Lane, moment_ns: int) -> pl.DataFrame:
    if lane.role == "device":
        return store.stream_spans_at(lane.process, lane.track_name, moment_ns)
    return store.spans_open_at(lane.process, moment_ns)


def _spans_section(spans: pl.DataFrame) -> Component:
    """List the recorded spans around the moment, the outermost first; a row per span."""
    rows = [_list_span(row) for row in spans.head(MAX_LISTED_SPANS).iter_rows(named=True)]
    title = html.H3("Recorded spans at this time", className="panel-title")
    head = html.Thead(html.Tr([html.Th(name) for name in ("span", "duration")]))
    table = html.Table([head, html.Tbody(rows)], className="spans")
    return html.Section([title, table], className="panel-part")


def _list_span(span: dict[str, Any]) -> Component:
    """Return a recorded span as a row of the list, indented by its depth."""
    end_ns = span["end_ns"]
    duration_text = text.duration(end_ns - span["start_ns"]) if end_ns is not None else "still open"
    facts = [span["kind"], *(_fact_text(fact, span[fact]) for fact in _recorded_facts(span))]
    facts_line = html.Div(", ".join(facts), className="fact-name")
    cell: list[str | Component] = [clean(span["name"]), facts_line]
    indent = {"paddingLeft": f"{10 * span['depth']}px"} if span["depth"] else {}
    duration = html.Td(duration_text, className="number")
    return html.Tr([html.Td(html.Div(cell, style=indent)), duration])


def _recorded_facts(row: dict[str, Any]) -> list[str]:
    """Return the names of the facts that a recorded span has; to be closed says nothing."""
    return [name for name in FACTS if row[name] not in {None, "closed"}]


def _value(name: str, value: Any) -> str:
    return text.size(value) if name == "bytes" else clean(str(value))


def _fact_text(name: str, value: Any) -> str:
    value_text = _value(name, value)
    needs_no_name = name in {"bytes", "op", "status"}
    return value_text if needs_no_name else f"{name.replace('_', ' ')} {value_text}"

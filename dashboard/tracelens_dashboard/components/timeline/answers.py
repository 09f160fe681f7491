"""What the timeline answers when it is asked: for a span, for a time range.

A clicked span is shown with its time, its peers' time, and what was recorded there; a range selected
with the mouse with what it was spent on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
import numpy as np
from dash import Input, Output, dcc, html
from dash.exceptions import PreventUpdate

from tracelens.lod import search
from tracelens.lod.lanes import label_of
from tracelens.model.inert import clean
from tracelens.schema.vocabulary import FACTS
from tracelens_dashboard import text
from tracelens_dashboard.components.timeline import area, names
from tracelens_dashboard.runs import current
from tracelens_dashboard.runs.store import subject_of
from tracelens_dashboard.theme import name_of
from tracelens_dashboard.view import links, viewport

if TYPE_CHECKING:
    import polars as pl
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens.lod.lanes import Lane, Lanes
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState
    from tracelens_dashboard.view.viewport import Place

Chosen = dict[str, int | None]  # what the browser keeps of what is selected

MOST_SPANS: Final = 12  # that lie around a moment
MOST_CATEGORIES: Final = 6


def register(app: Dash) -> None:
    """Describe what is clicked and measured."""
    _register_details(app)
    _register_measure(app)


def selected(store: Store, place: Place) -> Chosen:
    """Return what the browser keeps of what is selected."""
    return {"lane": place.lane, "at": place.at_ns - store.whole.start_ns, "track": place.track}


def clicked(view: ViewState) -> Chosen | None:
    """Return what a link selects, as a click would."""
    return (
        dict(zip(("lane", "at", "track"), view.selected, strict=False)) if view.selected else None
    )


def described(store: Store, chosen: Any) -> Component:
    """Describe what a link selects; without that, what a click would do."""
    place = viewport.place_of(store, chosen)
    return span_details(store, place) if place else click_hint()


def _register_details(app: Dash) -> None:
    @app.callback(
        Output(names.DETAILS, "children"),
        Output(names.SELECTED, "data"),
        Input(names.GRAPH, "clickData"),
        *area.SHOWN,
        prevent_initial_call=True,
    )
    def describe(click: Any, *shown: Any) -> tuple[Component, Any]:
        store, frame = area.seen(*shown)
        found = viewport.at(store, frame, click)
        if found is None:
            raise PreventUpdate
        return span_details(store, found), selected(store, found)


def _register_measure(app: Dash) -> None:
    @app.callback(
        Output(names.MEASURED, "children"),
        Input(names.GRAPH, "selectedData"),
        current.RUN,
        prevent_initial_call=True,
    )
    def measure(selected: Any, run: Any) -> str:
        return time_in(current.store(run), selected)


def click_hint() -> Component:
    """Return what a click would do."""
    return html.P("Click a span to see what it was.", className="summary")


def span_details(store: Store, place: Place) -> Component:
    """Describe what a row did at a moment."""
    lane = store.scene.lanes.lanes[place.lane]
    if place.track is not None:
        event = store.event_at(place.lane, place.track, place.at_ns)
        tracks = store.opened(place.lane).scene.lanes
        if event is not None:
            return _event_details(store, lane, tracks.lanes[place.track].part, place.at_ns, event)
        return _nothing(f"{subject_of(lane)}, {_track_name(tracks, place.track)}")
    lanes = store.scene.lanes
    part = lanes.between(place.lane, place.at_ns, place.at_ns + 1)
    subject = subject_of(lane)
    if part.start == part.stop:
        return _nothing(subject)
    item = part.start
    category = label_of(int(lanes.codes[item]))
    step = int(lanes.steps[item])
    facts = _facts(store, lane, item, category)
    heading = f"{name_of(category)} on {subject} in step {step}"
    return _described(store, lane, heading, facts, at_ns=place.at_ns, step=step)


def _nothing(subject: str) -> Component:
    return html.P(f"Nothing recorded on {subject} at this time.", className="summary")


def _track_name(tracks: Lanes, track: int) -> str:
    return clean(tracks.lanes[track].part) if track < len(tracks) else "no such track"


def _event_details(
    store: Store, lane: Lane, track: str, at_ns: int, event: dict[str, Any]
) -> Component:
    """Describe a recorded span."""
    end, origin = event["end_ns"], store.whole.start_ns
    lasted = "still open" if end is None else text.duration(end - event["start_ns"])
    facts = [
        ("span", clean(event["name"]) or "unnamed"),
        ("kind", event["kind"]),
        ("duration", lasted),
        ("began", f"{text.duration(event['start_ns'] - origin)} after the start"),
        *((name.replace("_", " "), _value(name, event[name])) for name in _given(event)),
    ]
    step = int(event["step"])
    inside = f" in step {step}" if step >= 0 else ""
    heading = (
        f"{clean(event['name']) or event['kind']} on {subject_of(lane)}, {clean(track)}{inside}"
    )
    return _described(store, lane, heading, facts, at_ns=at_ns, step=step)


def _described(
    store: Store, lane: Lane, heading: str, facts: list[tuple[str, str]], *, at_ns: int, step: int
) -> Component:
    return html.Div(
        [
            dmc.Title(heading, order=2, className="card-title", id="details-title"),
            dmc.SimpleGrid(
                [_fact(*fact) for fact in facts], cols={"base": 2, "sm": 4}, spacing="xs"
            ),
            _recorded(_spans_at(store, lane, at_ns)),
            _links(store, lane, step),
        ]
    )


def _spans_at(store: Store, lane: Lane, at_ns: int) -> pl.DataFrame:
    if lane.role == "device":
        return store.ran_at(lane.process, lane.part, at_ns)
    return store.recorded_at(lane.process, at_ns)


def _facts(store: Store, lane: Lane, item: int, category: str) -> list[tuple[str, str]]:
    lanes, origin = store.scene.lanes, store.whole.start_ns
    start, end = int(lanes.starts[item]), int(lanes.ends[item])
    facts = [
        ("span", clean(lanes.words[lanes.names[item]]) or "unnamed"),
        ("duration", text.duration(end - start)),
        ("began", f"{text.duration(start - origin)} after the start"),
    ]
    if lane.role == "worker":
        facts.append(
            ("in this step", _compared(store, lane.rank, int(lanes.steps[item]), category))
        )
    return facts


def _compared(store: Store, rank: int, step: int, category: str) -> str:
    """Compare the rank's time in a category with that of its peers in the same step."""
    spent = store.times.in_step(category, step)
    mine = spent.pop(rank, 0)
    if not spent:
        return f"{text.duration(mine)} of {name_of(category)}"
    usual = float(np.median([spent[peer] for peer in store.peers_of(rank, spent)]))
    return f"{text.duration(mine)} (peers' median: {text.duration(usual)})"


def _fact(name: str, value: str) -> Component:
    return html.Div([html.Div(name, className="fact-name"), html.Div(value, className="fact")])


def _recorded(spans: pl.DataFrame) -> Component:
    """List the recorded spans around the moment, the outermost first."""
    lines = [
        html.Tr([html.Td(cell) for cell in _line(row)])
        for row in spans.head(MOST_SPANS).iter_rows(named=True)
    ]
    head = html.Thead(html.Tr([html.Th(name) for name in ("span", "kind", "duration", "details")]))
    return html.Table(
        [html.Caption("Recorded spans at this time"), head, html.Tbody(lines)], className="spans"
    )


def _line(row: dict[str, Any]) -> list[str]:
    end = row["end_ns"]
    lasted = text.duration(end - row["start_ns"]) if end is not None else "still open"
    facts = [_fact_text(name, row[name]) for name in _given(row)]
    return ["· " * row["depth"] + clean(row["name"]), row["kind"], lasted, ", ".join(facts)]


def _given(row: dict[str, Any]) -> list[str]:
    return [name for name in FACTS if row[name] not in {None, "closed"}]


def _value(name: str, value: Any) -> str:
    return text.size(value) if name == "bytes" else str(value)


def _fact_text(name: str, value: Any) -> str:
    given = _value(name, value)
    return given if name in {"bytes", "op", "status"} else f"{name.replace('_', ' ')} {given}"


def _links(store: Store, lane: Lane, step: int) -> Component:
    if step < 0:
        return html.Div()
    ranks = () if lane.role == "ps" else (lane.rank,)
    href = links.to_step(store, step, ranks)
    return html.Div(dcc.Link(f"Zoom to step {step}", href=href, className="way"), className="ways")


def time_in(store: Store, selected: Any) -> str:
    """Return how long the selected time range is, and what all ranks did in it; empty without one."""
    marked = area.marked_window(store, selected)
    if marked is None:
        return ""
    spent = search.time_by_category(store.scene.lanes, marked)
    total = max(sum(spent.values()), 1)
    parts = [
        f"{name_of(label)} {text.percent(ns / total)}"
        for label, ns in list(spent.items())[:MOST_CATEGORIES]
    ]
    length = text.duration(marked.width_ns)
    begin = text.duration(marked.start_ns - store.whole.start_ns)
    what = ", ".join(parts) if parts else "nothing recorded"
    return f"Selected: {length}, starting at {begin}. All ranks: {what}."

"""What is known of the span one clicked: its time, its peers' time, and what was recorded there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
import numpy as np
from dash import dcc, html

from tracelens.lod.codes import label_of
from tracelens.reports.words import clean
from tracelens.schema.vocabulary import FACTS
from tracelens_dashboard import links, text
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    import polars as pl
    from dash.development.base_component import Component

    from tracelens.lod.lanes import Lane
    from tracelens_dashboard.store import Store

MOST_SPANS: Final = 12


def hint() -> Component:
    """Say what a click would do."""
    return html.P("Click a span to see what it was.", className="summary")


def of_span(store: Store, lane_index: int, at_ns: int) -> Component:
    """Describe what a lane did at a moment."""
    lanes = store.scene.lanes
    lane = lanes.lanes[lane_index]
    part = lanes.between(lane_index, at_ns, at_ns + 1)
    who = _who(lane)
    if part.start == part.stop:
        return html.P(f"Nothing was recorded on {who} at this moment.", className="summary")
    item = part.start
    category = label_of(int(lanes.codes[item]))
    facts = _facts(store, lane, item, category)
    heading = [name_of(category), f"on {who}", f"in step {lanes.steps[item]}"]
    return html.Div(
        [
            dmc.Title(" ".join(heading), order=2, className="card-title", id="details-title"),
            dmc.SimpleGrid(
                [_fact(*fact) for fact in facts], cols={"base": 2, "sm": 4}, spacing="xs"
            ),
            _recorded(_spans_at(store, lane, at_ns)),
            _ways(store, lane, int(lanes.steps[item])),
        ]
    )


def _who(lane: Lane) -> str:
    if lane.role == "ps":
        return f"PS shard {lane.rank}"
    return f"rank {lane.rank}" + (f", {lane.part}" if lane.role == "device" else "")


def _spans_at(store: Store, lane: Lane, at_ns: int) -> pl.DataFrame:
    if lane.role == "device":
        return store.ran_at(lane.process, lane.part, at_ns)
    return store.recorded_at(lane.process, at_ns)


def _facts(store: Store, lane: Lane, item: int, category: str) -> list[tuple[str, str]]:
    lanes, origin = store.scene.lanes, store.whole.start_ns
    start, end = int(lanes.starts[item]), int(lanes.ends[item])
    facts = [
        ("span", clean(lanes.words[lanes.names[item]]) or "none recorded"),
        ("lasted", text.duration(end - start)),
        ("began", f"{text.duration(start - origin)} after the start"),
    ]
    if lane.role == "worker":
        facts.append(
            ("in this step", _compared(store, lane.rank, int(lanes.steps[item]), category))
        )
    return facts


def _compared(store: Store, rank: int, step: int, category: str) -> str:
    """Compare the rank's time in a category with that of the others in the same step."""
    spent = store.times.in_step(category, step)
    mine = spent.pop(rank, 0)
    if not spent:
        return f"{text.duration(mine)} of {name_of(category)}"
    usual = float(np.median(list(spent.values())))
    return f"{text.duration(mine)} (the others' median: {text.duration(usual)})"


def _fact(name: str, value: str) -> Component:
    return html.Div([html.Div(name, className="fact-name"), html.Div(value, className="fact")])


def _recorded(spans: pl.DataFrame) -> Component:
    """List the recorded spans around the moment, the outermost first."""
    lines = [
        html.Tr([html.Td(cell) for cell in _line(row)])
        for row in spans.head(MOST_SPANS).iter_rows(named=True)
    ]
    head = html.Thead(html.Tr([html.Th(name) for name in ("span", "kind", "lasted", "details")]))
    return html.Table(
        [html.Caption("Recorded at this moment"), head, html.Tbody(lines)], className="spans"
    )


def _line(row: dict[str, Any]) -> list[str]:
    end = row["end_ns"]
    lasted = text.duration(end - row["start_ns"]) if end is not None else "still open"
    facts = [_say(name, row[name]) for name in FACTS if row[name] not in {None, "closed"}]
    return ["· " * row["depth"] + clean(row["name"]), row["kind"], lasted, ", ".join(facts)]


def _say(name: str, value: Any) -> str:
    if name == "bytes":
        return text.size(value)
    return str(value) if name in {"op", "status"} else f"{name.replace('_', ' ')} {value}"


def _ways(store: Store, lane: Lane, step: int) -> Component:
    if step < 0:
        return html.Div()
    ranks = () if lane.role == "ps" else (lane.rank,)
    href = links.to_step(store, step, ranks)
    return html.Div(dcc.Link(f"Zoom to step {step}", href=href, className="way"), className="ways")

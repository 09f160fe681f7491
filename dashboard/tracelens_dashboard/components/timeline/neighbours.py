"""What a selected span is connected with: the other members of its collective, and the critical path.

Each is a button that selects that span: assets/tracks.js hands its `data-span` to the server.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from dash import html

from tracelens.lod.lanes import label_of
from tracelens.model.inert import clean
from tracelens_dashboard import text
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs.store import subject_of
from tracelens_dashboard.theme import name_of
from tracelens_dashboard.view import viewport

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens.lod.search import Call
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.viewport import Place

MOST_MEMBERS: Final = 40  # that are listed: the last to arrive, the first one, the selected one


def members(store: Store, place: Place) -> Component | None:
    """List when each rank entered the collective that is selected, the last first; None without one."""
    call = viewport.call_of(store, place)
    if call is None:
        return None
    mine = store.scene.lanes.lanes[place.lane].rank
    title = html.H3(f"{clean(call.op)} {call.seq}", className="panel-title")
    skew = text.duration(call.last_ns - call.first_ns)
    ranks = text.count(len(call.entered), "rank")
    words = f"{ranks}, arrival skew {skew}: rank {call.last_rank} arrives last."
    columns = ("rank", "after the first", "before the last")
    head = html.Thead(html.Tr([html.Th(name) for name in columns]))
    rows: list[Component] = []
    following = 0
    for number, rank in _listed(call, mine):
        if number > following:
            between = text.count(number - following, "more rank")
            rows.append(html.Tr(html.Td(between, colSpan=len(columns), className="fact-name")))
        rows.append(_member(store, call, rank, chosen=rank == mine))
        following = number + 1
    table = html.Table([head, html.Tbody(rows)], className="spans members")
    return html.Section([title, html.P(words, className="summary"), table], className="panel-part")


def _listed(call: Call, mine: int) -> list[tuple[int, int]]:
    """Return (place, rank) of the members to list, by arrival, the last one first."""
    order = sorted(
        call.entered, key=lambda rank: (-call.entered[rank], rank != call.last_rank, rank)
    )
    every = list(enumerate(order))
    return [
        (number, rank)
        for number, rank in every
        if number < MOST_MEMBERS - 2 or rank == mine or number == len(every) - 1
    ]


def _member(store: Store, call: Call, rank: int, *, chosen: bool) -> Component:
    """Return the row of a rank; one whose row is not shown leads nowhere."""
    entered, row = call.entered[rank], store.lane_of(rank)
    called: list[str | Component] = [f"rank {rank}"]
    if row is not None:
        extent = entered, call.left.get(rank)
        called = [_way(store, f"rank {rank}", row, extent, inside=True, seq=call.seq)]
    last = rank == call.last_rank
    if last:
        called.append(html.Span("last", className="badge"))
    skew = max(call.last_ns - call.first_ns, 1)
    share = 100 * (entered - call.first_ns) / skew
    fill = html.Div(className="meter-fill", style={"width": f"{share:.1f}%"})
    after = html.Div([text.duration(entered - call.first_ns), html.Div(fill, className="meter")])
    before = text.duration(call.last_ns - entered)
    classes = " ".join(["last"] * last + ["chosen"] * chosen)
    cells = [html.Td(called), html.Td(after), html.Td(before, className="number")]
    return html.Tr(cells, className=classes)


def on_path(store: Store, place: Place, extent: tuple[int, int]) -> Component | None:
    """Return what of a span the critical path holds, and what it holds before and after it.

    `extent` is the span's begin and end in ns. None where no path is known, or none at this time.
    """
    stretches = store.table("critical_stays")
    if stretches.is_empty():
        return None
    begin, end = extent
    start, over = stretches["start_ns"].to_numpy(), stretches["end_ns"].to_numpy()
    processes = stretches["process"].to_numpy()
    held = np.minimum(over, end) - np.maximum(start, begin)
    mine = store.scene.lanes.lanes[place.lane].process
    share = float(held[(held > 0) & (processes == mine)].sum()) / max(end - begin, 1)
    lines: list[Component] = []
    for name, at_ns in (("before", begin - 1), ("after", end)):
        at = int(np.searchsorted(start, at_ns, side="right")) - 1
        if at >= 0 and at_ns < over[at]:
            lines += _on_path_at(store, name, int(processes[at]), at_ns)
    if not lines and not share:
        return None
    words = f"{text.percent(share)} of this span is on it." if share else "This span is not on it."
    parts = [html.H3("Critical path", className="panel-title"), html.P(words, className="summary")]
    return html.Section([*parts, html.Dl(lines, className="facts")], className="panel-part")


def _on_path_at(store: Store, name: str, process: int, at_ns: int) -> list[Component]:
    """Return the span that a process was in at a moment, as a button, and how long it took."""
    lanes = store.scene.lanes
    rows = [
        row
        for row, lane in enumerate(lanes.lanes)
        if lane.process == process and lane.role != "device"
    ]
    for row in rows:
        part = lanes.items_between(row, at_ns, at_ns + 1)
        if part.start < part.stop:
            extent = int(lanes.starts[part.start]), int(lanes.ends[part.start])
            what = name_of(label_of(int(lanes.codes[part.start])))
            called = f"{what} on {subject_of(lanes.lanes[row])}"
            way = _way(store, called, row, extent)
            value = [way, html.Span(text.duration(extent[1] - extent[0]), className="beside")]
            return [html.Dt(name, className="fact-name"), html.Dd(value, className="fact")]
    return []


def _way(
    store: Store, name: str, row: int, extent: tuple[int, int | None], **more: int
) -> Component:
    """Return the button that selects a span; `more` is what `finding.hit_of` reads besides."""
    origin = store.whole.start_ns
    begin, end = extent
    span = {"row": row, "at": begin - origin, "until": (end or begin + 1) - origin}
    given: dict[str, Any] = {"data-span": json.dumps(span | more)}
    return html.Button(name, className="way", **given, **aria(f"select {name}"))

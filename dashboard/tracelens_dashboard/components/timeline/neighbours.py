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
    from tracelens_dashboard.view.viewport import Position

MOST_MEMBERS: Final = 40  # that are listed: the last to arrive, the first one, the selected one


def members_section(store: Store, position: Position) -> Component | None:
    """List when each rank entered the collective that is selected, the last first; None without one."""
    call = viewport.call_of(store, position)
    if call is None:
        return None
    selected_rank = store.scene.lanes.lanes[position.lane].rank
    title = html.H3(f"{clean(call.op)} {call.seq}", className="panel-title")
    skew = text.duration(call.last_ns - call.first_ns)
    ranks = text.count(len(call.entered), "rank")
    summary = f"{ranks}, arrival skew {skew}: rank {call.last_rank} arrives last."
    columns = ("rank", "after the first", "before the last")
    head = html.Thead(html.Tr([html.Th(name) for name in columns]))
    rows: list[Component] = []
    order = sorted(
        call.entered, key=lambda rank: (-call.entered[rank], rank != call.last_rank, rank)
    )
    listed_count = 0
    for index, rank in enumerate(order):
        if MOST_MEMBERS - 2 <= index < len(order) - 1 and rank != selected_rank:
            continue
        if index > listed_count:
            gap = text.count(index - listed_count, "more rank")
            rows.append(html.Tr(html.Td(gap, colSpan=len(columns), className="fact-name")))
        rows.append(_member(store, call, rank, is_selected=rank == selected_rank))
        listed_count = index + 1
    table = html.Table([head, html.Tbody(rows)], className="spans members")
    return html.Section(
        [title, html.P(summary, className="summary"), table], className="panel-part"
    )


def _member(store: Store, call: Call, rank: int, *, is_selected: bool) -> Component:
    """Return the row of a rank; one whose row is not shown leads nowhere."""
    entered_ns, row = call.entered[rank], store.lane_of(rank)
    name: list[str | Component] = [f"rank {rank}"]
    if row is not None:
        extent = entered_ns, call.left.get(rank)
        name = [_span_button(store, f"rank {rank}", row, extent, inside=True, seq=call.seq)]
    is_last = rank == call.last_rank
    if is_last:
        name.append(html.Span("last", className="badge"))
    skew_ns = max(call.last_ns - call.first_ns, 1)
    delay_ns = entered_ns - call.first_ns
    fill = html.Div(className="meter-fill", style={"width": f"{100 * delay_ns / skew_ns:.1f}%"})
    delay = html.Div([text.duration(delay_ns), html.Div(fill, className="meter")])
    lead = text.duration(call.last_ns - entered_ns)
    classes = " ".join(["last"] * is_last + ["chosen"] * is_selected)
    cells = [html.Td(name), html.Td(delay), html.Td(lead, className="number")]
    return html.Tr(cells, className=classes)


def path_section(store: Store, position: Position, extent: tuple[int, int]) -> Component | None:
    """Describe what of a span the critical path holds, and what it holds before and after it.

    `extent` is the span's begin and end in ns. None where no path is known, or none at this time.
    """
    stretches = store.table("critical_stays")
    if stretches.is_empty():
        return None
    begin_ns, end_ns = extent
    starts, ends = stretches["start_ns"].to_numpy(), stretches["end_ns"].to_numpy()
    processes = stretches["process"].to_numpy()
    held_ns = np.minimum(ends, end_ns) - np.maximum(starts, begin_ns)
    process = store.scene.lanes.lanes[position.lane].process
    share = float(held_ns[(held_ns > 0) & (processes == process)].sum()) / max(end_ns - begin_ns, 1)
    lines: list[Component] = []
    for name, at_ns in (("before", begin_ns - 1), ("after", end_ns)):
        index = int(np.searchsorted(starts, at_ns, side="right")) - 1
        if index >= 0 and at_ns < ends[index]:
            lines += _path_line(store, name, int(processes[index]), at_ns)
    if not lines and not share:
        return None
    summary = (
        f"{text.percent(share)} of this span is on it." if share else "This span is not on it."
    )
    headings = [
        html.H3("Critical path", className="panel-title"),
        html.P(summary, className="summary"),
    ]
    return html.Section([*headings, html.Dl(lines, className="facts")], className="panel-part")


def _path_line(store: Store, name: str, process: int, at_ns: int) -> list[Component]:
    """Return the span that a process was in at a moment, as a button, and how long it took."""
    lanes = store.scene.lanes
    rows = [
        row
        for row, lane in enumerate(lanes.lanes)
        if lane.process == process and lane.role != "device"
    ]
    for row in rows:
        items = lanes.items_between(row, at_ns, at_ns + 1)
        if items.start < items.stop:
            extent = int(lanes.starts[items.start]), int(lanes.ends[items.start])
            category = name_of(label_of(int(lanes.codes[items.start])))
            label = f"{category} on {subject_of(lanes.lanes[row])}"
            button = _span_button(store, label, row, extent)
            value = [button, html.Span(text.duration(extent[1] - extent[0]), className="beside")]
            return [html.Dt(name, className="fact-name"), html.Dd(value, className="fact")]
    return []


def _span_button(
    store: Store, name: str, row: int, extent: tuple[int, int | None], **details: int
) -> Component:
    """Return the button that selects a span; `finding.hit_of` reads its extent (ns) and details."""
    origin = store.whole.start_ns
    begin, end = extent
    span = {"row": row, "at": begin - origin, "until": (end or begin + 1) - origin}
    data: dict[str, Any] = {"data-span": json.dumps(span | details)}
    return html.Button(name, className="way", **data, **aria(f"select {name}"))

"""What a selected span is connected with: the other members of its collective, and the critical path.

Each is a button that selects that span: assets/tracks.js hands its `data-span` to the server.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from dash import html

from tracelens.lod.lanes import get_label
from tracelens.model.inert import clean
from tracelens_dashboard import text
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs.store import Store, subject_of
from tracelens_dashboard.theme import name_of
from tracelens_dashboard.view import viewport

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens.lod.search import Call
    from tracelens_dashboard.view.viewport import Position

MOST_MEMBERS: Final = 40  # that are listed: the last to arrive, the first one, the selected one


def members_section(store: Store, position: Position) -> Component | None:
    """List when ranks entered the selected collective, the last first; None without any."""
    # Of many ranks, those that come last, the first one and the selected one are listed.
    call = viewport.call_of(store, position)
    if call is None:
        return None
    selected_rank = store.scene.span_lanes.owners[position.scene_row].rank
    title = html.H3(f"{clean(call.op)} {call.seq}", className="panel-title")
    skew_text = text.duration(call.last_arrival_ns - call.first_arrival_ns)
    ranks_text = text.count(len(call.entered_ns_by_rank), "rank")
    summary = (
        f"{ranks_text}, arrival skew {skew_text}: rank {call.last_arriving_rank} arrives last."
    )
    columns = ("rank", "after the first", "before the last")
    head = html.Thead(html.Tr([html.Th(name) for name in columns]))
    rows: list[Component] = []
    ranks_by_arrival = sorted(
        call.entered_ns_by_rank,
        key=lambda rank: (-call.entered_ns_by_rank[rank], rank != call.last_arriving_rank, rank),
    )
    next_index = 0  # of the first rank that is not accounted for yet
    for index, rank in enumerate(ranks_by_arrival):
        if MOST_MEMBERS - 2 <= index < len(ranks_by_arrival) - 1 and rank != selected_rank:
            continue
        if index > next_index:
            gap_text = text.count(index - next_index, "more rank")
            rows.append(html.Tr(html.Td(gap_text, colSpan=len(columns), className="fact-name")))
        rows.append(_list_member(store, call, rank, is_selected=rank == selected_rank))
        next_index = index + 1
    table = html.Table([head, html.Tbody(rows)], className="spans members")
    summary_line = html.P(summary, className="summary")
    return html.Section([title, summary_line, table], className="panel-part")


def _list_member(store: Store, call: Call, rank: int, *, is_selected: bool) -> Component:
    """Return the line of a rank, marked if selected; without a row in the timeline it leads nowhere."""
    # A call knows when each rank entered and left (ns, by rank), and the first and last arrival.
    entered_ns, row = call.entered_ns_by_rank[rank], store.scene_row_of_rank(rank)
    name_cell: list[str | Component] = [f"rank {rank}"]
    if row is not None:
        extent_ns = entered_ns, call.left_ns_by_rank.get(rank)
        name_cell = [_span_button(store, f"rank {rank}", row, extent_ns, inside=True, seq=call.seq)]
    is_last = rank == call.last_arriving_rank
    if is_last:
        name_cell.append(html.Span("last", className="badge"))
    skew_ns = max(call.last_arrival_ns - call.first_arrival_ns, 1)
    delay_ns = entered_ns - call.first_arrival_ns
    bar = html.Div(className="meter-fill", style={"width": f"{100 * delay_ns / skew_ns:.1f}%"})
    delay_cell = html.Div([text.duration(delay_ns), html.Div(bar, className="meter")])
    lead_text = text.duration(call.last_arrival_ns - entered_ns)
    classes = " ".join(["last"] * is_last + ["chosen"] * is_selected)
    cells = [html.Td(name_cell), html.Td(delay_cell), html.Td(lead_text, className="number")]
    return html.Tr(cells, className=classes)


def path_section(store: Store, position: Position, extent_ns: tuple[int, int]) -> Component | None:
    """Describe the critical path's share of a span (begin, end in ns), and where it is around it."""
    # None where no path is known, or it is neither on the span nor just before or after it.
    stretches = store.analysis_table("critical_stays")  # a row per stretch on one process, by time
    if stretches.is_empty():
        return None
    begin_ns, end_ns = extent_ns
    starts_ns, ends_ns = stretches["start_ns"].to_numpy(), stretches["end_ns"].to_numpy()
    stretch_processes = stretches["process"].to_numpy()
    overlap_ns = np.minimum(ends_ns, end_ns) - np.maximum(starts_ns, begin_ns)
    process = store.scene.span_lanes.owners[position.scene_row].process
    is_on_span = (overlap_ns > 0) & (stretch_processes == process)
    share = float(overlap_ns[is_on_span].sum()) / max(end_ns - begin_ns, 1)
    lines: list[Component] = []
    for side, at_ns in (("before", begin_ns - 1), ("after", end_ns)):
        stretch_index = int(np.searchsorted(starts_ns, at_ns, side="right")) - 1
        if stretch_index >= 0 and at_ns < ends_ns[stretch_index]:
            lines += _describe_path_at(store, side, int(stretch_processes[stretch_index]), at_ns)
    if not lines and not share:
        return None
    amount = f"{text.percent(share)} of this span is" if share else "This span is not"
    title = html.H3("Critical path", className="panel-title")
    summary = html.P(f"{amount} on it.", className="summary")
    facts = html.Dl(lines, className="facts")
    return html.Section([title, summary, facts], className="panel-part")


def _describe_path_at(store: Store, term: str, process: int, moment_ns: int) -> list[Component]:
    """Return a term, and a button for the span that a process was in at a moment."""
    lanes = store.scene.span_lanes
    for row, lane in enumerate(lanes.owners):
        is_of_process = lane.process == process and lane.role != "device"
        item = lanes.find_item_at(row, moment_ns) if is_of_process else None
        if item is not None:
            begin_ns, end_ns = lanes.find_extent_ns(item)
            phase = name_of(get_label(int(lanes.palette_codes[item])))
            button = _span_button(store, f"{phase} on {subject_of(lane)}", row, (begin_ns, end_ns))
            duration = html.Span(text.duration(end_ns - begin_ns), className="beside")
            description = html.Dd([button, duration], className="fact")
            return [html.Dt(term, className="fact-name"), description]
    return []


def _span_button(
    store: Store, name: str, scene_row: int, extent_ns: tuple[int, int | None], **details: int
) -> Component:
    """Return the button that selects a span of a row; `finding.hit_of` reads its data."""
    # A span without an end counts as 1 ns long.
    origin_ns = store.run_window.start_ns
    begin_ns, end_ns = extent_ns
    span = {
        "row": scene_row,
        "at": begin_ns - origin_ns,
        "until": (end_ns or begin_ns + 1) - origin_ns,
    }
    data: dict[str, Any] = {"data-span": json.dumps(span | details)}
    return html.Button(name, className="way", **data, **aria(f"select {name}"))

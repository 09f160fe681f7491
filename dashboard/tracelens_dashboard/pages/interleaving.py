"""Is communication hidden behind compute?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dash import html

from tracelens.lod.viewport import Window
from tracelens_dashboard.components import chart, finding_card, heading
from tracelens_dashboard.components.chart import (
    HALF_WIDTH,
    PLOT_PX,
    ChartCard,
    fit_rows,
    from_tables,
)
from tracelens_dashboard.figures import interleaving
from tracelens_dashboard.view import finding_pages, links

if TYPE_CHECKING:
    from collections.abc import Callable

    from dash.development.base_component import Component

    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

PATH: Final = finding_pages.OVERLAP
TITLE: Final = "Overlap"
HEADING: Final = "Communication overlap"
EXPLANATION: Final = "How much communication is hidden behind compute, and what is exposed."
QUESTION: Final = "Is communication hidden behind compute?"
NO_DATA: Final = (
    "Neither communication nor weight updates are in this trace. Hooks of frameworks record both "
    "(“tracelens record”, tl.attach(…)); in your own code, spans of kind reduction with a bucket, "
    "and of kind update, in steps, show here how they interleave."
)


def _link_to_call(store: Store, point: dict[str, Any]) -> str:
    """Show the call of a bucket that is exposed longest."""
    start_ns, end_ns, rank = point["customdata"][1]
    return links.to_moment(store, Window(start_ns, end_ns), (rank,))


def _link_to_chain(store: Store, point: dict[str, Any]) -> str | None:
    """Show the step of the longest chain."""
    rank, step = point["customdata"][1]
    return None if step is None else links.to_step(store, step, () if rank is None else (rank,))


def _link_to_gap(store: Store, point: dict[str, Any]) -> str | None:
    """Show the longest gap of a bar."""
    _, gap = point.get("customdata") or (None, None)
    if not gap:
        return None
    rank, start_ns, length_ns = gap
    return links.to_moment(store, Window(start_ns, start_ns + length_ns), (rank,))


def _fit_table(table_name: str) -> Callable[[Store], int]:
    return fit_rows(
        lambda store: min(store.analysis_table(table_name).height, 40),
        frame_px=110,
        row_px=26,
        least_px=PLOT_PX,
    )


BY_STEP: Final = ChartCard(
    card_id="overlap-steps",
    title="Overlapped and exposed communication per step",
    explanation="Communication of the mean rank per step: beside compute, exposed, or waiting for "
    "others.",
    draw=from_tables(interleaving.overlap_by_step, "overlap_by_step"),
    link_from_mark=links.to_step_of_mark,
)
BY_BUCKET: Final = ChartCard(
    card_id="overlap-buckets",
    title="Overlap per bucket",
    explanation="The same for each gradient bucket or shard, per call.",
    draw=from_tables(interleaving.overlap_by_bucket, "overlap_by_bucket"),
    height_px=_fit_table("overlap_by_bucket"),
    link_from_mark=_link_to_call,
    grid_columns=HALF_WIDTH,
)
CHAINS: Final = ChartCard(
    card_id="gradient-chains",
    title="Gradient-to-weight latency per bucket",
    explanation="From a gradient's being ready to the next use of its weights. Bars: the median of "
    "each stage; the mark: the median of the whole.",
    draw=from_tables(interleaving.latency, "chains"),
    height_px=_fit_table("chains"),
    link_from_mark=_link_to_chain,
    grid_columns=HALF_WIDTH,
)
GAPS: Final = ChartCard(
    card_id="update-gaps",
    title="Gaps between optimizer updates",
    explanation="From the end of an optimizer update to the begin of the next.",
    draw=from_tables(interleaving.update_gaps, "gap_spread"),
    link_from_mark=_link_to_gap,
)
CARDS: Final[tuple[ChartCard, ...]] = (BY_STEP, BY_BUCKET, CHAINS, GAPS)

_lay_out_findings = finding_card.section_of_page("interleaving-findings", PATH)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or say what to record to see it."""
    page_heading = [heading.page_title(HEADING, EXPLANATION), html.P(QUESTION, className="summary")]
    lacks_communication = interleaving.has_no_communication(store.analysis_table("overlap_by_step"))
    if lacks_communication and store.analysis_table("gap_spread").is_empty():
        return heading.page_in_words(page_heading, NO_DATA)
    parts = [*page_heading, _lay_out_findings(store, view), chart.grid(CARDS, store, view)]
    return html.Div(parts, className="page")

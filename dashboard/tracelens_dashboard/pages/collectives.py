"""Skew or bandwidth: do ranks wait for each other in collectives, or for the network?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from dash import html

from tracelens.lod.viewport import Window
from tracelens_dashboard.components import chart, finding_card, heading
from tracelens_dashboard.components.chart import HALF_WIDTH, ChartCard, fit_rows, from_tables
from tracelens_dashboard.figures import arrival_skew, bandwidth
from tracelens_dashboard.view import finding_pages, links

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme
    from tracelens_dashboard.view.state import ViewState

PATH: Final = finding_pages.COLLECTIVES
TITLE: Final = "Collectives"
EXPLANATION: Final = (
    "Arrival skew and transfer: whether ranks wait for each other, or for the network."
)
QUESTION: Final = "Do ranks wait for each other, or for the network?"
NO_DATA: Final = (
    "No collective entered by several ranks is in this trace. Hooks record them: PyTorch DDP and "
    "torch.distributed, Horovod and MPI, with “tracelens record” or tl.attach(…). In your own "
    "code, “with tl.span('reduce', kind='reduction', op='allreduce', nbytes=n): …” records a "
    "call; calls match by communicator and number."
)
WITH_SERVERS: Final = (
    "This run has parameter servers: see the page “PS shards” for traffic between them and workers."
)


def _draw_distribution(store: Store, theme: Theme) -> Drawing:
    uncertainty_ns = store.report.clock.uncertainty_ns
    return arrival_skew.distribution(store.analysis_table("arrivals_spread"), uncertainty_ns, theme)


def _link_to_largest_skew(store: Store, point: dict[str, Any]) -> str:
    """Link to the collective of a step with the largest arrival skew, else to the step."""
    # The table has one row per step: when that call's first rank entered, and its last one left.
    step = int(point["x"])
    step_rows = store.analysis_table("arrivals_by_step").filter(step=step)
    windows = [Window(*ends_ns) for ends_ns in step_rows.select("first_ns", "over_ns").iter_rows()]
    return links.to_call(store, windows[0]) if windows else links.to_step(store, step)


def _link_to_call(store: Store, point: dict[str, Any]) -> str | None:
    """Link to the call behind a mark; None where the mark has none."""
    _, call = point.get("customdata") or (None, None)
    if not call:
        return None
    first_ns, over_ns, _ = call  # first arrival, last exit, and a rank
    return links.to_call(store, Window(first_ns, over_ns))


EXCHANGE: Final = ChartCard(
    card_id="collective-exchange",
    title="Wait and transfer per step",
    explanation="Time in collectives per rank and step: until the last arrival it is wait, after "
    "it transfer.",
    draw=from_tables(arrival_skew.by_step, "arrivals_by_step"),
    link_from_mark=_link_to_largest_skew,
    grid_columns=HALF_WIDTH,
)
SKEW: Final = ChartCard(
    card_id="collective-skew",
    title="Arrival skew per step",
    explanation="Last arrival minus first arrival of the step's calls, and who was last.",
    draw=from_tables(arrival_skew.over_run, "arrivals_by_step"),
    link_from_mark=_link_to_call,
    grid_columns=HALF_WIDTH,
)
LAST_ARRIVALS: Final = ChartCard(
    card_id="collective-last",
    title="Last arrivals",
    explanation="In how many calls a rank arrived last, beside what chance gives (whiskers); wait "
    "caused alone is what all waited for that one rank.",
    draw=from_tables(arrival_skew.last_arrivals, "arrivals_last"),
    height_px=fit_rows(
        lambda store: min(len(store.ranks), arrival_skew.MOST_RANKS),
        frame_px=90,
        row_px=24,
        least_px=chart.PLOT_PX,
    ),
    link_from_mark=_link_to_call,
    grid_columns=HALF_WIDTH,
)
DISTRIBUTION: Final = ChartCard(
    card_id="collective-spread",
    title="Arrival skew: distribution",
    explanation="Calls by arrival skew; below clock uncertainty it is not known.",
    draw=_draw_distribution,
    link_from_mark=_link_to_call,
    grid_columns=HALF_WIDTH,
)
BANDWIDTH: Final = ChartCard(
    card_id="collective-speed",
    title="Bandwidth by message size",
    explanation="Filled: bus bandwidth; hollow: algorithm bandwidth; a colour for each operation, "
    "number of ranks and algorithm. Dashed: the fitted cost model.",
    draw=from_tables(bandwidth.by_size, "bandwidths", "message_costs", "bandwidths_slowest"),
    height_px=chart.PLOT_PX + 60,
    link_from_mark=_link_to_call,
)
LINKS: Final = ChartCard(
    card_id="collective-links",
    title="Links between ranks",
    explanation="Bandwidth of messages between two ranks, the slowest first. Red: a finding names "
    "the link.",
    draw=lambda store, theme: bandwidth.by_link(
        store.analysis_table("links"), theme, links.find_slow_links(store)
    ),
    height_px=fit_rows(
        lambda store: min(store.analysis_table("links").height or 8, bandwidth.MOST_LINKS),
        frame_px=90, row_px=24, least_px=chart.PLOT_PX,
    ),
    link_from_mark=lambda store, point: links.to_ranks(store, tuple(point["customdata"][1])),
)  # fmt: skip
CARDS: Final[tuple[ChartCard, ...]] = (
    EXCHANGE,
    SKEW,
    LAST_ARRIVALS,
    DISTRIBUTION,
    BANDWIDTH,
    LINKS,
)

_lay_out_findings = finding_card.section_of_page("collectives-findings", PATH)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or say what to record to see it."""
    page_heading = [heading.page_title(TITLE, EXPLANATION), html.P(QUESTION, className="summary")]
    if store.analysis_table("arrivals_last").is_empty():
        lines = [NO_DATA, WITH_SERVERS] if store.shard_count else [NO_DATA]
        return heading.page_in_words(page_heading, *lines)
    bandwidth_columns = HALF_WIDTH if store.analysis_table("links").height else 12
    cards = (
        *CARDS[:4],
        *(replace(card, grid_columns=bandwidth_columns) for card in (BANDWIDTH, LINKS)),
    )
    parts = [*page_heading, _lay_out_findings(store, view), chart.grid(cards, store, view)]
    return html.Div(parts, className="page")

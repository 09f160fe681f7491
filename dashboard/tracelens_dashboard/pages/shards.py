"""Is there a hot parameter-server shard, why, and which placement of variables would be better?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
import polars as pl
from dash import Input, dcc, html

from tracelens.lod.viewport import Window
from tracelens_dashboard.components import chart, fields, finding_card, heading
from tracelens_dashboard.components.chart import (
    HALF_WIDTH,
    ChartCard,
    fit_rows,
    from_tables,
    rank_count,
)
from tracelens_dashboard.figures import shards
from tracelens_dashboard.view import finding_pages, links

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme
    from tracelens_dashboard.view.state import ViewState

PATH: Final = finding_pages.SHARDS
TITLE: Final = "PS shards"
HEADING: Final = "Parameter servers"
EXPLANATION: Final = "Load of the shards, their traffic with workers, and variable placement."
MARKED: Final = "shard-marked"
CHOSEN: Final = "shard-chosen"
ROW_PX: Final = 26
LEAST_PX: Final = 220
MOST_PX: Final = 560
NO_DATA: Final = (
    "This run has no parameter servers: its workers exchange gradients among themselves, "
    "by collective reductions."
)
WHAT_IT_SHOWS: Final = (
    "Where processes of the role “ps” are recorded, this page compares their shards: bytes, "
    "requests, service time and queue time, each against the mean, which worker talks to which, "
    "which tensors a shard holds, and the estimated speed-up of another placement."
)


def _heaviest_shard(store: Store) -> int:
    return int(store.run.shard_loads.sort("bytes", descending=True)["shard"][0])


def _choose_shard(store: Store, view: ViewState) -> Component:
    """Offer the shards; the one of the link is chosen, else the one that carries most."""
    shard_numbers = store.run.shard_loads["shard"].to_list()
    shard = view.shard if view.shard in shard_numbers else _heaviest_shard(store)
    shard_choices = [(str(number), f"shard {number}") for number in shard_numbers]
    options = {"searchable": True, "limit": 50, "w": 120}
    return fields.select(CHOSEN, shard_choices, "shard", value=str(shard), **options)


def _draw_loads(store: Store, theme: Theme, marked: Any = None) -> Drawing:
    return shards.load(store.run.shard_loads, theme, marked if isinstance(marked, int) else None)


def _draw_tensors(store: Store, theme: Theme, chosen_shard: Any) -> Drawing:
    shard = int(chosen_shard) if str(chosen_shard).isdecimal() else 0
    placements = store.analysis_table("placements")
    mean_bytes = None if placements.is_empty() else float(placements["mean_bytes"][0])
    return shards.tensor_bars(store.analysis_table("tensors"), shard, mean_bytes, theme)


def draw_heaviest_shard(store: Store, theme: Theme) -> Drawing:
    """Draw the tensors of the shard that carries most, for the report."""
    if store.run.shard_loads.is_empty():
        return shards.tensor_bars(
            store.analysis_table("tensors"), shard=0, mean_bytes=None, theme=theme
        )
    return _draw_tensors(store, theme, _heaviest_shard(store))


def _link_to_shard(store: Store, point: dict[str, Any]) -> str | None:
    """Link to the longest request that a shard was sent."""
    return _link_to_longest(store, store.run.shard_traffic, shard=point.get("customdata"))


def _link_to_pair(store: Store, point: dict[str, Any]) -> str | None:
    rank, shard = _read_pair(point)
    return _link_to_longest(store, store.run.shard_traffic, rank=rank, shard=shard)


def _link_to_tensor(store: Store, point: dict[str, Any]) -> str | None:
    shard, row_index = _read_pair(point)
    tensors = store.analysis_table("tensors")
    if tensors.is_empty() or row_index < 0:
        return None
    return _link_to_longest(store, tensors.filter(pl.col("shard") == shard).slice(row_index, 1))


def _link_to_worker(store: Store, point: dict[str, Any]) -> str | None:
    rank = point.get("customdata")
    return links.to_ranks(store, (rank,)) if rank in store.ranks else None


def _read_pair(point: dict[str, Any]) -> tuple[int, int]:
    """Read two numbers that the browser sent back; they may be anything."""
    match point.get("customdata"):
        case [int(first), int(second)]:
            return first, second
    return -1, -1


def _link_to_longest(store: Store, requests: pl.DataFrame, **constraints: Any) -> str | None:
    """Link to the longest of some requests, its worker pinned; None without any."""
    # A row of `requests` holds the longest of some; `constraints` are values of its columns.
    if not all(isinstance(value, int) for value in constraints.values()):
        return None
    matching_requests = requests.filter(**constraints)
    if matching_requests.is_empty():
        return None
    length_ns = pl.col("longest_end_ns") - pl.col("longest_start_ns")
    longest_request = matching_requests.sort(length_ns, descending=True).row(0, named=True)
    window = Window(longest_request["longest_start_ns"], longest_request["longest_end_ns"])
    return links.to_moment(store, window, (longest_request["rank"],))


LOADS: Final = ChartCard(
    card_id="shard-dots",
    title="Load per shard",
    explanation="Bytes, requests, queue and service time of each shard beside the mean (dotted).",
    draw=_draw_loads,
    height_px=fit_rows(
        lambda store: store.shard_count,
        frame_px=100,
        row_px=ROW_PX,
        least_px=LEAST_PX,
        most_px=MOST_PX,
    ),
    inputs=(Input(MARKED, "data"),),
    link_from_mark=_link_to_shard,
    is_scrollable=True,
)
TRAFFIC: Final = ChartCard(
    card_id="shard-traffic",
    title="Bytes between workers and shards",
    explanation="Bytes that each worker exchanged with each shard, both ways.",
    draw=lambda store, theme: shards.traffic(store.run.shard_traffic, theme),
    height_px=fit_rows(rank_count, frame_px=110, row_px=ROW_PX, least_px=320, most_px=MOST_PX),
    link_from_mark=_link_to_pair,
    grid_columns=HALF_WIDTH,
)
TENSORS: Final = ChartCard(
    card_id="shard-tensors",
    title="Tensors per shard",
    explanation="Bytes per step of a shard's largest tensors, and what of the shard they are.",
    draw=_draw_tensors,
    height_px=320,
    inputs=(Input(CHOSEN, "value"),),
    link_from_mark=_link_to_tensor,
    lay_out_choice=_choose_shard,
    grid_columns=HALF_WIDTH,
)
PLACEMENTS: Final = ChartCard(
    card_id="shard-placements",
    title="Variable placement",
    explanation="Bytes of the fullest shard under other placements. Effective shards: mean load "
    "over max load, times their number.",
    draw=from_tables(shards.placement_bars, "placements"),
    height_px=240,
)
STALENESS: Final = ChartCard(
    card_id="shard-staleness",
    title="Staleness and fairness",
    explanation="How many updates of others came between a worker's read and its own update, and "
    "how often each worker gets its turn.",
    draw=from_tables(shards.staleness, "asynchrony"),
    height_px=fit_rows(rank_count, frame_px=130, row_px=ROW_PX, least_px=LEAST_PX, most_px=MOST_PX),
    link_from_mark=_link_to_worker,
    is_scrollable=True,
)
CARDS: Final[tuple[ChartCard, ...]] = (LOADS, TRAFFIC, TENSORS, PLACEMENTS, STALENESS)

_lay_out_findings = finding_card.section_of_page("shards-findings", PATH)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or say why this run has none of it."""
    if not store.shard_count:
        title = dmc.Title("No parameter servers", order=1, className="page-title")
        return heading.page_in_words([title], NO_DATA, WHAT_IT_SHOWS, identity="no-shards")
    cards = _select_cards(store)
    note = dmc.Card(html.P(WHAT_IT_SHOWS, className="summary"), className="card prose")
    return html.Div(
        [
            dcc.Store(id=MARKED, data=view.shard),
            heading.page_title(HEADING, EXPLANATION),
            _lay_out_findings(store, view),
            chart.grid(cards, store, view) if cards else note,
        ],
        className="page",
    )


def _select_cards(store: Store) -> list[ChartCard]:
    """Choose the cards by the data of the run: requests, named tensors, asynchronous workers."""
    cards: list[ChartCard] = []
    if not store.run.shard_loads.is_empty():
        if store.analysis_table("tensors").is_empty():
            cards = [LOADS, TRAFFIC, replace(PLACEMENTS, grid_columns=HALF_WIDTH)]
        else:
            cards = [LOADS, TRAFFIC, TENSORS, PLACEMENTS]
    return cards if store.analysis_table("asynchrony").is_empty() else [*cards, STALENESS]

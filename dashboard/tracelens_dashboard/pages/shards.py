"""Is there a hot parameter-server shard, why, and which placement of variables would be better?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
import polars as pl
from dash import Input, dcc, html

from tracelens.lod.viewport import Window
from tracelens.model.finding_kinds import KINDS
from tracelens_dashboard.components import chart, finding_card, heading, live
from tracelens_dashboard.figures import shards, staleness
from tracelens_dashboard.ids import aria
from tracelens_dashboard.view import links

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme
    from tracelens_dashboard.view.state import ViewState

PATH: Final = "/shards"
TITLE: Final = "PS shards"

DOTS: Final = "shard-dots"
TRAFFIC: Final = "shard-traffic"
TENSORS: Final = "shard-tensors"
PLACEMENTS: Final = "shard-placements"
STALENESS: Final = "shard-staleness"
MARKED: Final = "shard-marked"
CHOSEN: Final = "shard-chosen"
ROW_PX: Final = 26
MOST_PX: Final = 560
WIDE: Final = {"base": 12}
HALF: Final = {"base": 12, "lg": 6}
NO_DATA: Final = (
    "This run has no parameter servers: its workers exchange gradients among themselves, "
    "by collective reductions."
)
WHAT_IT_SHOWS: Final = (
    "Where processes of the role “ps” are recorded, this page compares their shards: bytes, "
    "requests, service time and queue time, each against the mean, which worker talks to which, which "
    "tensors a shard holds, and the estimated speed-up of another placement."
)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or say why this run has none of it."""
    if not store.shard_count:
        return _explanation()
    return html.Div(
        [
            dcc.Store(id=MARKED, data=view.shard),
            heading.page_title("Parameter servers"),
            _findings(store, view),
            dmc.Grid(_charts(store, view), gutter="sm"),
        ],
        className="page",
    )


@live.part("shards-findings")
def _findings(store: Store, _view: ViewState) -> Component:
    found = (f for f in store.report.findings if f.shards or KINDS[f.kind].on(PATH))
    return finding_card.first_of(store, found)


def register(app: Dash) -> None:
    """Draw the charts; a click on a mark leads to the longest request behind it."""
    chart.bind(app, DOTS, _dots, Input(MARKED, "data"))
    chart.bind(app, TRAFFIC, _traffic)
    chart.bind(app, TENSORS, _tensors, Input(CHOSEN, "value"))
    chart.bind(app, PLACEMENTS, _placements)
    chart.bind(app, STALENESS, _staleness)
    chart.follow_clicks(app, DOTS, _to_shard)
    chart.follow_clicks(app, TRAFFIC, _to_pair)
    chart.follow_clicks(app, TENSORS, _to_tensor)
    chart.follow_clicks(app, STALENESS, _to_worker)


def _charts(store: Store, view: ViewState) -> list[Component]:
    """Return the cards of what this run has: requests with shards, asynchronous workers, or both."""
    shown = [] if store.run.loads.is_empty() else _requests(store, view)
    if not store.table("asynchrony").is_empty():
        height = _height(len(store.ranks), 130)
        shown.append((chart.card(STALENESS, "Staleness and fairness", height, scrolls=True), WIDE))
    if not shown:
        note = html.P(WHAT_IT_SHOWS, className="summary")
        shown.append((dmc.Card(note, className="card prose"), WIDE))
    return [dmc.GridCol(card, span=width) for card, width in shown]


def _requests(store: Store, view: ViewState) -> list[tuple[Component, dict[str, int]]]:
    """Return the cards of requests with shards; of tensors where requests name theirs."""
    ranks = len(store.ranks)
    dots = chart.card(DOTS, "Load per shard", _height(store.shard_count, 100), scrolls=True)
    traffic = chart.card(TRAFFIC, "Bytes between workers and shards", _height(ranks, 110, 320))
    placed = chart.card(PLACEMENTS, "Variable placement", 240)
    if store.table("tensors").is_empty():
        return [(dots, WIDE), (traffic, HALF), (placed, HALF)]
    held = chart.card(TENSORS, "Tensors per shard", 320, _choice(store, view))
    return [(dots, WIDE), (traffic, HALF), (held, HALF), (placed, WIDE)]


def _height(rows: int, frame: int, least: int = 220) -> int:
    return max(least, min(MOST_PX, frame + ROW_PX * rows))


def _choice(store: Store, view: ViewState) -> Component:
    """Offer the shards; the one of the link is chosen, else the one that carries most."""
    loads = store.run.loads
    numbers = loads["shard"].to_list()
    heaviest = loads.sort("bytes", descending=True)["shard"][0]
    return dmc.Select(
        id=CHOSEN,
        data=[{"value": str(number), "label": f"shard {number}"} for number in numbers],
        value=str(view.shard if view.shard in numbers else heaviest),
        searchable=True,
        allowDeselect=False,
        limit=50,
        size="xs",
        w=120,
        **aria("shard"),
    )


def _dots(store: Store, theme: Theme, marked: Any) -> Drawing:
    return shards.load(store.run.loads, theme, marked if isinstance(marked, int) else None)


def _traffic(store: Store, theme: Theme) -> Drawing:
    return shards.traffic(store.run.traffic, theme)


def _placements(store: Store, theme: Theme) -> Drawing:
    return shards.placement_bars(store.table("placements"), theme)


def _staleness(store: Store, theme: Theme) -> Drawing:
    return staleness.draw(store.table("asynchrony"), theme)


def _tensors(store: Store, theme: Theme, chosen: Any) -> Drawing:
    shard = int(chosen) if str(chosen).isdecimal() else 0
    placed = store.table("placements")
    mean = None if placed.is_empty() else float(placed["mean_bytes"][0])
    return shards.tensor_bars(store.table("tensors"), shard, mean, theme)


def _to_shard(store: Store, point: dict[str, Any]) -> str | None:
    """Lead to the longest request that a shard was sent."""
    return _longest(store, store.run.traffic, shard=point.get("customdata"))


def _to_pair(store: Store, point: dict[str, Any]) -> str | None:
    rank, shard = _pair(point)
    return _longest(store, store.run.traffic, rank=rank, shard=shard)


def _to_tensor(store: Store, point: dict[str, Any]) -> str | None:
    shard, row = _pair(point)
    held = store.table("tensors")
    if held.is_empty() or row < 0:
        return None
    return _longest(store, held.filter(pl.col("shard") == shard).slice(row, 1))


def _to_worker(store: Store, point: dict[str, Any]) -> str | None:
    rank = point.get("customdata")
    return links.to_ranks(store, (rank,)) if rank in store.ranks else None


def _pair(point: dict[str, Any]) -> tuple[int, int]:
    """Read two numbers that the browser sent back; they may be anything."""
    data = point.get("customdata")
    sane = isinstance(data, list) and len(data) == 2 and all(isinstance(v, int) for v in data)
    return (data[0], data[1]) if sane and data else (-1, -1)


def _longest(store: Store, requests: pl.DataFrame, **which: Any) -> str | None:
    """Lead to the longest of some requests, its worker pinned."""
    if not all(isinstance(value, int) for value in which.values()):
        return None
    found = requests.filter(**which)
    if found.is_empty():
        return None
    lasted = pl.col("longest_end_ns") - pl.col("longest_start_ns")
    row = found.sort(lasted, descending=True).row(0, named=True)
    window = Window(row["longest_start_ns"], row["longest_end_ns"])
    return links.to_moment(store, window, (row["rank"],))


def _explanation() -> Component:
    lines = [html.P(line) for line in (NO_DATA, WHAT_IT_SHOWS)]
    return html.Div(
        [
            dmc.Title("No parameter servers", order=1, className="page-title"),
            dmc.Card(lines, className="card prose"),
        ],
        className="page",
        id="no-shards",
    )

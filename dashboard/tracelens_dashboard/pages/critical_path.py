"""What determines the job's length? The critical path across ranks, its composition, and slack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
import polars as pl
from dash import Input, dcc, html

from tracelens.lod.viewport import Window
from tracelens_dashboard.components import chart, heading
from tracelens_dashboard.components.chart import HALF_WIDTH, ChartCard, fit_rows, from_tables
from tracelens_dashboard.figures import critical_path
from tracelens_dashboard.ids import aria
from tracelens_dashboard.view import links

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme
    from tracelens_dashboard.view.state import ViewState

PATH: Final = "/critical-path"
TITLE: Final = "Critical path"
EXPLANATION: Final = "The chain of work and communication that the job is as long as."
GROUP: Final = "path-group"
WHAT_IT_IS: Final = (
    "The critical path is the chain of compute and communication across ranks that determines "
    "the job's length: where a rank waits, it continues on the rank waited for. Shortening "
    "anything else changes nothing."
)
NO_STEPS: Final = (
    "This trace has no steps, so ranks cannot be connected. Hooks of frameworks mark steps by "
    "themselves; in a loop of your own, write “with tl.step(i): …” around what is done for each "
    "batch."
)


def _choose_group(_store: Store, _view: ViewState) -> Component:
    data = [{"value": name, "label": f"by {name}"} for name in critical_path.GROUPS]
    return dmc.SegmentedControl(id=GROUP, data=data, value="rank", size="xs", **aria("group by"))


def _draw_composition(store: Store, theme: Theme, group: Any = None) -> Drawing:
    grouping = group if group in critical_path.GROUPS else critical_path.GROUPS[0]
    return critical_path.composition(
        store.analysis_table("critical_path"), store.host_by_rank, grouping, theme
    )


def _link_to_cell(store: Store, point: dict[str, Any]) -> str | None:
    rank, step, *_ = point.get("customdata") or (None, None)
    if rank not in store.ranks or not isinstance(step, int):
        return None
    return links.along_path(links.to_step(store, step, (int(rank),)))


def _link_to_group(store: Store, point: dict[str, Any]) -> str | None:
    """Link to the path's longest segment in a group and category, else to the group's ranks."""
    # A mark knows what it is grouped by, the name of its group, and its category.
    grouping, group_name, category = point.get("customdata") or ("", "", "")
    ranks = [
        rank
        for rank, host in store.host_by_rank.items()
        if grouping == "category" or group_name == (f"rank {rank}" if grouping == "rank" else host)
    ]
    is_in_group = (pl.col("category") == category) & pl.col("rank").is_in(ranks)
    group_segments = store.analysis_table("critical_longest").filter(
        is_in_group
    )  # the longest first
    segment_link = _link_to_segment(store, segment_index=0, segments=group_segments)
    return segment_link or links.along_path(links.to_ranks(store, tuple(ranks)))


def _link_to_bar(store: Store, point: dict[str, Any]) -> str | None:
    segment_index = point.get("customdata")
    return _link_to_segment(store, segment_index) if isinstance(segment_index, int) else None


def _link_to_segment(
    store: Store, segment_index: int, segments: pl.DataFrame | None = None
) -> str | None:
    """Link to a segment of the path, a row of `segments` (or of the longest); None if out of range."""
    all_segments = store.analysis_table("critical_longest") if segments is None else segments
    if not 0 <= segment_index < all_segments.height:
        return None
    segment = all_segments.row(segment_index, named=True)
    window = Window(segment["start_ns"], segment["end_ns"])
    return links.along_path(links.to_moment(store, window, (segment["rank"],)))


def _link_to_rank(store: Store, point: dict[str, Any]) -> str | None:
    rank, *_ = point.get("customdata") or (None,)
    if rank not in store.ranks:
        return None
    return links.along_path(links.to_ranks(store, (int(rank),)))


def _count_rows(store: Store) -> int:
    return min(len(store.ranks), critical_path.MOST_ROWS + 1)


BY_STEP: Final = ChartCard(
    card_id="path-strip",
    title="Ranks on the path, per step",
    explanation="On which rank the critical path was, step by step, by its phase.",
    draw=from_tables(critical_path.by_step, "critical_cells"),
    height_px=fit_rows(_count_rows, frame_px=130, row_px=24, least_px=230),
    link_from_mark=_link_to_cell,
)
COMPOSITION: Final = ChartCard(
    card_id="path-shares",
    title="Composition",
    explanation="Shares of the critical path by rank, phase or host.",
    draw=_draw_composition,
    height_px=400,
    inputs=(Input(GROUP, "value"),),
    link_from_mark=_link_to_group,
    lay_out_choice=_choose_group,
    grid_columns=HALF_WIDTH,
)
SEGMENTS: Final = ChartCard(
    card_id="path-pieces",
    title="Longest segments",
    explanation="The longest stretches of the path on one rank in one phase.",
    draw=from_tables(critical_path.segments, "critical_longest"),
    height_px=400,
    link_from_mark=_link_to_bar,
    link_from_row=_link_to_segment,
    grid_columns=HALF_WIDTH,
)
SLACK: Final = ChartCard(
    card_id="path-slack",
    title="Slack",
    explanation="By how much a rank could be later without making the job longer; none: it is "
    "critical.",
    draw=from_tables(critical_path.slack, "slack"),
    height_px=fit_rows(_count_rows, frame_px=120, row_px=24, least_px=220, most_px=520),
    link_from_mark=_link_to_rank,
)
CARDS: Final[tuple[ChartCard, ...]] = (BY_STEP, COMPOSITION, SEGMENTS, SLACK)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or say why there is no path."""
    title = heading.page_title(TITLE, EXPLANATION)
    if store.analysis_table("critical_cells").is_empty():
        return heading.page_in_words([title], NO_STEPS, identity="no-path")
    timeline_href = links.along_path(links.to_ranks(store, ranks=()))
    link = dcc.Link("Show it on the timeline", timeline_href, className="way")
    explanation = html.P([WHAT_IT_IS, " ", link], className="summary prose")
    return html.Div([title, explanation, chart.grid(CARDS, store, view)], className="page")

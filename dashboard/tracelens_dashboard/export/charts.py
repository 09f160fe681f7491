"""The charts of the report: cards of the pages, drawn once for the whole run.

What shows the whole run is always among them; what goes deeper only if a finding refers to it. Charts
that support findings come first, those of the most costly finding before all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tracelens.model.finding_kinds import KINDS
from tracelens_dashboard.components.chart import ChartCard
from tracelens_dashboard.figures.drawing import Drawing
from tracelens_dashboard.figures.timeline import plot
from tracelens_dashboard.pages import (
    collectives,
    critical_path,
    interleaving,
    overview,
    shards,
    stacks,
    steps,
    stragglers,
)
from tracelens_dashboard.text import count
from tracelens_dashboard.view import viewport

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.model.finding_entries import Group
    from tracelens_dashboard.figures.timeline.frame import Frame
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme

MAX_PINNED_RANKS: Final = 4


def _frame_of_run(store: Store) -> Frame:
    pins = [str(rank) for rank in sorted(store.flagged_ranks)[:MAX_PINNED_RANKS]]
    return viewport.frame(store, viewport.Controls(pinned_ranks=pins))


def _draw_timeline(store: Store, theme: Theme) -> Drawing:
    """Draw the timeline, without what only a server could answer."""
    frame = _frame_of_run(store)
    picture = viewport.picture(frame)
    figure = plot.draw(frame, picture, theme)
    figure.update_layout(dragmode=False)
    figure.update_xaxes(fixedrange=True)
    level = plot.LEVELS[picture.detail_level]
    return Drawing(figure, f"The whole run, {count(picture.span_count, 'span')}. {level}")


TIMELINE: Final = ChartCard(
    card_id="timeline",
    title="Timeline of all ranks",
    explanation="",
    draw=_draw_timeline,
    height_px=lambda store: plot.height_px(_frame_of_run(store)),
)


@dataclass(frozen=True)
class ReportChart:
    """A page's card in the report, and the groups of findings that it supports.

    A deep chart is exported for such findings only. The card is left out where it has nothing to
    draw, or where `applies_to` refuses the run.
    """

    card: ChartCard
    finding_groups: frozenset[Group] = frozenset()
    needs_finding: bool = False
    applies_to: Callable[[Store], bool] = lambda _store: True


STRAGGLERS: Final[frozenset[Group]] = frozenset({"ranks"})
NETWORK: Final[frozenset[Group]] = frozenset({"network", "overlap"})
OVERLAP: Final[frozenset[Group]] = frozenset({"overlap"})
SHARDS: Final[frozenset[Group]] = frozenset({"servers"})


def _has_samples(store: Store) -> bool:
    return bool(store.sampled_ranks)


CHARTS: Final = (
    ReportChart(overview.WATERFALL),
    ReportChart(stragglers.MAP, STRAGGLERS),
    ReportChart(stragglers.BARS, STRAGGLERS),
    ReportChart(stacks.FUNCTIONS, STRAGGLERS, applies_to=_has_samples),
    ReportChart(stacks.CALLS, STRAGGLERS, applies_to=_has_samples),
    ReportChart(
        replace(collectives.LAST_ARRIVALS, title="Last arrivals at collectives"),
        STRAGGLERS,
        needs_finding=True,
    ),
    ReportChart(shards.LOADS, SHARDS),
    ReportChart(shards.TRAFFIC, SHARDS),
    ReportChart(
        replace(shards.TENSORS, title="Tensors of the max shard", draw=shards.draw_heaviest_shard),
        SHARDS,
        needs_finding=True,
    ),
    ReportChart(
        shards.PLACEMENTS,
        SHARDS,
        applies_to=lambda store: store.analysis_table("placements").height > 1,
    ),
    ReportChart(
        replace(shards.STALENESS, title="Staleness and fairness of asynchronous workers"), SHARDS
    ),
    ReportChart(interleaving.BY_STEP, NETWORK),
    ReportChart(collectives.BANDWIDTH, NETWORK, needs_finding=True),
    ReportChart(collectives.LINKS, NETWORK, needs_finding=True),
    ReportChart(interleaving.CHAINS, NETWORK, needs_finding=True),
    ReportChart(interleaving.GAPS, OVERLAP, needs_finding=True),
    ReportChart(TIMELINE, applies_to=lambda store: bool(store.category_times.steps)),
    ReportChart(replace(critical_path.BY_STEP, title="Critical path: ranks per step"), STRAGGLERS),
    ReportChart(replace(critical_path.COMPOSITION, title="Critical path: composition"), STRAGGLERS),
    ReportChart(
        replace(critical_path.SEGMENTS, title="Critical path: longest segments"),
        STRAGGLERS,
        needs_finding=True,
    ),
    ReportChart(
        replace(collectives.EXCHANGE, title="Collectives: wait and transfer per step"),
        STRAGGLERS | NETWORK,
    ),
    ReportChart(overview.STEPS),
    ReportChart(replace(steps.SERIES, draw=steps.draw_plain_series)),
    ReportChart(steps.MAP),
)


def select_charts(store: Store) -> list[ReportChart]:
    """Choose the charts of a run: first where the time went, then what supports its findings."""
    kinds = (KINDS[finding.kind] for finding in store.report.findings)
    groups_by_cost = list(dict.fromkeys(kind.group for kind in kinds))
    waterfall, *other_charts = CHARTS

    def rank_chart(chart: ReportChart) -> int:
        """Return the index of the most costly group that a chart supports; their number if none."""
        supported = [group in chart.finding_groups for group in groups_by_cost]
        return supported.index(True) if any(supported) else len(groups_by_cost)

    charts = (waterfall, *sorted(other_charts, key=rank_chart))
    needed_charts = (
        chart
        for chart in charts
        if not chart.needs_finding or rank_chart(chart) < len(groups_by_cost)
    )
    return [chart for chart in needed_charts if chart.applies_to(store)]

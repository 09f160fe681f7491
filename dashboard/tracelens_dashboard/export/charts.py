"""The charts of the report: those of the pages, drawn once for the whole run.

What shows the whole run is always among them; what goes deeper only if a finding refers to it. Charts
that support findings come first, those of the most costly finding before all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracelens.lod import regimes, stacks
from tracelens.lod.step_times import StepGrid
from tracelens.model.finding_kinds import KINDS
from tracelens_dashboard.figures import (
    arrival_skew,
    axes,
    bandwidth,
    critical_path,
    interleaving,
    overview,
    sampled_stacks,
    shards,
    staleness,
    step_durations,
    stragglers,
)
from tracelens_dashboard.figures.drawing import Drawing
from tracelens_dashboard.figures.timeline import plot
from tracelens_dashboard.figures.timeline.plot import LEVELS
from tracelens_dashboard.text import count
from tracelens_dashboard.view import links, peer_stacks, viewport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelens.model.finding_entries import Group
    from tracelens_dashboard.figures.timeline.frame import Frame
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme

MOST_PINNED: Final = 4
ROW_PX: Final = 26
MOST_PX: Final = 520
PLOT_PX: Final = 300


def waterfall(store: Store, theme: Theme) -> Drawing:
    """Draw the waterfall."""
    return overview.waterfall(store.report.efficiency, theme)


def straggler_map(store: Store, theme: Theme) -> Drawing:
    """Draw residuals by rank and step."""
    return stragglers.by_rank(store.residuals, theme)


def whole_timeline(store: Store, theme: Theme) -> Drawing:
    """Draw the timeline, without what only a server could answer."""
    frame = _timeline_frame(store)
    picture = viewport.picture(frame)
    drawn = plot.draw(frame, picture, theme)
    drawn.update_layout(dragmode=False)
    drawn.update_xaxes(fixedrange=True)
    return Drawing(drawn, f"The whole run, {count(picture.spans, 'span')}. {LEVELS[picture.level]}")


def timeline_height(store: Store) -> int:
    """Return how high that is."""
    return plot.height(_timeline_frame(store))


def straggler_categories(store: Store, theme: Theme) -> Drawing:
    """Draw each rank's residual by category."""
    return stragglers.by_category(store.residuals, store.residuals_in, theme)


def step_parts(store: Store, theme: Theme) -> Drawing:
    """Draw the mean rank's time by category, step by step."""
    return overview.step_parts(store.times, theme)


def step_times(store: Store, theme: Theme) -> Drawing:
    """Draw the steps' length over the run."""
    times = store.step_times(store.times.categories)
    return step_durations.over_run(times, regimes.find(times.usual_ns), [], "step", theme)


def steps_by_rank(store: Store, theme: Theme) -> Drawing:
    """Draw the steps' length by rank and step."""
    grid = StepGrid.from_times(
        store.times, store.times.categories, axes.MOST_ROWS, axes.MOST_COLUMNS
    )
    return step_durations.by_rank(grid, theme)


def path_composition(store: Store, theme: Theme) -> Drawing:
    """Draw what the critical path consists of."""
    return critical_path.composition(
        store.table("critical_path"), store.hosts, critical_path.GROUPS[0], theme
    )


def shard_loads(store: Store, theme: Theme) -> Drawing:
    """Draw each shard beside the mean."""
    return shards.load(store.run.loads, theme)


def shard_traffic(store: Store, theme: Theme) -> Drawing:
    """Draw bytes by worker and shard."""
    return shards.traffic(store.run.traffic, theme)


def heaviest_tensors(store: Store, theme: Theme) -> Drawing:
    """Draw the tensors of the shard that carries most."""
    placed = store.table("placements")
    mean = None if placed.is_empty() else float(placed["mean_bytes"][0])
    heaviest = int(store.run.loads.sort("bytes", descending=True)["shard"][0])
    return shards.tensor_bars(store.table("tensors"), heaviest, mean, theme)


def straggler_calls(store: Store, theme: Theme) -> Drawing:
    """Draw the sampled calls of the rank, phase and steps that the verdict speaks of."""
    asked = peer_stacks.of_findings(store)
    mine, peers = peer_stacks.stacks_of(store, asked)
    return sampled_stacks.icicle(stacks.calls(mine, peers), asked.rank, len(peers), theme)


def straggler_functions(store: Store, theme: Theme) -> Drawing:
    """Draw the functions of that rank by residual against its peers."""
    asked = peer_stacks.of_findings(store)
    return sampled_stacks.by_function(
        stacks.frames(*peer_stacks.stacks_of(store, asked)), asked.rank, theme
    )


def link_bars(store: Store, theme: Theme) -> Drawing:
    """Draw the links, those that findings name in red."""
    return bandwidth.by_link(store.table("links"), theme, links.slow_links(store))


def _timeline_frame(store: Store) -> Frame:
    return viewport.frame(
        store, {}, [str(rank) for rank in sorted(store.flagged)[:MOST_PINNED]], None
    )


STRAGGLERS: Final[frozenset[Group]] = frozenset({"ranks"})
NETWORK: Final[frozenset[Group]] = frozenset({"network", "overlap"})
OVERLAP: Final[frozenset[Group]] = frozenset({"overlap"})
SHARDS: Final[frozenset[Group]] = frozenset({"servers"})


class Chart(NamedTuple):
    """A chart: its title, its height, how it is drawn, and whether a run has anything of it.

    `about` are the groups of findings that it supports; one that is `deep` is there only for them.
    """

    title: str
    height: Callable[[Store], int]
    draw: Callable[[Store, Theme], Drawing]
    applies: Callable[[Store], bool]
    about: frozenset[Group] = frozenset()
    deep: bool = False


def chosen(store: Store) -> list[Chart]:
    """Choose the charts of a run: first where the time went, then what supports its findings."""
    groups = list(dict.fromkeys(KINDS[found.kind].group for found in store.report.findings))
    first, *others = CHARTS
    fitting = [one for one in others if one.about & set(groups) or not one.deep]
    ranked = sorted(fitting, key=lambda chart: _place(chart, groups))
    return [chart for chart in (first, *ranked) if chart.applies(store)]


def _place(chart: Chart, groups: Sequence[Group]) -> int:
    return next((place for place, group in enumerate(groups) if group in chart.about), len(groups))


def _has_steps(store: Store) -> bool:
    return bool(store.times.steps)


def _has_shards(store: Store) -> bool:
    return bool(store.shard_count) and bool(store.run.loads.height)


def _has(*tables: str) -> Callable[[Store], bool]:
    return lambda store: all(store.table(name).height for name in tables)


def _of(draw: Callable[..., Drawing], *tables: str) -> Callable[[Store, Theme], Drawing]:
    """Draw some of a run's tables."""

    def drawing(store: Store, theme: Theme) -> Drawing:
        return draw(*(store.table(name) for name in tables), theme)

    return drawing


def _fixed(height: int) -> Callable[[Store], int]:
    return lambda _store: height


def _rows(number: Callable[[Store], int], frame: int = 100) -> Callable[[Store], int]:
    return lambda store: max(220, min(MOST_PX, frame + ROW_PX * number(store)))


def _ranks(store: Store) -> int:
    return len(store.ranks)


def _table(name: str) -> Callable[[Store], int]:
    return lambda store: store.table(name).height


_OF_STEPS: Final[dict[str, Any]] = {"applies": _has_steps}
_OF_SHARDS: Final[dict[str, Any]] = {"applies": _has_shards, "about": SHARDS}
CHARTS: Final[tuple[Chart, ...]] = (
    Chart("Where the time went", _fixed(PLOT_PX), waterfall, lambda _store: True),
    Chart("Residual by rank and step", _rows(_ranks), straggler_map, _has_steps, STRAGGLERS),
    Chart(
        "Residual by phase", _rows(_ranks), straggler_categories,
        lambda store: len(store.ranks) > 1, STRAGGLERS,
    ),
    Chart(
        "Functions by residual against peers", _fixed(400), straggler_functions,
        lambda store: bool(store.sampled), STRAGGLERS,
    ),
    Chart(
        "Calls (red: longer than on peers)", _fixed(380), straggler_calls,
        lambda store: bool(store.sampled), STRAGGLERS,
    ),
    Chart(
        "Last arrivals at collectives", _rows(_ranks), _of(arrival_skew.last_arrivals, "arrivals_last"),
        _has("arrivals_last"), STRAGGLERS, deep=True,
    ),
    Chart("Load per shard", _rows(lambda s: s.shard_count), shard_loads, **_OF_SHARDS),
    Chart("Bytes between workers and shards", _rows(_ranks), shard_traffic, **_OF_SHARDS),
    Chart(
        "Tensors of the max shard", _fixed(PLOT_PX), heaviest_tensors,
        lambda store: _has_shards(store) and _has("tensors")(store), SHARDS, deep=True,
    ),
    Chart(
        "Variable placement", _fixed(PLOT_PX), _of(shards.placement_bars, "placements"),
        lambda store: store.table("placements").height > 1, SHARDS,
    ),
    Chart(
        "Staleness and fairness of asynchronous workers", _rows(_ranks, 130),
        _of(staleness.draw, "asynchrony"), _has("asynchrony"), SHARDS,
    ),
    Chart(
        "Overlapped and exposed communication per step", _fixed(PLOT_PX),
        _of(interleaving.overlap_by_step, "overlap_by_step"),
        lambda store: not interleaving.has_no_communication(store.table("overlap_by_step")), NETWORK,
    ),
    Chart(
        "Bandwidth by message size", _fixed(360),
        _of(bandwidth.by_size, "bandwidths", "message_costs", "bandwidths_slowest"),
        _has("bandwidths"), NETWORK, deep=True,
    ),
    Chart(
        "Links between ranks", _rows(_table("links")), link_bars,
        _has("links"), NETWORK, deep=True,
    ),
    Chart(
        "Gradient-to-weight latency per bucket", _rows(_table("chains")),
        _of(interleaving.latency, "chains"), _has("chains"), NETWORK, deep=True,
    ),
    Chart(
        "Gaps between optimizer updates", _fixed(PLOT_PX), _of(interleaving.update_gaps, "gap_spread"),
        _has("gap_spread"), OVERLAP, deep=True,
    ),
    Chart("Timeline of all ranks", timeline_height, whole_timeline, **_OF_STEPS),
    Chart(
        "Critical path: ranks per step", _rows(_ranks, 130),
        _of(critical_path.by_step, "critical_cells"), _has("critical_cells"), STRAGGLERS,
    ),
    Chart(
        "Critical path: composition", _fixed(PLOT_PX), path_composition,
        _has("critical_path"), STRAGGLERS,
    ),
    Chart(
        "Critical path: longest segments", _fixed(400),
        _of(critical_path.segments, "critical_longest"),
        _has("critical_longest"), STRAGGLERS, deep=True,
    ),
    Chart(
        "Collectives: wait and transfer per step", _fixed(PLOT_PX),
        _of(arrival_skew.by_step, "arrivals_by_step"), _has("arrivals_by_step"), STRAGGLERS | NETWORK,
    ),
    Chart("Step time by category", _fixed(PLOT_PX), step_parts, **_OF_STEPS),
    Chart("Step time over the run", _fixed(280), step_times, **_OF_STEPS),
    Chart("Step time by rank and step", _rows(_ranks), steps_by_rank, **_OF_STEPS),
)  # fmt: skip

"""The charts of the report: those of the pages, drawn once for the whole run.

What shows the whole run is always among them; what goes deeper only if a finding speaks of it. Charts
that support findings come first, the dearest finding's before all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracelens_dashboard.export import drawn
from tracelens_dashboard.figures import (
    asynchrony,
    bandwidth,
    chain_lanes,
    exchange,
    last_arrivers,
    link_bars,
    overlap,
    path_pieces,
    path_strip,
    placements,
    update_gaps,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.store import Store
    from tracelens_dashboard.theme import Theme

ROW_PX: Final = 26
MOST_PX: Final = 520
PLOT_PX: Final = 300
LATE: Final = frozenset({"straggler", "slow_host", "load_imbalance", "data_stall", "gc_stall"})
NETWORK: Final = frozenset({"slow_link", "congestion", "small_messages", "exposed_communication"})
UPDATES: Final = frozenset({"update_gap", "checkpoint_stall"})
SHARDS: Final = frozenset({"ps_hot_shard", "ps_cpu_bound", "ps_network_bound", "ps_incast"})


class Chart(NamedTuple):
    """A chart: its title, its height, how it is drawn, and whether a run has anything of it.

    `about` are the kinds of findings that it supports; one that is `deep` is there only for them.
    """

    title: str
    height: Callable[[Store], int]
    draw: Callable[[Store, Theme], Drawing]
    applies: Callable[[Store], bool]
    about: frozenset[str] = frozenset()
    deep: bool = False


def chosen(store: Store) -> list[Chart]:
    """Choose the charts of a run: first where the time went, then what supports its findings."""
    kinds = list(dict.fromkeys(finding.kind for finding in store.report.findings))
    first, *others = CHARTS
    fitting = [one for one in others if one.about & set(kinds) or not one.deep]
    ranked = sorted(fitting, key=lambda chart: _place(chart, kinds))
    return [chart for chart in (first, *ranked) if chart.applies(store)]


def _place(chart: Chart, kinds: Sequence[str]) -> int:
    return next((place for place, kind in enumerate(kinds) if kind in chart.about), len(kinds))


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


_STEPS: Final[dict[str, Any]] = {"applies": _has_steps}
_HELD: Final[dict[str, Any]] = {"applies": _has_shards, "about": SHARDS}
CHARTS: Final[tuple[Chart, ...]] = (
    Chart("Where the time went", _fixed(PLOT_PX), drawn.where_it_went, lambda _store: True),
    Chart("Who was late, when", _rows(_ranks), drawn.who_was_late, _has_steps, LATE),
    Chart(
        "What makes them late", _rows(_ranks), drawn.what_makes_late,
        lambda store: len(store.ranks) > 1, LATE,
    ),
    Chart(
        "Functions in which it spends longer than its peers", _fixed(400), drawn.frames_of_the_late,
        lambda store: bool(store.sampled), LATE,
    ),
    Chart(
        "Its calls: redder is longer than on peers", _fixed(380), drawn.calls_of_the_late,
        lambda store: bool(store.sampled), LATE,
    ),
    Chart(
        "Who comes last to collectives", _rows(_ranks), _of(last_arrivers.draw, "arrivals_last"),
        _has("arrivals_last"), LATE, deep=True,
    ),
    Chart("Load of each shard", _rows(lambda s: s.shard_count), drawn.shard_loads, **_HELD),
    Chart("Bytes between workers and shards", _rows(_ranks), drawn.shard_traffic, **_HELD),
    Chart(
        "Tensors of the fullest shard", _fixed(PLOT_PX), drawn.heaviest_tensors,
        lambda store: _has_shards(store) and _has("tensors")(store), SHARDS, deep=True,
    ),
    Chart(
        "Where variables could lie", _fixed(PLOT_PX), _of(placements.draw, "placements"),
        lambda store: store.table("placements").height > 1, SHARDS,
    ),
    Chart(
        "Staleness and fairness of asynchronous workers", _rows(_ranks, 130),
        _of(asynchrony.draw, "asynchrony"), _has("asynchrony"), frozenset({"stale_worker"}),
    ),
    Chart(
        "Communication, hidden and exposed, step by step", _fixed(PLOT_PX),
        _of(overlap.by_step, "overlap_by_step"),
        lambda store: not overlap.is_empty(store.table("overlap_by_step")), NETWORK,
    ),
    Chart(
        "Bandwidth by message size", _fixed(360),
        _of(bandwidth.draw, "bandwidths", "message_costs", "bandwidths_slowest"),
        _has("bandwidths"), NETWORK, deep=True,
    ),
    Chart(
        "Links between ranks", _rows(_table("links")), _of(link_bars.draw, "links"),
        _has("links"), NETWORK, deep=True,
    ),
    Chart(
        "From gradient to first use", _rows(_table("chains")), _of(chain_lanes.draw, "chains"),
        _has("chains"), NETWORK | UPDATES, deep=True,
    ),
    Chart(
        "Gaps between weight updates", _fixed(PLOT_PX), _of(update_gaps.draw, "gap_spread"),
        _has("gap_spread"), UPDATES, deep=True,
    ),
    Chart("What every rank did", drawn.timeline_height, drawn.what_ranks_did, **_STEPS),
    Chart(
        "Who carries the critical path, step by step", _rows(_ranks, 130),
        _of(path_strip.draw, "critical_cells"), _has("critical_cells"), LATE,
    ),
    Chart(
        "What the critical path consists of", _fixed(PLOT_PX), drawn.path_by_rank,
        _has("critical_path"), LATE,
    ),
    Chart(
        "Longest pieces of the critical path", _fixed(400), _of(path_pieces.draw, "critical_longest"),
        _has("critical_longest"), LATE, deep=True,
    ),
    Chart(
        "In collectives: waiting and transfer, step by step", _fixed(PLOT_PX),
        _of(exchange.draw, "arrivals_by_step"), _has("arrivals_by_step"), LATE | NETWORK,
    ),
    Chart("What steps consist of", _fixed(PLOT_PX), drawn.what_steps_hold, **_STEPS),
    Chart("Step time over the run", _fixed(280), drawn.step_times, **_STEPS),
    Chart("How long each rank's steps take", _rows(_ranks), drawn.steps_by_rank, **_STEPS),
)  # fmt: skip

"""The charts of the report: those of the pages, drawn once for the whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens.lod import regimes
from tracelens.lod.grid import Grid
from tracelens_dashboard import sight
from tracelens_dashboard.figures import (
    lateness_map,
    placements,
    rank_bars,
    shards,
    step_map,
    step_series,
    timeline,
    waterfall,
)
from tracelens_dashboard.figures.drawing import Drawing
from tracelens_dashboard.figures.timeline_words import LEVELS
from tracelens_dashboard.text import count

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_dashboard.store import Store
    from tracelens_dashboard.theme import Theme

ROW_PX: Final = 26
MOST_PX: Final = 520


class Chart(NamedTuple):
    """A chart: its title, its height, how it is drawn, and whether a run has anything of it."""

    title: str
    height: Callable[[Store], int]
    draw: Callable[[Store, Theme], Drawing]
    applies: Callable[[Store], bool]


def _always(_store: Store) -> bool:
    return True


def _has_steps(store: Store) -> bool:
    return bool(store.times.steps)


def _has_shards(store: Store) -> bool:
    return bool(store.shard_count) and bool(store.run.loads.height)


def _has_placements(store: Store) -> bool:
    return store.table("placements").height > 1


def _fixed(height: int) -> Callable[[Store], int]:
    return lambda _store: height


def _by_rank(store: Store) -> int:
    return max(220, min(MOST_PX, 100 + ROW_PX * len(store.ranks)))


def _by_shard(store: Store) -> int:
    return max(220, min(MOST_PX, 100 + ROW_PX * store.shard_count))


def _waterfall(store: Store, theme: Theme) -> Drawing:
    return waterfall.draw(store.report.efficiency, theme)


def _lateness(store: Store, theme: Theme) -> Drawing:
    return lateness_map.by_rank(store.lateness, theme)


def _timeline(store: Store, theme: Theme) -> Drawing:
    frame = sight.frame(store, {}, [str(rank) for rank in sorted(store.flagged)[:4]], None)
    picture = sight.picture(frame)
    drawn = timeline.draw(frame, picture, theme)
    drawn.update_layout(dragmode=False)
    drawn.update_xaxes(fixedrange=True)
    return Drawing(drawn, f"The whole run, {count(picture.spans, 'span')}. {LEVELS[picture.level]}")


def _timeline_height(store: Store) -> int:
    return timeline.height(sight.frame(store, {}, sorted(store.flagged)[:4], None).plan)


def _bars(store: Store, theme: Theme) -> Drawing:
    return rank_bars.draw(store.lateness, store.lateness_in, theme)


def _series(store: Store, theme: Theme) -> Drawing:
    times = store.step_times(store.times.categories)
    return step_series.draw(times, regimes.find(times.usual_ns), [], "step", theme)


def _steps(store: Store, theme: Theme) -> Drawing:
    grid = Grid.of(store.times, store.times.categories, step_map.MOST_ROWS, step_map.MOST_COLUMNS)
    return step_map.draw(grid, theme)


def _dots(store: Store, theme: Theme) -> Drawing:
    return shards.dots(store.run.loads, theme)


def _traffic(store: Store, theme: Theme) -> Drawing:
    return shards.traffic(store.run.traffic, theme)


def _placements(store: Store, theme: Theme) -> Drawing:
    return placements.draw(store.table("placements"), theme)


CHARTS: Final[tuple[Chart, ...]] = (
    Chart("Where the time went", _fixed(300), _waterfall, _always),
    Chart("Who was late, when", _by_rank, _lateness, _has_steps),
    Chart("What every rank did", _timeline_height, _timeline, _has_steps),
    Chart("What makes them late", _by_rank, _bars, lambda store: len(store.ranks) > 1),
    Chart("Step time over the run", _fixed(280), _series, _has_steps),
    Chart("How long each rank's steps take", _by_rank, _steps, _has_steps),
    Chart("Load of each shard, the dotted line is the mean", _by_shard, _dots, _has_shards),
    Chart("Bytes between workers and shards", _by_rank, _traffic, _has_shards),
    Chart("Where variables could lie", _fixed(300), _placements, _has_placements),
)

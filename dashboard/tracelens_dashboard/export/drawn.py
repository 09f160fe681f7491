"""Charts of the report that need more of a run than a table: each is drawn for the whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens.lod import regimes, stacks
from tracelens.lod.grid import Grid
from tracelens_dashboard import beside, sight
from tracelens_dashboard.figures import (
    frame_bars,
    icicle,
    lateness_map,
    path_shares,
    rank_bars,
    shards,
    step_map,
    step_parts,
    step_series,
    tensors,
    timeline,
    waterfall,
)
from tracelens_dashboard.figures.drawing import Drawing
from tracelens_dashboard.figures.timeline_words import LEVELS
from tracelens_dashboard.text import count

if TYPE_CHECKING:
    from tracelens_dashboard.figures.frame import Frame
    from tracelens_dashboard.store import Store
    from tracelens_dashboard.theme import Theme

MOST_PINNED: Final = 4


def where_it_went(store: Store, theme: Theme) -> Drawing:
    """Draw the waterfall."""
    return waterfall.draw(store.report.efficiency, theme)


def who_was_late(store: Store, theme: Theme) -> Drawing:
    """Draw lateness by rank and step."""
    return lateness_map.by_rank(store.lateness, theme)


def what_ranks_did(store: Store, theme: Theme) -> Drawing:
    """Draw the timeline, without what only a server could answer."""
    frame = _frame(store)
    picture = sight.picture(frame)
    drawn = timeline.draw(frame, picture, theme)
    drawn.update_layout(dragmode=False)
    drawn.update_xaxes(fixedrange=True)
    return Drawing(drawn, f"The whole run, {count(picture.spans, 'span')}. {LEVELS[picture.level]}")


def timeline_height(store: Store) -> int:
    """Return how high that is."""
    return timeline.height(_frame(store).plan)


def what_makes_late(store: Store, theme: Theme) -> Drawing:
    """Draw each rank's lateness by category."""
    return rank_bars.draw(store.lateness, store.lateness_in, theme)


def what_steps_hold(store: Store, theme: Theme) -> Drawing:
    """Draw the mean rank's time by category, step by step."""
    return step_parts.draw(store.times, theme)


def step_times(store: Store, theme: Theme) -> Drawing:
    """Draw the steps' length over the run."""
    times = store.step_times(store.times.categories)
    return step_series.draw(times, regimes.find(times.usual_ns), [], "step", theme)


def steps_by_rank(store: Store, theme: Theme) -> Drawing:
    """Draw the steps' length by rank and step."""
    grid = Grid.of(store.times, store.times.categories, step_map.MOST_ROWS, step_map.MOST_COLUMNS)
    return step_map.draw(grid, theme)


def path_by_rank(store: Store, theme: Theme) -> Drawing:
    """Draw what the critical path consists of."""
    return path_shares.draw(store.table("critical_path"), store.hosts, path_shares.GROUPS[0], theme)


def shard_loads(store: Store, theme: Theme) -> Drawing:
    """Draw each shard beside the mean."""
    return shards.dots(store.run.loads, theme)


def shard_traffic(store: Store, theme: Theme) -> Drawing:
    """Draw bytes by worker and shard."""
    return shards.traffic(store.run.traffic, theme)


def heaviest_tensors(store: Store, theme: Theme) -> Drawing:
    """Draw the tensors of the shard that carries most."""
    placed = store.table("placements")
    mean = None if placed.is_empty() else float(placed["mean_bytes"][0])
    heaviest = int(store.run.loads.sort("bytes", descending=True)["shard"][0])
    return tensors.draw(store.table("tensors"), heaviest, mean, theme)


def calls_of_the_late(store: Store, theme: Theme) -> Drawing:
    """Draw the sampled calls of the rank, phase and steps that the verdict speaks of."""
    asked = beside.of_verdict(store)
    mine, peers = beside.stacks_of(store, asked)
    return icicle.draw(stacks.calls(mine, peers), asked.rank, len(peers), theme)


def frames_of_the_late(store: Store, theme: Theme) -> Drawing:
    """Draw the functions in which that rank spends longer than its peers."""
    asked = beside.of_verdict(store)
    return frame_bars.draw(stacks.frames(*beside.stacks_of(store, asked)), asked.rank, theme)


def _frame(store: Store) -> Frame:
    return sight.frame(store, {}, [str(rank) for rank in sorted(store.flagged)[:MOST_PINNED]], None)

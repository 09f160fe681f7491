"""Some ranks of a run, and some steps: as pages see them.

Of other steps nothing is left, and what is found is found in these alone (`align.selection`). Ranks are
only not shown: findings, and what the peers of a rank take, are those of the whole run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.align import selection
from tracelens.errors import InvalidArgument
from tracelens.lod import pyramid
from tracelens.lod.run_data import with_pyramid
from tracelens.lod.step_times import iterate_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Array, Indices
    from tracelens.lod.lanes import Lane, Lanes
    from tracelens.lod.query import Scene
    from tracelens.lod.run_data import Run
    from tracelens.lod.step_times import CategoryTimes
    from tracelens.model.choice import Choice
    from tracelens.model.trace import Trace

_MOST_ITEMS: Final = 1 << 25  # of lanes that are copied: about a gigabyte
_COLUMNS: Final = ("starts_ns", "ends_ns", "palette_codes", "step_numbers", "name_indices")


def select_steps(trace: Trace, choice: Choice) -> Trace:
    """Return the steps of a choice, of a whole run as it was opened.

    Raises:
        InvalidArgument: the run has none of them.
    """
    return selection.select_steps(trace.with_(choice=replace(choice, rank_ranges=None)))


def select_ranks(run: Run, choice: Choice) -> Run:
    """Show the ranks of a choice, and all servers.

    Raises:
        InvalidArgument: the run has none of them, or they have too many spans to be shown apart.
    """
    ranks = run.workers["rank"].to_list()
    selection.check_ranks(choice, ranks)
    worker_rows = np.flatnonzero([choice.has_rank(rank) for rank in ranks])
    if len(worker_rows) == len(ranks):
        return run
    chosen_workers = run.workers[worker_rows]
    is_chosen = pl.col("rank").is_in(chosen_workers["rank"].implode())
    narrowed_run = replace(
        run,
        workers=chosen_workers,
        category_times=_select_times(run.category_times, worker_rows),
        measure_residuals=lambda: run.residuals.select_ranks(worker_rows),
        tables={
            name: table.filter(is_chosen) if "rank" in table.columns else table
            for name, table in run.tables.items()
        },
        scene=_select_scene(run.scene, choice),
    )
    return with_pyramid(narrowed_run)


def _select_times(times: CategoryTimes, rows: Indices) -> CategoryTimes:
    """Return the times of some ranks; `rows` are their positions in `times.ranks`."""

    def take_ranks(values: Any) -> Array:
        chunks_of_rows = [np.asarray(values[steps])[:, rows] for steps in iterate_chunks(times)]
        return np.concatenate(chunks_of_rows) if chunks_of_rows else np.asarray(values[:])[:, rows]

    times_ns = [take_ranks(category_ns) for category_ns in times.matrices_ns]
    is_present = take_ranks(times.is_present)
    return replace(
        times,
        ranks=tuple(times.ranks[row] for row in rows.tolist()),
        matrices_ns=np.array(times_ns).reshape(len(times_ns), *is_present.shape),
        is_present=is_present,
        stored_sums=None,
    )


def _select_scene(scene: Scene, choice: Choice) -> Scene:
    """Return the scene with the lanes of the chosen ranks and of all servers."""

    def is_shown(lane: Lane) -> bool:
        return lane.role == "ps" or choice.has_rank(lane.rank)

    rows = [row for row, lane in enumerate(scene.span_lanes.owners) if is_shown(lane)]
    item_count = int(np.diff(scene.span_lanes.item_offsets)[rows].sum())
    if item_count > _MOST_ITEMS:
        raise InvalidArgument(
            f"These ranks have {item_count:,} spans, more than the {_MOST_ITEMS:,} that can be shown "
            "apart from the others: choose fewer ranks."
        )
    steps = _take_lanes(scene.step_lanes, rows)
    return replace(
        scene,
        span_lanes=_take_lanes(scene.span_lanes, rows),
        step_lanes=steps,
        peak_pyramid=pyramid.build_peaks(steps, scene.run_window, scene.median_step_ns),
        colour_pyramid=None,
    )


def _take_lanes(lanes: Lanes, rows: Sequence[int]) -> Lanes:
    """Copy some lanes, by their rows, with their items."""
    item_ranges = [slice(*lanes.item_offsets[row : row + 2].tolist()) for row in rows]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(lanes, name)[items] for items in item_ranges])
        for name in _COLUMNS
    }
    return replace(
        lanes,
        owners=tuple(lanes.owners[row] for row in rows),
        item_offsets=np.cumsum([0, *(items.stop - items.start for items in item_ranges)]),
        **columns,
    )

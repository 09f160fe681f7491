"""Rank x step: how long each step was on each rank; of neighbours that share a cell, the longest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures import duration_axis
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.figures.lateness_map import MOST_COLUMNS, MOST_ROWS, axes, rank_label

if TYPE_CHECKING:
    from tracelens.lod.grid import Grid
    from tracelens.lod.times import Matrix
    from tracelens_dashboard.theme import Theme

__all__ = ["MOST_COLUMNS", "MOST_ROWS", "draw"]

TABLE_ROWS: Final = 200
SAME: Final = 0.05
ALIKE: Final = (
    " All ranks take about the same time, as they wait for each other: measure own work to see who "
    "makes them wait."
)
_LOW, _HIGH = 0.05, 0.98


def draw(grid: Grid, theme: Theme, marked: tuple[int, int] | None = None) -> Drawing:
    """Draw the cells; the scale ends at what few columns exceed, as a first step may be very long."""
    cells, steps, ranks = grid.cells_ns, grid.times.steps, grid.times.ranks
    if not cells.size or np.isnan(cells).all():
        return empty(theme, "No step was recorded.")
    labels = [rank_label(ranks[part]) for part in grid.rows]
    low, high = _scale(cells)
    trace = go.Heatmap(
        z=cells.astype(np.float32),
        x=[steps[part.start] for part in grid.columns],
        y=labels,
        colorscale=theme.colorscale,
        zmin=low,
        zmax=high,
        hoverongaps=False,
        colorbar=_bar(low, high),
        text=[[text.duration(float(ns)) for ns in row] for row in np.nan_to_num(cells)],
        hovertemplate="%{y}, step %{x}: %{text}<extra></extra>",
    )
    return Drawing(figure(theme, trace, **axes(labels, theme, marked)), summary(grid), table(grid))


def summary(grid: Grid) -> str:
    """Say where it was longest, and what a cell stands for."""
    cells = np.nan_to_num(grid.cells_ns, nan=-1)
    row, column = np.unravel_index(int(cells.argmax()), cells.shape)
    rank, step = grid.longest(int(row), int(column))
    ranks = max(part.stop - part.start for part in grid.rows)
    steps = max(part.stop - part.start for part in grid.columns)
    shared = (
        f" A cell is the longest of up to {text.count(ranks, 'rank')} and {text.count(steps, 'step')}."
        if ranks * steps > 1
        else ""
    )
    longest = text.duration(float(cells[row, column]))
    alone = _alone(grid.cells_ns[:, column])
    where = f"on rank {rank} in" if alone else "in"
    hint = ALIKE if len(cells) > 1 and not alone else ""
    return f"The longest is {longest}, {where} step {step}.{hint}{shared}"


def table(grid: Grid) -> list[dict[str, Any]]:
    """List the longest cells."""
    cells = np.nan_to_num(grid.cells_ns, nan=-1)
    count = min(cells.size, TABLE_ROWS)
    places = np.argpartition(-cells.ravel(), count - 1)[:count]
    ordered = places[np.argsort(-cells.ravel()[places], kind="stable")]
    rows = []
    for place in ordered.tolist():
        row, column = divmod(place, cells.shape[1])
        if cells[row, column] >= 0:
            rank, step = grid.longest(row, column)
            rows.append(
                {"rank": rank, "step": step, "took": text.duration(float(cells[row, column]))}
            )
    return rows


def _alone(column: Matrix) -> bool:
    """Say whether some rank took clearly longer in a step than another."""
    return float(np.nanmax(column)) > (1 + SAME) * float(np.nanmin(column))


def _scale(cells: Matrix) -> tuple[float, float]:
    low = float(np.nanquantile(cells, _LOW))
    worst = np.nan_to_num(cells).max(axis=0)
    return low, max(float(np.quantile(worst, _HIGH)), 1.2 * low, 1.0)


def _bar(low: float, high: float) -> dict[str, Any]:
    ticks = duration_axis.linear(high, low)
    return {"tickvals": ticks["tickvals"], "ticktext": ticks["ticktext"]}

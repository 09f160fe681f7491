"""What a step is made of, over the run: the mean rank's time by category, stacked."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens.lod import grid
from tracelens_dashboard import text
from tracelens_dashboard.figures import duration_axis
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    from tracelens.lod.times import Matrix, Times
    from tracelens_dashboard.theme import Theme

MOST_POINTS: Final = 400
TABLE_ROWS: Final = 500
_HIGH: Final = 0.99  # a first step may be very long


def draw(times: Times, theme: Theme) -> Drawing:
    """Draw an area a category; neighbouring steps that share a point are its mean."""
    if not times.steps:
        return empty(theme, "No step was recorded.")
    mean = times.mean
    columns = grid.parts(len(times.steps), MOST_POINTS)
    shown = np.stack([mean[:, part].mean(axis=1) for part in columns], axis=1)
    steps = [times.steps[part.start] for part in columns]
    areas = [
        _area(name, steps, row, theme)
        for name, row in zip(times.categories, shown, strict=True)
        if row.any()
    ]
    high = max(float(np.quantile(shown.sum(axis=0), _HIGH)), 1.0) * 1.1
    drawn = figure(theme, *areas, **_axes(high))
    return Drawing(drawn, summary(times.categories, mean), partial(_rows, times, mean))


def summary(categories: tuple[str, ...], mean: Matrix) -> str:
    """Name what takes most of a step, and what comes next."""
    whole = mean.mean(axis=1)
    order = np.argsort(-whole)[:2]
    parts = [
        f"{text.duration(float(whole[at]))} are {name_of(categories[at])}"
        for at in order
        if whole[at]
    ]
    return f"Of {text.duration(float(whole.sum()))} of the mean step, {' and '.join(parts)}."


def _area(name: str, steps: list[int], row: Matrix, theme: Theme) -> go.Scatter:
    return go.Scatter(
        x=steps,
        y=row,
        name=name_of(name),
        stackgroup="all",
        mode="none",
        line={"shape": "hvh"},
        fillcolor=theme.categories[name],
        customdata=[text.duration(float(ns)) for ns in row],
        hovertemplate="%{customdata} %{fullData.name}<extra></extra>",
    )


def _rows(times: Times, mean: Matrix) -> list[dict[str, Any]]:
    """List the longest steps."""
    longest = np.argsort(-mean.sum(axis=0), kind="stable")[:TABLE_ROWS]
    return [
        {"step": times.steps[at], "took": text.duration(float(mean[:, at].sum()))}
        | {
            name_of(name): text.duration(float(ns))
            for name, ns in zip(times.categories, mean[:, at], strict=True)
        }
        for at in longest.tolist()
    ]


def _axes(high: float) -> dict[str, Any]:
    return {
        "xaxis": {"title": {"text": "step"}, "showgrid": False, "fixedrange": True},
        "yaxis": duration_axis.linear(high) | {"range": [0, high]},
        "showlegend": True,
        "legend": {"traceorder": "normal"},
        "hovermode": "x unified",
        "margin": {"t": 30},
    }

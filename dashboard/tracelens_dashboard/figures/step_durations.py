"""How long steps take: over the run, by rank and step, and as a distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens.lod import step_times
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, histogram, quantity
from tracelens_dashboard.figures.axes import rank_label, ranks_and_steps
from tracelens_dashboard.figures.drawing import Drawing, empty, figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Floats
    from tracelens.lod.regimes import Regime
    from tracelens.lod.step_times import StepGrid, StepTimes
    from tracelens_dashboard.theme import Theme

MOST_POINTS: Final = 800
MOST_MARKS: Final = 4
FAR: Final = 2.5  # times the usual step: a first step that loads libraries does not set the scale
TABLE_ROWS: Final = 200
SAME: Final = 0.05  # of a step's time: ranks that differ by less take the same
COUNTED: Final = "steps of ranks"
NO_STEPS: Final = "No steps recorded."
ALIKE: Final = (
    " All ranks take about the same time, since they wait for each other: choose compute time to see "
    "which rank causes the wait."
)
_LOW, _HIGH = 0.05, 0.98
LEAST_USUAL, MOST_USUAL = 1.25, 2.5  # where the map's scale ends, times the usual step


@dataclass(frozen=True)
class Mark:
    """Steps that a finding is about."""

    label: str
    first: int
    last: int
    fault: bool


def over_run(
    times: StepTimes, found: Sequence[Regime], marks: Sequence[Mark], what: str, theme: Theme
) -> Drawing:
    """Draw the series; of a long run each point is the longest of some neighbouring steps."""
    if not times.steps:
        return empty(theme, NO_STEPS)
    columns = step_times.split_evenly(len(times.steps), MOST_POINTS)
    shown = marks[:MOST_MARKS]
    drawn = figure(
        theme,
        _longest(times, columns, theme),
        _usual(times, columns, theme),
        _levels(times, found, theme),
        **_over_run_axes(times, shown),
    )
    for row, mark in enumerate(shown):
        _add_mark(drawn, mark, row, _place(mark, times.steps), theme)
    return Drawing(drawn, over_run_summary(times, found, what), over_run_table(times, found))


def over_run_summary(times: StepTimes, found: Sequence[Regime], what: str) -> str:
    """Return the median, the longest, and the regimes."""
    usual = float(np.nanmedian(times.usual_ns))
    worst = int(np.argmax(times.longest_ns))
    longest = (
        f"the longest is {text.duration(float(times.longest_ns[worst]))}, on rank "
        f"{times.longest_rank[worst]} in step {times.steps[worst]}."
    )
    begin = f"{what[:1].upper()}{what[1:]}: {text.duration(usual)} on the median rank; {longest}"
    if len(found) < 2:
        return f"{begin} One regime over the whole run."
    parts = [
        f"{text.duration(part.level)} in {text.steps(times.steps[part.first], times.steps[part.last])}"
        for part in found[:5]
    ]
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return f"{begin} Regimes: {', '.join(parts)}{more}."


def over_run_table(times: StepTimes, found: Sequence[Regime]) -> list[dict[str, Any]]:
    """List the regimes."""
    first = found[0].level if found else 1.0
    return [
        {
            "regime": number,
            "first step": times.steps[part.first],
            "last step": times.steps[part.last],
            "level": quantity.time(part.level),
            "vs. first": quantity.change(part.level / max(first, 1e-9) - 1),
            "longest": quantity.time(float(times.longest_ns[part.first : part.last + 1].max())),
        }
        for number, part in enumerate(found, 1)
    ]


def _longest(times: StepTimes, columns: list[slice], theme: Theme) -> go.Scatter:
    at = [part.start + int(times.longest_ns[part].argmax()) for part in columns]
    values = [float(times.longest_ns[place]) for place in at]
    steps = [times.steps[place] for place in at]
    return go.Scatter(
        name="slowest rank",
        x=steps,
        y=values,
        mode="lines+markers" if len(at) <= MOST_POINTS / 4 else "lines",
        line={"color": theme.quiet, "width": 1},
        marker={"size": 4, "color": theme.quiet},
        customdata=[
            [step, times.longest_rank[place], text.duration(value)]
            for step, place, value in zip(steps, at, values, strict=True)
        ],
        hovertemplate="step %{x}, slowest: rank %{customdata[1]}: %{customdata[2]}<extra></extra>",
    )


def _usual(times: StepTimes, columns: list[slice], theme: Theme) -> go.Scatter:
    steps, values = [], []
    for part in columns:
        known = times.usual_ns[part]
        known = known[np.isfinite(known)]
        steps.append(times.steps[part.start])
        values.append(float(np.median(known)) if len(known) else None)
    return go.Scatter(
        name="median rank",
        x=steps,
        y=values,
        mode="lines",
        line={"color": theme.accent, "width": 1.6},
        customdata=[
            [step, None, text.duration(v or 0.0)] for step, v in zip(steps, values, strict=True)
        ],
        hovertemplate="step %{x}, median rank: %{customdata[2]}<extra></extra>",
    )


def _levels(times: StepTimes, found: Sequence[Regime], theme: Theme) -> go.Scatter:
    """Draw each regime's level as a line of its own."""
    steps: list[float | None] = []
    levels: list[float | None] = []
    for part in found if len(found) > 1 else ():
        steps += [times.steps[part.first] - 0.5, times.steps[part.last] + 0.5, None]
        levels += [part.level, part.level, None]
    return go.Scatter(
        name="regime level",
        x=steps,
        y=levels,
        mode="lines",
        line={"color": theme.text, "width": 2.2, "dash": "dash"},
        hoverinfo="skip",
    )


def _place(mark: Mark, steps: Sequence[int]) -> str:
    """Choose to which side of its middle a label grows: never out of the plot."""
    share = ((mark.first + mark.last) / 2 - steps[0]) / max(steps[-1] - steps[0], 1)
    return "left" if share < 1 / 3 else "center" if share <= 2 / 3 else "right"


def _add_mark(drawn: go.Figure, mark: Mark, row: int, anchor: str, theme: Theme) -> None:
    colour = theme.loss if mark.fault else theme.secondary
    drawn.add_vrect(
        x0=mark.first - 0.5, x1=mark.last + 0.5, fillcolor=colour, opacity=0.09, line_width=0
    )
    drawn.add_annotation(
        x=(mark.first + mark.last) / 2,
        xanchor=anchor,
        y=1,
        yref="paper",
        yanchor="top",
        yshift=-15 * row,
        text=mark.label,
        showarrow=False,
        font={"size": 11, "color": colour},
    )


def _over_run_axes(times: StepTimes, marks: Sequence[Mark]) -> dict[str, Any]:
    usual = float(np.nanmedian(times.usual_ns))
    high = min(float(np.nanmax(times.longest_ns)), max(FAR * usual, _most_usual(times)) or 1.0)
    top = high * (1.12 + 0.08 * len(marks))
    return {
        "xaxis": {"title": {"text": "step"}, "showgrid": False, "fixedrange": True},
        "yaxis": axes.durations(top) | {"range": [0, top]},
        "showlegend": True,
        "hovermode": "closest",
        "margin": {"t": 30},
    }


def _most_usual(times: StepTimes) -> float:
    """Return what nearly all steps stay below."""
    return 1.1 * float(np.quantile(times.longest_ns, 0.98))


def by_rank(grid: StepGrid, theme: Theme, marked: tuple[int, int] | None = None) -> Drawing:
    """Draw the cells; the scale ends at what few columns exceed, as a first step may be very long."""
    cells, steps, ranks = grid.cells_ns, grid.times.steps, grid.times.ranks
    if not cells.size or np.isnan(cells).all():
        return empty(theme, NO_STEPS)
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
        colorbar=_colour_bar(low, high),
        text=[[text.duration(float(ns)) for ns in row] for row in np.nan_to_num(cells)],
        hovertemplate="%{y}, step %{x}: %{text}<extra></extra>",
    )
    return Drawing(
        figure(theme, trace, **ranks_and_steps(labels, theme, marked)),
        by_rank_summary(grid),
        by_rank_table(grid),
    )


def by_rank_summary(grid: StepGrid) -> str:
    """Return the longest, and what a cell stands for."""
    cells = np.nan_to_num(grid.cells_ns, nan=-1)
    row, column = np.unravel_index(int(cells.argmax()), cells.shape)
    rank, step = grid.longest(int(row), int(column))
    ranks = max(part.stop - part.start for part in grid.rows)
    steps = max(part.stop - part.start for part in grid.columns)
    shared = (
        f" Each cell is the maximum over up to {text.count(ranks, 'rank')} and "
        f"{text.count(steps, 'step')}."
        if ranks * steps > 1
        else ""
    )
    longest = text.duration(float(cells[row, column]))
    alone = _alone(grid.cells_ns[:, column])
    where = f"on rank {rank} in" if alone else "in"
    hint = ALIKE if len(cells) > 1 and not alone else ""
    return f"The longest is {longest}, {where} step {step}.{hint}{shared}"


def by_rank_table(grid: StepGrid) -> list[dict[str, Any]]:
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
                {"rank": rank, "step": step, "duration": quantity.time(float(cells[row, column]))}
            )
    return rows


def _alone(column: Floats) -> bool:
    """Return whether some rank took clearly longer in a step than another."""
    return float(np.nanmax(column)) > (1 + SAME) * float(np.nanmin(column))


def _scale(cells: Floats) -> tuple[float, float]:
    """Choose the scale by the usual step: neither noise nor a few very long steps use its colours up."""
    usual = float(np.nanmedian(cells))
    low = min(float(np.nanquantile(cells, _LOW)), usual)
    worst = np.nan_to_num(cells).max(axis=0)
    most = float(np.quantile(worst, _HIGH))
    return low, max(min(most, MOST_USUAL * usual), LEAST_USUAL * usual, 1.0)


def _colour_bar(low: float, high: float) -> dict[str, Any]:
    ticks = axes.durations(high, low)
    return {"tickvals": ticks["tickvals"], "ticktext": ticks["ticktext"]}


def distribution(times: StepTimes, what: str, theme: Theme) -> Drawing:
    """Draw the distribution."""
    known = np.isfinite(times.sample_ns)
    values = times.sample_ns[known]
    if not values.size:
        return empty(theme, NO_STEPS)
    edges = histogram.edges_of(values)
    counts = np.histogram(values, edges)[0].astype(float)
    bars = [histogram.Bars(what, edges, counts, theme.accent, _examples(times, known, edges))]
    quantiles = np.quantile(values, [share for _, share in histogram.NAMED]).tolist()
    names = [name for name, _ in histogram.NAMED]
    drawn = histogram.draw(bars, what, COUNTED, theme)
    histogram.mark(drawn, list(zip(names, quantiles, strict=True)), theme)
    return Drawing(drawn, _distribution_summary(times, quantiles), histogram.rows(bars, COUNTED))


def _examples(times: StepTimes, known: Any, edges: Floats) -> list[list[int] | None]:
    """Return rank and step of the longest of every bar."""
    ranks, columns = np.nonzero(known)
    values = times.sample_ns[known]
    order = np.argsort(values, kind="stable")
    places = np.searchsorted(values[order], edges[1:], side="left") - 1
    sampled = times.steps[:: times.every]
    found = order[np.maximum(places, 0)]
    return [
        [times.ranks[ranks[place]], sampled[columns[place]]] if values[place] >= low else None
        for place, low in zip(found.tolist(), edges[:-1].tolist(), strict=True)
    ]


def _distribution_summary(times: StepTimes, quantiles: list[float]) -> str:
    half, most, rare = (text.duration(value) for value in quantiles)
    sampled = f" Every {times.every}th step is counted." if times.every > 1 else ""
    return f"p50 {half}, p90 {most}, p99 {rare}.{sampled}"

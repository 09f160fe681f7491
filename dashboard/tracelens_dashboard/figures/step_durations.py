"""How long steps take: over the run, by rank and step, and as a distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from plotly import graph_objects as go

from tracelens.lod import step_times
from tracelens.model.fmt import capital
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, histogram, quantity
from tracelens_dashboard.figures.axes import rank_label, ranks_and_steps
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.figures.histogram import QUANTILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Flags, Floats
    from tracelens.lod.regimes import Regime
    from tracelens.lod.step_times import StepGrid, StepTimes
    from tracelens_dashboard.figures.drawing import Rows
    from tracelens_dashboard.theme import Theme

MOST_POINTS: Final = 800
MOST_MARKS: Final = 4
MOST_REGIMES_NAMED: Final = 5
FAR_RATIO: Final = (
    2.5  # to the median step: a first step that loads libraries does not set the scale
)
MOST_CELLS_LISTED: Final = 200
SAME_SHARE: Final = 0.05  # of a step's time: ranks that differ by less take the same
COUNTED: Final = "steps of ranks"
NO_STEPS: Final = "No steps recorded."
ALIKE: Final = (
    " All ranks take about the same time, since they wait for each other: choose compute time to see "
    "which rank causes the wait."
)
LOW_QUANTILE, HIGH_QUANTILE = 0.05, 0.98  # of cells, and of the longest of columns
LEAST_SCALE, MOST_SCALE = 1.25, 2.5  # where the map's scale ends, times the median step


class Mark(NamedTuple):
    """Steps that a finding is about."""

    label: str
    first: int
    last: int
    fault: bool


def over_run(
    times: StepTimes, levels: Sequence[Regime], marks: Sequence[Mark], measure: str, theme: Theme
) -> Drawing:
    """Draw the series; of a long run each point is the longest of some neighbouring steps."""
    if not times.steps:
        return empty(theme, NO_STEPS)
    neighbours = step_times.split_evenly(len(times.steps), MOST_POINTS)
    drawn_marks = marks[:MOST_MARKS]
    median_ns = float(np.nanmedian(times.usual_ns))
    most_ns = 1.1 * float(np.quantile(times.longest_ns, 0.98))  # nearly all steps are below
    high_ns = min(float(np.nanmax(times.longest_ns)), max(FAR_RATIO * median_ns, most_ns) or 1.0)
    top_ns = high_ns * (1.12 + 0.08 * len(drawn_marks))
    plot = figure(
        theme,
        _slowest_line(times, neighbours, theme),
        _median_line(times, neighbours, theme),
        _regime_lines(times, levels, theme),
        xaxis=axes.STEPS,
        yaxis=axes.durations(top_ns) | {"range": [0, top_ns]},
        showlegend=True,
        hovermode="closest",
        margin={"t": 30},
    )
    for row, mark in enumerate(drawn_marks):
        _add_mark(plot, mark, row, times.steps, theme)
    summary = over_run_summary(times, levels, measure)
    return Drawing(plot, summary, over_run_table(times, levels))


def over_run_summary(times: StepTimes, levels: Sequence[Regime], measure: str) -> str:
    """Return the median, the longest, and the regimes."""
    median_ns, index = float(np.nanmedian(times.usual_ns)), int(np.argmax(times.longest_ns))
    median_text = (
        f"{capital(measure)}: {text.duration(median_ns)} on the median rank; the longest is "
        f"{text.duration(float(times.longest_ns[index]))}, on rank {times.longest_rank[index]} in step "
        f"{times.steps[index]}."
    )
    if len(levels) < 2:
        return f"{median_text} One regime over the whole run."
    regimes = [
        f"{text.duration(one.level)} in {text.steps(times.steps[one.first], times.steps[one.last])}"
        for one in levels[:MOST_REGIMES_NAMED]
    ]
    others = len(levels) - MOST_REGIMES_NAMED
    return (
        f"{median_text} Regimes: {', '.join(regimes)}{f' and {others} more' if others > 0 else ''}."
    )


def over_run_table(times: StepTimes, levels: Sequence[Regime]) -> Rows:
    """List the regimes."""
    return [
        {
            "regime": number,
            "first step": times.steps[regime.first],
            "last step": times.steps[regime.last],
            "level": quantity.time(regime.level),
            "vs. first": quantity.change(regime.level / max(levels[0].level, 1e-9) - 1),
            "longest": quantity.time(float(times.longest_ns[regime.first : regime.last + 1].max())),
        }
        for number, regime in enumerate(levels, 1)
    ]


def _slowest_line(times: StepTimes, neighbours: list[slice], theme: Theme) -> go.Scatter:
    indexes = [steps.start + int(times.longest_ns[steps].argmax()) for steps in neighbours]
    longest_ns = [float(times.longest_ns[index]) for index in indexes]
    return go.Scatter(
        name="slowest rank",
        x=[times.steps[index] for index in indexes],
        y=longest_ns,
        mode="lines+markers" if len(indexes) <= MOST_POINTS / 4 else "lines",
        line={"color": theme.quiet, "width": 1},
        marker={"size": 4, "color": theme.quiet},
        customdata=[
            [times.steps[index], times.longest_rank[index], text.duration(ns)]
            for index, ns in zip(indexes, longest_ns, strict=True)
        ],
        hovertemplate="step %{x}, slowest: rank %{customdata[1]}: %{customdata[2]}<extra></extra>",
    )


def _median_line(times: StepTimes, neighbours: list[slice], theme: Theme) -> go.Scatter:
    steps, medians_ns = [times.steps[part.start] for part in neighbours], []
    for part in neighbours:
        known_ns = times.usual_ns[part]
        known_ns = known_ns[np.isfinite(known_ns)]
        medians_ns.append(float(np.median(known_ns)) if len(known_ns) else None)
    return go.Scatter(
        name="median rank",
        x=steps,
        y=medians_ns,
        mode="lines",
        line={"color": theme.accent, "width": 1.6},
        customdata=[
            [step, None, text.duration(ns or 0.0)]
            for step, ns in zip(steps, medians_ns, strict=True)
        ],
        hovertemplate="step %{x}, median rank: %{customdata[2]}<extra></extra>",
    )


def _regime_lines(times: StepTimes, levels: Sequence[Regime], theme: Theme) -> go.Scatter:
    """Draw each regime's level as a line of its own."""
    steps: list[float | None] = []
    levels_ns: list[float | None] = []
    for regime in levels if len(levels) > 1 else ():
        steps += [times.steps[regime.first] - 0.5, times.steps[regime.last] + 0.5, None]
        levels_ns += [regime.level, regime.level, None]
    return go.Scatter(
        name="regime level",
        x=steps,
        y=levels_ns,
        mode="lines",
        line={"color": theme.text, "width": 2.2, "dash": "dash"},
        hoverinfo="skip",
    )


def _add_mark(plot: go.Figure, mark: Mark, row: int, steps: Sequence[int], theme: Theme) -> None:
    colour = theme.loss if mark.fault else theme.secondary
    middle = (mark.first + mark.last) / 2
    share = (middle - steps[0]) / max(steps[-1] - steps[0], 1)
    # A label grows to the side on which there is more room: never out of the plot.
    anchor = "left" if share < 1 / 3 else "center" if share <= 2 / 3 else "right"
    sides = {"x0": mark.first - 0.5, "x1": mark.last + 0.5}
    plot.add_vrect(**sides, fillcolor=colour, opacity=0.09, line_width=0)
    plot.add_annotation(
        x=middle,
        xanchor=anchor,
        y=1,
        yref="paper",
        yanchor="top",
        yshift=-15 * row,
        text=mark.label,
        showarrow=False,
        font={"size": 11, "color": colour},
    )


def by_rank(grid: StepGrid, theme: Theme, marked: tuple[int, int] | None = None) -> Drawing:
    """Draw the cells; the scale ends at what few columns exceed, as a first step may be very long."""
    cells_ns, steps, ranks = grid.cells_ns, grid.times.steps, grid.times.ranks
    if not cells_ns.size or np.isnan(cells_ns).all():
        return empty(theme, NO_STEPS)
    labels = [rank_label(ranks[group]) for group in grid.rows]
    low_ns, high_ns = _choose_scale(cells_ns)
    ticks = axes.durations(high_ns, low_ns)
    trace = go.Heatmap(
        z=cells_ns.astype(np.float32),
        x=[steps[group.start] for group in grid.columns],
        y=labels,
        colorscale=theme.colorscale,
        zmin=low_ns,
        zmax=high_ns,
        hoverongaps=False,
        colorbar={"tickvals": ticks["tickvals"], "ticktext": ticks["ticktext"]},
        text=[[text.duration(float(ns)) for ns in row] for row in np.nan_to_num(cells_ns)],
        hovertemplate="%{y}, step %{x}: %{text}<extra></extra>",
    )
    plot = figure(theme, trace, **ranks_and_steps(labels, theme, marked))
    return Drawing(plot, by_rank_summary(grid), by_rank_table(grid))


def by_rank_summary(grid: StepGrid) -> str:
    """Return the longest step, and how many ranks and steps share a cell."""
    cells_ns = np.nan_to_num(grid.cells_ns, nan=-1)
    row, column = np.unravel_index(int(cells_ns.argmax()), cells_ns.shape)
    rank, step = grid.longest(int(row), int(column))
    ranks = max(part.stop - part.start for part in grid.rows)
    steps = max(part.stop - part.start for part in grid.columns)
    step_ns = grid.cells_ns[:, column]
    is_alone = float(np.nanmax(step_ns)) > (1 + SAME_SHARE) * float(np.nanmin(step_ns))
    hint = ALIKE if len(cells_ns) > 1 and not is_alone else ""
    if ranks * steps > 1:
        hint += (
            f" Each cell is the maximum over up to {text.count(ranks, 'rank')} and "
            f"{text.count(steps, 'step')}."
        )
    longest = text.duration(float(cells_ns[row, column]))
    return (
        f"The longest is {longest}, {f'on rank {rank} in' if is_alone else 'in'} step {step}.{hint}"
    )


def by_rank_table(grid: StepGrid) -> Rows:
    """List the longest cells."""
    cells_ns = np.nan_to_num(grid.cells_ns, nan=-1)
    count = min(cells_ns.size, MOST_CELLS_LISTED)
    longest = np.argpartition(-cells_ns.ravel(), count - 1)[:count]
    rows = []
    for cell in longest[np.argsort(-cells_ns.ravel()[longest], kind="stable")].tolist():
        row, column = divmod(cell, cells_ns.shape[1])
        if cells_ns[row, column] >= 0:
            rank, step = grid.longest(row, column)
            duration = quantity.time(float(cells_ns[row, column]))
            rows.append({"rank": rank, "step": step, "duration": duration})
    return rows


def _choose_scale(cells_ns: Floats) -> tuple[float, float]:
    """Choose the scale by the median step: neither noise nor few long steps use its colours up."""
    median_ns = float(np.nanmedian(cells_ns))
    low_ns = min(float(np.nanquantile(cells_ns, LOW_QUANTILE)), median_ns)
    longest_ns = np.nan_to_num(cells_ns).max(axis=0)
    high_ns = min(float(np.quantile(longest_ns, HIGH_QUANTILE)), MOST_SCALE * median_ns)
    return low_ns, max(high_ns, LEAST_SCALE * median_ns, 1.0)


def distribution(times: StepTimes, measure: str, theme: Theme) -> Drawing:
    """Draw the distribution."""
    is_known = np.isfinite(times.sample_ns)
    sample_ns = times.sample_ns[is_known]
    if not sample_ns.size:
        return empty(theme, NO_STEPS)
    edges = histogram.choose_edges(sample_ns)
    counts = np.histogram(sample_ns, edges)[0].astype(float)
    examples = _examples(times, is_known, edges)
    series = [histogram.Series(measure, edges, counts, theme.accent, examples)]
    quantiles_ns = np.quantile(sample_ns, list(QUANTILES.values())).tolist()
    plot = histogram.draw(series, measure, COUNTED, theme)
    histogram.mark(plot, list(zip(QUANTILES, quantiles_ns, strict=True)), theme)
    p50, p90, p99 = map(text.duration, quantiles_ns)
    sampled = f" Every {times.every}th step is counted." if times.every > 1 else ""
    summary = f"p50 {p50}, p90 {p90}, p99 {p99}.{sampled}"
    return Drawing(plot, summary, histogram.rows(series, COUNTED))


def _examples(times: StepTimes, is_known: Flags, edges: Floats) -> list[Any]:
    """Return rank and step of the longest of every bar."""
    rows, columns = np.nonzero(is_known)
    sample_ns = times.sample_ns[is_known]
    order = np.argsort(sample_ns, kind="stable")
    last_in_bar = np.searchsorted(sample_ns[order], edges[1:], side="left") - 1
    longest = order[np.maximum(last_in_bar, 0)]
    sampled_steps = times.steps[:: times.every]
    return [
        [times.ranks[rows[index]], sampled_steps[columns[index]]]
        if sample_ns[index] >= low_ns
        else None
        for index, low_ns in zip(longest.tolist(), edges[:-1].tolist(), strict=True)
    ]

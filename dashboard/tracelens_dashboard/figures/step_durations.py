"""How long steps take: over the run, by rank and step, and as a distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from plotly import graph_objects as go

from tracelens.lod.step_times import split_evenly
from tracelens.model.fmt import capital
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, drawing, histogram, quantity
from tracelens_dashboard.figures.axes import rank_label, ranks_and_steps
from tracelens_dashboard.figures.drawing import Drawing, Rows, empty, figure
from tracelens_dashboard.figures.histogram import QUANTILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Flags, Floats
    from tracelens.lod.regimes import Regime
    from tracelens.lod.step_times import StepGrid, StepTimes
    from tracelens_dashboard.theme import Theme

MOST_POINTS: Final = 800
MOST_MARKS: Final = 4
MOST_REGIMES_NAMED: Final = 5
FAR_RATIO: Final = 2.5  # to the median step: a first step that loads libraries sets no scale
MOST_CELLS_LISTED: Final = 200
SAME_SHARE: Final = 0.05  # of a step's time: ranks that differ by less take the same
COUNTED: Final = "steps of ranks"
NO_STEPS: Final = "No steps recorded."
ALIKE: Final = (
    " All ranks take about the same time, since they wait for each other: choose compute time to "
    "see which rank causes the wait."
)
LOW_QUANTILE, HIGH_QUANTILE = 0.05, 0.98  # of cells, and of the longest of columns
LEAST_SCALE, MOST_SCALE = 1.25, 2.5  # where the map's scale ends, times the median step


class Mark(NamedTuple):
    """Steps that a finding is about."""

    label: str
    first_step: int
    last_step: int
    is_fault: bool


def over_run(
    step_times: StepTimes,
    regimes: Sequence[Regime],
    marks: Sequence[Mark],
    measure_name: str,
    theme: Theme,
) -> Drawing:
    """Draw the slowest and the median rank's time per step; `measure_name` is what they measure."""
    # By step: `longest_ns` of the slowest rank, `median_ns` of the median one (NaN without any).
    if not step_times.steps:
        return empty(theme, NO_STEPS)
    step_groups = split_evenly(len(step_times.steps), MOST_POINTS)
    drawn_marks = marks[:MOST_MARKS]
    median_ns = float(np.nanmedian(step_times.rank_median_ns))
    nearly_all_ns = 1.1 * float(
        np.quantile(step_times.longest_ns, q=0.98)
    )  # nearly all steps are below
    limit_ns = max(FAR_RATIO * median_ns, nearly_all_ns) or 1.0
    highest_ns = min(float(np.nanmax(step_times.longest_ns)), limit_ns)
    top_ns = highest_ns * (1.12 + 0.08 * len(drawn_marks))
    plot = figure(
        theme,
        _draw_slowest(step_times, step_groups, theme),
        _draw_medians(step_times, step_groups, theme),
        _draw_regimes(step_times, regimes, theme),
        xaxis=axes.STEPS,
        yaxis=axes.durations(top_ns) | {"range": [0, top_ns]},
        showlegend=True,
        hovermode="closest",
        margin={"t": 30},
    )
    for label_row, mark in enumerate(drawn_marks):
        _add_mark(plot, mark, label_row, step_times.steps, theme)
    summary = over_run_summary(step_times, regimes, measure_name)
    return Drawing(plot, summary, over_run_table(step_times, regimes))


def over_run_summary(step_times: StepTimes, regimes: Sequence[Regime], measure_name: str) -> str:
    """Return the median step, the longest one, and the regimes if there are several."""
    # A regime is a range of step indexes, with the median of their times, in ns.
    median_ns = float(np.nanmedian(step_times.rank_median_ns))
    longest_index = int(np.argmax(step_times.longest_ns))
    median_text = (
        f"{capital(measure_name)}: {text.duration(median_ns)} on the median rank; the longest is "
        f"{text.duration(float(step_times.longest_ns[longest_index]))}, on rank "
        f"{step_times.longest_ranks[longest_index]} in step {step_times.steps[longest_index]}."
    )
    if len(regimes) < 2:
        return f"{median_text} One regime over the whole run."
    regime_texts = [
        f"{text.duration(regime.median)} in "
        f"{text.steps(step_times.steps[regime.first_index], step_times.steps[regime.last_index])}"
        for regime in regimes[:MOST_REGIMES_NAMED]
    ]
    other_count = len(regimes) - MOST_REGIMES_NAMED
    others_text = f" and {other_count} more" if other_count > 0 else ""
    return f"{median_text} Regimes: {', '.join(regime_texts)}{others_text}."


def over_run_table(step_times: StepTimes, regimes: Sequence[Regime]) -> Rows:
    """List the regimes: each has the indexes of its first and last step, and a median in ns."""
    return [
        {
            "regime": number,
            "first step": step_times.steps[regime.first_index],
            "last step": step_times.steps[regime.last_index],
            "level": quantity.time(regime.median),
            "vs. first": quantity.change(regime.median / max(regimes[0].median, 1e-9) - 1),
            "longest": quantity.time(
                float(step_times.longest_ns[regime.first_index : regime.last_index + 1].max())
            ),
        }
        for number, regime in enumerate(regimes, 1)
    ]


def _draw_slowest(step_times: StepTimes, step_groups: list[slice], theme: Theme) -> go.Scatter:
    """Draw the longest step of any rank in each group of steps (indexes)."""
    step_indexes = [
        group.start + int(step_times.longest_ns[group].argmax()) for group in step_groups
    ]
    longest_ns = [float(step_times.longest_ns[step_index]) for step_index in step_indexes]
    return drawing.lines(
        [step_times.steps[step_index] for step_index in step_indexes],
        longest_ns,
        {"color": theme.quiet_colour, "width": 1},
        "step %{x}, slowest: rank %{customdata[1]}: %{customdata[2]}",
        name="slowest rank",
        mode="lines+markers" if len(step_indexes) <= MOST_POINTS / 4 else "lines",
        marker={"size": 4, "color": theme.quiet_colour},
        customdata=[
            [step_times.steps[step_index], step_times.longest_ranks[step_index], text.duration(ns)]
            for step_index, ns in zip(step_indexes, longest_ns, strict=True)
        ],
    )


def _draw_medians(step_times: StepTimes, step_groups: list[slice], theme: Theme) -> go.Scatter:
    """Draw the median rank's time in each group of steps; None where no rank has one."""
    first_steps, medians_ns = [step_times.steps[group.start] for group in step_groups], []
    for group in step_groups:
        known_ns = step_times.rank_median_ns[group]
        known_ns = known_ns[np.isfinite(known_ns)]
        medians_ns.append(float(np.median(known_ns)) if len(known_ns) else None)
    return drawing.lines(
        first_steps,
        medians_ns,
        {"color": theme.accent_colour, "width": 1.6},
        "step %{x}, median rank: %{customdata[2]}",
        name="median rank",
        customdata=[
            [step, None, text.duration(ns or 0.0)]
            for step, ns in zip(first_steps, medians_ns, strict=True)
        ],
    )


def _draw_regimes(step_times: StepTimes, regimes: Sequence[Regime], theme: Theme) -> go.Scatter:
    """Draw each regime's median as a line of its own, over its range of step indexes."""
    steps: list[float | None] = []
    levels_ns: list[float | None] = []
    for regime in regimes if len(regimes) > 1 else ():
        steps += [
            step_times.steps[regime.first_index] - 0.5,
            step_times.steps[regime.last_index] + 0.5,
            None,
        ]
        levels_ns += [regime.median, regime.median, None]
    line = {"color": theme.text_colour, "width": 2.2, "dash": "dash"}
    return drawing.lines(steps, levels_ns, line, name="regime level")


def _add_mark(
    plot: go.Figure, mark: Mark, label_row: int, steps: Sequence[int], theme: Theme
) -> None:
    """Shade the steps of a finding, and name it `label_row` lines below the top."""
    colour = theme.loss_colour if mark.is_fault else theme.secondary_colour
    middle_step = (mark.first_step + mark.last_step) / 2
    position_share = (middle_step - steps[0]) / max(steps[-1] - steps[0], 1)
    # A label grows to the side on which there is more room: never out of the plot.
    anchor = "left" if position_share < 1 / 3 else "center" if position_share <= 2 / 3 else "right"
    extent = {"x0": mark.first_step - 0.5, "x1": mark.last_step + 0.5}
    plot.add_vrect(**extent, fillcolor=colour, opacity=0.09, line_width=0)
    position = {"x": middle_step, "xanchor": anchor, "yshift": -15 * label_row}
    plot.add_annotation(drawing.label(mark.label, colour, position, drawing.AT_TOP))


def by_rank(grid: StepGrid, theme: Theme, marked_steps: tuple[int, int] | None = None) -> Drawing:
    """Draw the time of each rank in each step; `marked_steps`, first to last, are framed."""
    # A cell is the longest time of a slice of ranks in a slice of steps; slices are of indexes.
    cells_ns, steps, ranks = (
        grid.longest_time_ns,
        grid.category_times.steps,
        grid.category_times.ranks,
    )
    if not cells_ns.size or np.isnan(cells_ns).all():
        return empty(theme, NO_STEPS)
    labels = [rank_label(ranks[group]) for group in grid.rank_slices]
    low_ns, high_ns = _choose_scale(cells_ns)
    ticks = axes.durations(high_ns, low_ns)
    trace = go.Heatmap(
        z=cells_ns.astype(np.float32),
        x=[steps[group.start] for group in grid.step_slices],
        y=labels,
        colorscale=theme.colorscale,
        zmin=low_ns,
        zmax=high_ns,
        hoverongaps=False,
        colorbar={"tickvals": ticks["tickvals"], "ticktext": ticks["ticktext"]},
        text=[[text.duration(float(ns)) for ns in row] for row in np.nan_to_num(cells_ns)],
        hovertemplate="%{y}, step %{x}: %{text}<extra></extra>",
    )
    plot = figure(theme, trace, **ranks_and_steps(labels, theme, marked_steps))
    return Drawing(plot, by_rank_summary(grid), by_rank_table(grid))


def by_rank_summary(grid: StepGrid) -> str:
    """Return the longest step and its rank, and how many ranks and steps share a cell."""
    cells_ns = np.nan_to_num(grid.longest_time_ns, nan=-1)  # [row, column]
    row_index, column_index = np.unravel_index(int(cells_ns.argmax()), cells_ns.shape)
    rank, step = grid.find_longest(int(row_index), int(column_index))
    ranks_per_cell = max(group.stop - group.start for group in grid.rank_slices)
    steps_per_cell = max(group.stop - group.start for group in grid.step_slices)
    column_ns = grid.longest_time_ns[:, column_index]
    ranks_differ = float(np.nanmax(column_ns)) > (1 + SAME_SHARE) * float(np.nanmin(column_ns))
    hint = ALIKE if len(cells_ns) > 1 and not ranks_differ else ""
    if ranks_per_cell * steps_per_cell > 1:
        hint += (
            f" Each cell is the maximum over up to {text.count(ranks_per_cell, 'rank')} and "
            f"{text.count(steps_per_cell, 'step')}."
        )
    longest_text = text.duration(float(cells_ns[row_index, column_index]))
    where_text = f"on rank {rank} in" if ranks_differ else "in"
    return f"The longest is {longest_text}, {where_text} step {step}.{hint}"


def by_rank_table(grid: StepGrid) -> Rows:
    """List the longest cells, each with the rank and the step that it shows."""
    cells_ns = np.nan_to_num(grid.longest_time_ns, nan=-1)  # [row, column]; -1: no rank took part
    listed_count = min(cells_ns.size, MOST_CELLS_LISTED)
    longest_cells = np.argpartition(-cells_ns.ravel(), listed_count - 1)[:listed_count]
    longest_first = np.argsort(-cells_ns.ravel()[longest_cells], kind="stable")
    table_rows = []
    for cell in longest_cells[longest_first].tolist():
        row_index, column_index = divmod(cell, cells_ns.shape[1])
        if cells_ns[row_index, column_index] >= 0:
            rank, step = grid.find_longest(row_index, column_index)
            duration = quantity.time(float(cells_ns[row_index, column_index]))
            table_rows.append({"rank": rank, "step": step, "duration": duration})
    return table_rows


def _choose_scale(cells_ns: Floats) -> tuple[float, float]:
    """Return the ends of the colour scale, in ns: neither noise nor few long steps use it up."""
    # `cells_ns` is [row, column], NaN where no rank took part.
    median_ns = float(np.nanmedian(cells_ns))
    low_ns = min(float(np.nanquantile(cells_ns, LOW_QUANTILE)), median_ns)
    column_max_ns = np.nan_to_num(cells_ns).max(axis=0)
    high_ns = min(float(np.quantile(column_max_ns, HIGH_QUANTILE)), MOST_SCALE * median_ns)
    return low_ns, max(high_ns, LEAST_SCALE * median_ns, 1.0)


def distribution(step_times: StepTimes, measure_name: str, theme: Theme) -> Drawing:
    """Draw how many steps of ranks lasted how long; `measure_name` is what `step_times` measure."""
    # The sample is [rank, sampled step] of every `times.sample_stride`-th step, NaN if absent.
    is_known = np.isfinite(step_times.sample_ns)
    sample_ns = step_times.sample_ns[is_known]
    if not sample_ns.size:
        return empty(theme, NO_STEPS)
    edges_ns = histogram.choose_edges(sample_ns)
    counts = np.histogram(sample_ns, edges_ns)[0].astype(float)
    examples = _choose_examples(step_times, is_known, edges_ns)
    series = [histogram.Series(measure_name, edges_ns, counts, theme.accent_colour, examples)]
    quantiles_ns = np.quantile(sample_ns, list(QUANTILES.values())).tolist()
    plot = histogram.draw(series, measure_name, COUNTED, theme)
    histogram.mark(plot, list(zip(QUANTILES, quantiles_ns, strict=True)), theme)
    p50, p90, p99 = map(text.duration, quantiles_ns)
    sampled_text = (
        f" Every {step_times.sample_stride}th step is counted."
        if step_times.sample_stride > 1
        else ""
    )
    summary = f"p50 {p50}, p90 {p90}, p99 {p99}.{sampled_text}"
    return Drawing(plot, summary, histogram.rows(series, COUNTED))


def _choose_examples(step_times: StepTimes, is_known: Flags, edges_ns: Floats) -> list[Any]:
    """Return [rank, step] of the longest step between neighbouring edges; None for an empty bar."""
    # `is_known` is [rank, sampled step]; every `times.sample_stride`-th step is sampled.
    rank_indexes, sample_indexes = np.nonzero(is_known)
    sample_ns = step_times.sample_ns[is_known]
    order = np.argsort(sample_ns, kind="stable")
    last_in_bar = np.searchsorted(sample_ns[order], edges_ns[1:], side="left") - 1
    longest_in_bar = order[np.maximum(last_in_bar, 0)]
    sampled_steps = step_times.steps[:: step_times.sample_stride]
    return [
        [step_times.ranks[rank_indexes[sample_index]], sampled_steps[sample_indexes[sample_index]]]
        if sample_ns[sample_index] >= low_ns
        else None
        for sample_index, low_ns in zip(
            longest_in_bar.tolist(), edges_ns[:-1].tolist(), strict=True
        )
    ]

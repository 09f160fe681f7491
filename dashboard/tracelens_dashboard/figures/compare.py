"""Runs compared: step time by category, compute time by rank and step, ratios to baselines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens.comparison.series import (
    CATEGORY_OF,
    EFFICIENCY,
    STEP_TIME,
    Difference,
    RunMetrics,
    name_metric,
)
from tracelens.lod.step_times import split_evenly
from tracelens.model import fmt
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, drawing
from tracelens_dashboard.figures.axes import MOST_COLUMNS, MOST_ROWS, rank_label, ranks_and_steps
from tracelens_dashboard.figures.drawing import Drawing, Rows, bars, dots, empty, figure, intervals
from tracelens_dashboard.theme import Theme, name_of

if TYPE_CHECKING:
    from tracelens.arrays import Floats
    from tracelens.comparison.changes import Comparison, Metric

NOTHING: Final = "The two runs have no rank, or no step, in common."
NO_STEPS: Final = "One of the runs has no steps."
MOST_RANKS_LISTED: Final = 200
LEAST_NS: Final = 1_000.0  # of the scale: less is nothing
SCALE_QUANTILE: Final = 0.98  # of the columns' largest differences
# The end of an interval far below the least ratio is cut off: it may be 0, which has no logarithm.
MOST_BELOW_LEAST: Final = 4.0
RATIO_TICKS: Final = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0)
MOST_RATIO_TICKS: Final = 7
MIDDLE_QUANTILES: Final = (0.1, 0.5, 0.9)
NAMED_ROWS: Final = {
    "autorange": "reversed", "ticksuffix": " ", "fixedrange": True, "showgrid": False
}  # fmt: skip


def by_rank(difference: Difference, theme: Theme, *, step_ns: float = 0.0) -> Drawing:
    """Draw differences of compute time, rank by step: teal where this run is faster, else orange.

    Of neighbours that share a cell the largest difference is shown; the scale never ends below a
    twentieth of `step_ns`, the usual step's length, so that noise stays pale.
    """
    if not difference.difference_ns.size or np.isnan(difference.difference_ns).all():
        return empty(theme, NOTHING)
    rank_groups = split_evenly(len(difference.ranks), MOST_ROWS)
    step_groups = split_evenly(len(difference.steps), MOST_COLUMNS)
    rows_ns = _reduce_to_largest(difference.difference_ns, rank_groups, axis=0)
    cells_ns = _reduce_to_largest(rows_ns, step_groups, axis=1)
    labels = [rank_label(difference.ranks[group]) for group in rank_groups]
    column_max_ns = np.abs(np.nan_to_num(cells_ns)).max(axis=0)
    ceiling_ns = max(float(np.quantile(column_max_ns, SCALE_QUANTILE)), step_ns / 20, LEAST_NS)
    ticks = {
        "tickvals": [-ceiling_ns, 0.0, ceiling_ns],
        "ticktext": [_signed(-ceiling_ns), "0", _signed(ceiling_ns)],
    }
    trace = go.Heatmap(
        z=cells_ns.astype(np.float32),
        x=[difference.steps[group.start] for group in step_groups],
        y=labels,
        colorscale=[
            [0, theme.faster_colour],
            [0.5, theme.surface_colour],
            [1, theme.slower_colour],
        ],
        zmin=-ceiling_ns,
        zmax=ceiling_ns,
        hoverongaps=False,
        colorbar=ticks,
        text=[[_signed(float(ns)) for ns in row] for row in np.nan_to_num(cells_ns)],
        hovertemplate="%{y}, step %{x}: %{text}<extra></extra>",
    )
    plot = figure(theme, trace, **ranks_and_steps(labels, theme, marked_steps=None))
    return Drawing(plot, summary(difference), table(difference))


def summary(difference: Difference) -> str:
    """Name the rank for which the runs differ most, and what was compared."""
    mean_ns = _rank_means(difference)  # [rank]
    rank_index = int(np.abs(mean_ns).argmax())
    steps_text = text.count(len(difference.steps), "step")
    ranks_text = text.count(len(difference.ranks), "rank")
    return (
        f"Compute time minus that of the other run, in the {steps_text} and {ranks_text} of both. "
        f"Largest difference: rank {difference.ranks[rank_index]}, "
        f"{_signed(float(mean_ns[rank_index]))} per step on average."
    )


def table(difference: Difference) -> Rows:
    """List ranks, those that differ most first, each with the step in which it differs most."""
    # The difference is this run's compute time less the other's, [rank, step] in ns.
    mean_ns = _rank_means(difference)
    rows = []
    for rank_index in np.argsort(-np.abs(mean_ns), kind="stable")[:MOST_RANKS_LISTED].tolist():
        steps_ns = np.nan_to_num(difference.difference_ns[rank_index])
        step_index = int(np.abs(steps_ns).argmax())
        rows.append(
            {
                "rank": difference.ranks[rank_index],
                "difference, mean (ms)": round(float(mean_ns[rank_index]) / 1e6, 3),
                "difference, largest (ms)": round(float(steps_ns[step_index]) / 1e6, 3),
                "step of max": difference.steps[step_index],
                "other run's step": difference.other_steps[step_index],
            }
        )
    return rows


def _rank_means(difference: Difference) -> Floats:
    """Return the mean difference of each rank, [rank] in ns, over the steps that have one."""
    step_counts = np.maximum(np.sum(~np.isnan(difference.difference_ns), axis=1), 1)
    return np.asarray(np.nansum(difference.difference_ns, axis=1) / step_counts)


def _reduce_to_largest(cells: Floats, groups: list[slice], axis: int) -> Floats:
    """Reduce groups of rows (`axis` 0) or columns (1) to the largest difference, NaN if all are."""
    reduced = []
    for group in groups:
        members = cells[group] if axis == 0 else cells[:, group].T
        magnitudes = np.where(np.isnan(members), -1.0, np.abs(members))
        reduced.append(np.take_along_axis(members, magnitudes.argmax(axis=0)[None], axis=0)[0])
    return np.stack(reduced, axis=axis)


def _signed(ns: float) -> str:
    sign = "+" if ns >= 0 else "\N{MINUS SIGN}"
    return f"{sign}{text.duration(abs(ns))}"


def by_category(phases: list[Metric], names: tuple[str, str], theme: Theme) -> Drawing:
    """Draw a usual step's time by category here and in the other run; `names` are theirs."""
    # A phase's change is from the other run (`before`) to this one (`after`), ns per step.
    times_by_category = [
        (name_of(CATEGORY_OF[phase.name]), phase.change.value_after, phase.change.value_before)
        for phase in phases
        if max(phase.change.value_after, phase.change.value_before) >= LEAST_NS
    ]
    if not times_by_category:
        return empty(theme, "No steps recorded.")
    categories, this_run_ns, other_run_ns = map(list, zip(*times_by_category, strict=True))
    traces = []
    for run_name, times_ns, colour in (
        (names[1], other_run_ns, theme.quiet_colour),
        (names[0], this_run_ns, theme.accent_colour),
    ):
        name, duration_texts = text.escape_name(run_name), list(map(text.duration, times_ns))
        hover = f"%{{y}}: %{{customdata}} per step<extra>{name}</extra>"
        options = {"name": name, "customdata": duration_texts, "hovertemplate": hover}
        traces.append(bars(categories, times_ns, colour, hover, **options))
    plot = figure(
        theme,
        *traces,
        barmode="group",
        bargap=0.3,
        showlegend=True,
        legend={"traceorder": "reversed"},
        xaxis=axes.durations(1.02 * max(this_run_ns + other_run_ns)),
        yaxis=NAMED_ROWS,
    )
    largest_sentence = (
        f"Largest change: {categories[0]}, {text.duration(this_run_ns[0])} per step here, "
        f"{text.duration(other_run_ns[0])} in the other run."
    )
    rows = [
        {
            "category": category,
            "here (ms per step)": round(this_ns / 1e6, 3),
            "other run (ms per step)": round(other_ns / 1e6, 3),
            "difference (ms per step)": round((this_ns - other_ns) / 1e6, 3),
        }
        for category, this_ns, other_ns in times_by_category
    ]
    return Drawing(plot, largest_sentence, rows)


def changes(comparison: Comparison, theme: Theme) -> Drawing:
    """Draw each metric's ratio to the baselines, if they have it, with its 95 % interval."""
    # A change is from the mean of the baselines (`before`) to the new run (`after`).
    drawn_metrics = [metric for metric in comparison.metrics if metric.change.value_before]
    if not drawn_metrics:
        return empty(theme, NO_STEPS)
    ratios = np.array(
        [metric.change.value_after / metric.change.value_before for metric in drawn_metrics]
    )
    cut_ratio = min([*ratios[ratios > 0], 1.0]) / MOST_BELOW_LEAST
    low_ratios, high_ratios = np.array([_ratio_interval(metric) for metric in drawn_metrics]).T
    low_ratios = np.maximum(low_ratios, cut_ratio)
    trace = dots(
        ratios,
        [text.escape_name(_name_metric(metric)) for metric in drawn_metrics],
        {"size": 10, "color": [_change_colour(metric, theme) for metric in drawn_metrics]},
        "%{y}: %{customdata}",
        error_x=intervals(low_ratios, ratios, high_ratios, theme.secondary_colour, thickness=1.5),
        customdata=[_ratio_text(metric) for metric in drawn_metrics],
    )
    line = {"color": theme.secondary_colour, "width": 1, "dash": "dot"}
    plot = figure(
        theme,
        trace,
        xaxis=ratio_axis(float(low_ratios.min()), float(high_ratios.max())),
        yaxis=NAMED_ROWS,
        shapes=[drawing.vertical_line(x=1, line=line) | {"layer": "below"}],
    )
    return Drawing(plot, _describe_changes(comparison), list(map(_change_row, comparison.metrics)))


def ratio_axis(low_ratio: float, high_ratio: float) -> dict[str, Any]:
    """Return a logarithmic axis of ratios that holds 1; half is as far as double."""
    low, high = min(low_ratio, 0.99) / 1.03, max(high_ratio, 1.01) * 1.03
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine_digits = (*RATIO_TICKS, 7.0, 8.0, 9.0, 9.5)
    digits = fine_digits if high / low < 2 else (*RATIO_TICKS[4:], 1.0, 7.0)
    candidates = sorted({round(digit * 10.0**power, 9) for power in powers for digit in digits})
    ticks = [tick for tick in candidates if low <= tick <= high]
    if len(ticks) > MOST_RATIO_TICKS:
        ticks = [tick for tick in ticks if _leading_digit(tick) in {1.0, 2.0, 5.0}]
    tick_stride = -(-len(ticks) // MOST_RATIO_TICKS)
    one_index = ticks.index(1.0) if 1.0 in ticks else 0  # the tick at 1 stays
    ticks = [tick for index, tick in enumerate(ticks) if (index - one_index) % tick_stride == 0]
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [f"{tick:g} \N{MULTIPLICATION SIGN}" for tick in ticks],
        "fixedrange": True,
    }


def _leading_digit(tick: float) -> float:
    return round(tick / 10.0 ** math.floor(math.log10(tick) + 1e-9), 6)


def _ratio_interval(metric: Metric) -> tuple[float, float]:
    """Return the ends of the 95 % interval of after / before; the ratio twice without one."""
    # The ends of a change are differences to `before`, the mean of the baselines.
    change = metric.change
    low_delta = change.difference if change.low_difference is None else change.low_difference
    high_delta = change.difference if change.high_difference is None else change.high_difference
    return 1 + low_delta / change.value_before, 1 + high_delta / change.value_before


def _name_metric(metric: Metric) -> str:
    name = name_metric(metric.name)
    return f"{name}, mean" if metric.statistic == "mean" and "mean" not in name else name


def _change_colour(metric: Metric, theme: Theme) -> str:
    if not metric.is_clear:
        return theme.quiet_colour
    is_worse = (metric.change.difference > 0) != (metric.name == EFFICIENCY)
    return theme.slower_colour if is_worse else theme.faster_colour


def _ratio_text(metric: Metric) -> str:
    """Return the ratio of a metric to the baselines in words, with its 95 % interval."""
    change = metric.change
    ratio_text = f"{change.value_after / change.value_before:.2f} times the baselines"
    if change.low_difference is None or change.high_difference is None:
        return f"{ratio_text}; too few steps for an interval"
    low_ratio, high_ratio = _ratio_interval(metric)
    return f"{ratio_text} (95 % interval {low_ratio:.2f} to {high_ratio:.2f})"


def _describe_changes(comparison: Comparison) -> str:
    """Return a sentence about the phases of a step that clearly changed, the largest first."""
    clear_phases = [
        phase for phase in comparison.phase_metrics if phase.is_clear and phase.change.value_before
    ]
    if not clear_phases:
        return "No part of a step differs clearly from the baselines."
    phase_texts = [f"{_name_metric(phase)} {_ratio_text(phase)}" for phase in clear_phases[:2]]
    others_text = f"; {len(clear_phases) - 2} more clearly changed" if len(clear_phases) > 2 else ""
    return fmt.capital("; ".join(phase_texts)) + others_text + "."


def _change_row(metric: Metric) -> dict[str, Any]:
    """Return a metric as a row of the table: efficiency in percent, times in ms."""
    # A change is from the mean of the baselines (`before`) to the new run (`after`).
    change = metric.change
    unit, factor = ("%", 0.01) if metric.name == EFFICIENCY else ("ms", 1e6)
    has_interval = bool(change.value_before) and change.low_difference is not None
    low_ratio, high_ratio = _ratio_interval(metric) if has_interval else (None, None)
    return {
        "per step": _name_metric(metric),
        "unit": unit,
        "baselines": round(change.value_before / factor, 3),
        "new": round(change.value_after / factor, 3),
        "ratio": round(change.value_after / change.value_before, 3)
        if change.value_before
        else None,
        "95 % from": None if low_ratio is None else round(low_ratio, 3),
        "95 % to": None if high_ratio is None else round(high_ratio, 3),
        "p (adjusted)": None if metric.p_value is None else round(metric.p_value, 4),
    }


def levels(comparison: Comparison, theme: Theme) -> Drawing:
    """Draw each run's median step and the middle 80 % of its steps, the new run on top."""
    runs = [run for run in (comparison.new_run, *comparison.baseline_runs) if run.step_count]
    if not runs:
        return empty(theme, NO_STEPS)
    # [run, quantile] in ns: p10, median and p90 of its steps
    spread_ns = np.array(
        [np.quantile(run.values_by_metric[STEP_TIME], MIDDLE_QUANTILES) for run in runs]
    )
    labels = [text.escape_name(run.name) for run in runs]
    colours = [
        theme.accent_colour if run is comparison.new_run else theme.secondary_colour for run in runs
    ]
    spread_lines = [
        drawing.lines([low, high], [label, label], {"color": colour, "width": 2}, showlegend=False)
        for (low, _, high), label, colour in zip(spread_ns.tolist(), labels, colours, strict=True)
    ]
    medians_ns = spread_ns[:, 1].tolist()
    median_dots = dots(
        medians_ns,
        labels,
        {"size": 10, "color": colours},
        "%{y}: median step %{text}, 80 % of them %{customdata}",
        customdata=[" to ".join(map(text.duration, (low, high))) for low, _, high in spread_ns],
        text=[text.duration(ns) for ns in medians_ns],
    )
    axis_begin_ns, axis_end_ns = float(spread_ns.min()), float(spread_ns.max())
    margin_ns = 0.06 * (axis_end_ns - axis_begin_ns) or 0.01 * axis_end_ns
    axis_begin_ns, axis_end_ns = max(axis_begin_ns - margin_ns, 0.0), axis_end_ns + margin_ns
    plot = figure(
        theme,
        *spread_lines,
        median_dots,
        showlegend=False,
        xaxis=axes.durations(axis_end_ns, axis_begin_ns) | {"range": [axis_begin_ns, axis_end_ns]},
        yaxis=NAMED_ROWS,
    )
    rows = [
        _level_row(run, quantiles_ns, is_new=run is comparison.new_run)
        for run, quantiles_ns in zip(runs, spread_ns.tolist(), strict=True)
    ]
    return Drawing(plot, _compare_levels(comparison), rows)


def _compare_levels(comparison: Comparison) -> str:
    """Return a sentence with the range of the baselines' median steps, and the new run's."""
    step_metric = comparison.find_metric(STEP_TIME)
    if step_metric is None:
        return NO_STEPS
    medians_ns = [
        float(np.median(run.values_by_metric[STEP_TIME])) for run in comparison.baseline_runs
    ]
    return (
        f"The median step of {text.count(len(medians_ns), 'baseline')} is "
        f"{text.duration(min(medians_ns))} to {text.duration(max(medians_ns))}, that of the new "
        f"run {text.duration(step_metric.change.value_after)}."
    )


def _level_row(run: RunMetrics, quantiles_ns: list[float], *, is_new: bool) -> dict[str, Any]:
    """Return a run as a row of the table; `quantiles_ns` are the p10, p50 and p90 of its steps.

    It is the new run if `is_new`, else a baseline.
    """
    p10_ms, median_ms, p90_ms = (round(ns / 1e6, 3) for ns in quantiles_ns)
    return {
        "run": run.name,
        "is": "new" if is_new else "baseline",
        "ranks": run.rank_count,
        "steps": run.step_count,
        "step, median (ms)": median_ms,
        "step, p10 (ms)": p10_ms,
        "step, p90 (ms)": p90_ms,
        "findings": len(run.findings),
    }

"""Runs compared: step time by category, compute time by rank and step, ratios to baselines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens.comparison.series import CATEGORY_OF, EFFICIENCY, STEP_TIME, title
from tracelens.lod.step_times import split_evenly
from tracelens.model import fmt
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes
from tracelens_dashboard.figures.axes import MOST_COLUMNS, MOST_ROWS, rank_label, ranks_and_steps
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    from tracelens.arrays import Floats
    from tracelens.comparison.changes import Comparison, Metric
    from tracelens.comparison.series import Difference, Steps
    from tracelens_dashboard.theme import Theme

NOTHING: Final = "The two runs have no rank, or no step, in common."
TABLE_ROWS: Final = 200
LEAST_NS: Final = 1_000.0  # of the scale: less is nothing
_CEILING: Final = 0.98
_BEYOND: Final = 4.0  # what an interval reaches below the least ratio is left out: it may end at 0
_TICKS: Final = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0)
_MOST_TICKS: Final = 7
_MIDDLE: Final = (0.1, 0.5, 0.9)
NO_STEPS: Final = "One of the runs has no steps."


def by_rank(found: Difference, theme: Theme, *, step_ns: float = 0.0) -> Drawing:
    """Draw rank by step, teal where this run is faster, orange where it is slower.

    Of neighbours that share a cell the largest difference is shown; the scale never ends below a
    twentieth of a step, so that noise stays pale.
    """
    if not found.compute_ns.size or np.isnan(found.compute_ns).all():
        return empty(theme, NOTHING)
    rows, columns = (
        split_evenly(len(found.ranks), MOST_ROWS),
        split_evenly(len(found.steps), MOST_COLUMNS),
    )
    cells = _largest(_largest(found.compute_ns, rows, 0), columns, 1)
    labels = [rank_label(found.ranks[part]) for part in rows]
    ceiling = _ceiling(cells, step_ns)
    trace = go.Heatmap(
        z=cells.astype(np.float32),
        x=[found.steps[part.start] for part in columns],
        y=labels,
        colorscale=[[0, theme.faster], [0.5, theme.surface], [1, theme.slower]],
        zmin=-ceiling,
        zmax=ceiling,
        hoverongaps=False,
        colorbar=_bar(ceiling),
        text=[[_signed(float(ns)) for ns in row] for row in np.nan_to_num(cells)],
        hovertemplate="%{y}, step %{x}: %{text}<extra></extra>",
    )
    drawn = figure(theme, trace, **ranks_and_steps(labels, theme, None))
    return Drawing(drawn, summary(found), table(found))


def summary(found: Difference) -> str:
    """Return where the runs differ most, and what was compared."""
    per_rank = _means(found)
    worst = int(np.abs(per_rank).argmax())
    what = text.count(len(found.steps), "step") + " and " + text.count(len(found.ranks), "rank")
    return (
        f"Compute time minus that of the other run, in the {what} of both. Largest difference: rank "
        f"{found.ranks[worst]}, {_signed(float(per_rank[worst]))} per step on average."
    )


def table(found: Difference) -> list[dict[str, Any]]:
    """List ranks, those that differ most first."""
    usual = _means(found)
    rows = []
    for index in np.argsort(-np.abs(usual), kind="stable")[:TABLE_ROWS].tolist():
        mine = np.nan_to_num(found.compute_ns[index])
        place = int(np.abs(mine).argmax())
        rows.append(
            {
                "rank": found.ranks[index],
                "difference, mean (ms)": round(float(usual[index]) / 1e6, 3),
                "difference, largest (ms)": round(float(mine[place]) / 1e6, 3),
                "step of max": found.steps[place],
                "other run's step": found.others[place],
            }
        )
    return rows


def _means(found: Difference) -> Floats:
    there = np.maximum(np.sum(~np.isnan(found.compute_ns), axis=1), 1)
    return np.asarray(np.nansum(found.compute_ns, axis=1) / there)


def by_category(phases: list[Metric], names: tuple[str, str], theme: Theme) -> Drawing:
    """Draw a pair of bars a category: what a usual step has of it, here and in the other run."""
    rows = [(CATEGORY_OF[one.name], one.change.after, one.change.before) for one in phases]
    shown = [row for row in rows if max(row[1], row[2]) >= LEAST_NS]
    if not shown:
        return empty(theme, "No steps recorded.")
    labels = [name_of(name) for name, *_ in shown]
    mine = _bars(labels, [row[1] for row in shown], text.safe(names[0]), theme.accent)
    theirs = _bars(labels, [row[2] for row in shown], text.safe(names[1]), theme.quiet)
    largest = max(max(row[1:]) for row in shown)
    drawn = figure(
        theme,
        theirs,
        mine,
        barmode="group",
        bargap=0.3,
        showlegend=True,
        legend={"traceorder": "reversed"},
        xaxis=axes.durations(1.02 * largest),
        yaxis={"autorange": "reversed", "ticksuffix": " ", "showgrid": False, "fixedrange": True},
    )
    return Drawing(drawn, _most(shown[0]), _category_rows(shown))


def _most(row: tuple[str, float, float]) -> str:
    name, mine, theirs = row
    return (
        f"Largest change: {name_of(name)}, {text.duration(mine)} per step here, "
        f"{text.duration(theirs)} in the other run."
    )


def _category_rows(shown: list[tuple[str, float, float]]) -> list[dict[str, Any]]:
    return [
        {
            "category": name_of(name),
            "here (ms per step)": round(mine / 1e6, 3),
            "other run (ms per step)": round(theirs / 1e6, 3),
            "difference (ms per step)": round((mine - theirs) / 1e6, 3),
        }
        for name, mine, theirs in shown
    ]


def _bars(labels: list[str], values: list[float], name: str, colour: str) -> go.Bar:
    return go.Bar(
        orientation="h",
        x=values,
        y=labels,
        name=name,
        marker={"color": colour, "line": {"width": 0}},
        customdata=[text.duration(value) for value in values],
        hovertemplate="%{y}: %{customdata} per step<extra>" + name + "</extra>",
    )


def _largest(cells: Floats, groups: list[slice], axis: int) -> Floats:
    """Reduce groups of rows (0) or columns (1) to what differs most; NaN where nothing is known."""
    found = []
    for group in groups:
        part = cells[group] if axis == 0 else cells[:, group].T
        sizes = np.where(np.isnan(part), -1.0, np.abs(part))
        found.append(np.take_along_axis(part, sizes.argmax(axis=0)[None], axis=0)[0])
    return np.stack(found, axis=axis)


def _ceiling(cells: Floats, step_ns: float) -> float:
    worst = np.abs(np.nan_to_num(cells)).max(axis=0)
    return max(float(np.quantile(worst, _CEILING)), step_ns / 20, LEAST_NS)


def _signed(ns: float) -> str:
    sign = "+" if ns >= 0 else "\N{MINUS SIGN}"
    return f"{sign}{text.duration(abs(ns))}"


def _bar(ceiling: float) -> dict[str, Any]:
    ends = (-ceiling, 0.0, ceiling)
    return {
        "tickvals": list(ends),
        "ticktext": [_signed(-ceiling), "0", _signed(ceiling)],
    }


def changes(found: Comparison, theme: Theme) -> Drawing:
    """Draw each metric's ratio to the baselines with its 95 % interval; a metric they lack has none."""
    shown = [one for one in found.metrics if one.change.before]
    if not shown:
        return empty(theme, NO_STEPS)
    ratios = [one.change.after / one.change.before for one in shown]
    least = min(*ratios, 1.0) / _BEYOND
    edges = [(max(low, least), high) for low, high in map(_edges, shown)]
    trace = go.Scatter(
        x=ratios,
        y=[text.safe(_named(one)) for one in shown],
        mode="markers",
        marker={"size": 10, "color": [_colour(one, theme) for one in shown]},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [high - ratio for ratio, (_, high) in zip(ratios, edges, strict=True)],
            "arrayminus": [ratio - low for ratio, (low, _) in zip(ratios, edges, strict=True)],
            "color": theme.secondary,
            "thickness": 1.5,
        },
        customdata=[_ratio_text(one) for one in shown],
        hovertemplate="%{y}: %{customdata}<extra></extra>",
    )
    equal = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    drawn = figure(
        theme,
        trace,
        xaxis=_ratios(min(low for low, _ in edges), max(high for _, high in edges)),
        yaxis={"autorange": "reversed", "ticksuffix": " ", "fixedrange": True, "showgrid": False},
        shapes=[equal | {"line": {"color": theme.secondary, "width": 1, "dash": "dot"}}],
    )
    return Drawing(drawn, _clearly(found), [_change_row(one) for one in found.metrics])


def _ratios(low: float, high: float) -> dict[str, Any]:
    """Return a logarithmic axis of ratios that holds 1, so that half is as far from it as double."""
    low, high = min(low, 0.99) / 1.03, max(high, 1.01) * 1.03
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    finer = [*_TICKS, 7.0, 8.0, 9.0, 9.5] if high / low < 2 else [*_TICKS[4:], 1.0, 7.0]
    every = sorted({round(part * 10.0**power, 9) for power in powers for part in finer})
    ticks = [tick for tick in every if low <= tick <= high]
    if len(ticks) > _MOST_TICKS:
        ticks = [tick for tick in ticks if _lead(tick) in {1.0, 2.0, 5.0}]
    stride = -(-len(ticks) // _MOST_TICKS)
    kept = [tick for place, tick in enumerate(ticks) if (place - _one(ticks)) % stride == 0]
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickmode": "array",
        "tickvals": kept,
        "ticktext": [f"{tick:g} \N{MULTIPLICATION SIGN}" for tick in kept],
        "fixedrange": True,
    }


def _lead(tick: float) -> float:
    return round(tick / 10.0 ** math.floor(math.log10(tick) + 1e-9), 6)


def _one(ticks: list[float]) -> int:
    return ticks.index(1.0) if 1.0 in ticks else 0


def _edges(metric: Metric) -> tuple[float, float]:
    """Return the ends of a ratio's interval; the ratio itself where there is none."""
    change = metric.change
    ends = (change.low, change.high)
    low, high = (change.delta if end is None else end for end in ends)
    return 1 + low / change.before, 1 + high / change.before


def _named(metric: Metric) -> str:
    name = title(metric.name)
    return f"{name}, mean" if metric.statistic == "mean" and "mean" not in name else name


def _colour(metric: Metric, theme: Theme) -> str:
    if not metric.clear:
        return theme.quiet
    worse = (metric.change.delta > 0) != (metric.name == EFFICIENCY)
    return theme.slower if worse else theme.faster


def _ratio_text(metric: Metric) -> str:
    change = metric.change
    ratio = f"{change.after / change.before:.2f} times the baselines"
    if change.low is None or change.high is None:
        return f"{ratio}; too few steps for an interval"
    low, high = _edges(metric)
    return f"{ratio} (95 % interval {low:.2f} to {high:.2f})"


def _clearly(found: Comparison) -> str:
    """Return which parts of a step clearly changed, the largest first."""
    clear = [one for one in found.phases if one.clear and one.change.before]
    if not clear:
        return "No part of a step differs clearly from the baselines."
    parts = [f"{_named(one)} {_ratio_text(one)}" for one in clear[:2]]
    more = f"; {len(clear) - 2} more clearly changed" if len(clear) > 2 else ""
    return fmt.capital("; ".join(parts)) + more + "."


def _change_row(metric: Metric) -> dict[str, Any]:
    change = metric.change
    low, high = _edges(metric) if change.before else (None, None)
    unit, of = ("%", 0.01) if metric.name == EFFICIENCY else ("ms", 1e6)
    unknown = change.low is None or not change.before
    return {
        "per step": _named(metric),
        "unit": unit,
        "baselines": round(change.before / of, 3),
        "new": round(change.after / of, 3),
        "ratio": round(change.after / change.before, 3) if change.before else None,
        "95 % from": None if unknown or low is None else round(low, 3),
        "95 % to": None if unknown or high is None else round(high, 3),
        "p (adjusted)": None if metric.probability is None else round(metric.probability, 4),
    }


def levels(found: Comparison, theme: Theme) -> Drawing:
    """Draw the median step of each run and the middle 80 % of its steps, the new run on top."""
    runs = [run for run in (found.new, *found.baselines) if run.count]
    if not runs:
        return empty(theme, NO_STEPS)
    spread = np.array([np.quantile(run.metrics[STEP_TIME], _MIDDLE) for run in runs])
    labels = [text.safe(run.name) for run in runs]
    colours = [theme.accent if run is found.new else theme.secondary for run in runs]
    lines = [
        go.Scatter(
            x=[low, high], y=[label, label], mode="lines", line={"color": colour, "width": 2},
            hoverinfo="skip", showlegend=False,
        )
        for (low, _, high), label, colour in zip(spread.tolist(), labels, colours, strict=True)
    ]  # fmt: skip
    dots = go.Scatter(
        x=spread[:, 1].tolist(),
        y=labels,
        mode="markers",
        marker={"size": 10, "color": colours},
        customdata=[" to ".join(map(text.duration, (low, high))) for low, _, high in spread],
        text=[text.duration(ns) for ns in spread[:, 1]],
        hovertemplate="%{y}: median step %{text}, 80 % of them %{customdata}<extra></extra>",
    )
    low, high = float(spread.min()), float(spread.max())
    beside = 0.06 * (high - low) or 0.01 * high
    axis = axes.durations(high + beside, max(low - beside, 0.0))
    drawn = figure(
        theme,
        *lines,
        dots,
        showlegend=False,
        xaxis=axis | {"range": [max(low - beside, 0.0), high + beside]},
        yaxis={"autorange": "reversed", "ticksuffix": " ", "fixedrange": True, "showgrid": False},
    )
    rows = [
        _level_row(run, middle, new=run is found.new)
        for run, middle in zip(runs, spread.tolist(), strict=True)
    ]
    return Drawing(drawn, _spread(found), rows)


def _spread(found: Comparison) -> str:
    step = found.metric(STEP_TIME)
    if step is None:
        return NO_STEPS
    lengths = [float(np.median(run.metrics[STEP_TIME])) for run in found.baselines]
    return (
        f"The median step of {text.count(len(lengths), 'baseline')} is {text.duration(min(lengths))} "
        f"to {text.duration(max(lengths))}, that of the new run {text.duration(step.change.after)}."
    )


def _level_row(run: Steps, middle: list[float], *, new: bool) -> dict[str, Any]:
    return {
        "run": run.name,
        "is": "new" if new else "baseline",
        "ranks": run.ranks,
        "steps": run.count,
        "step, median (ms)": round(middle[1] / 1e6, 3),
        "step, p10 (ms)": round(middle[0] / 1e6, 3),
        "step, p90 (ms)": round(middle[2] / 1e6, 3),
        "findings": len(run.findings),
    }

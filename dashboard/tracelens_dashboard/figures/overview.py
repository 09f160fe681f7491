"""Where the time of a run went: by cause as a waterfall, by category step by step, and as a strip."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens.lod import step_times
from tracelens.reports.messages import cause
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, quantity
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.figures.timeline.frame import LEFT_PX, NARROW, RIGHT_PX, SECOND
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    import polars as pl

    from tracelens.arrays import Array, Floats
    from tracelens.lod.step_times import Times
    from tracelens.lod.viewport import Window
    from tracelens.model.result import Efficiency
    from tracelens_dashboard.theme import Theme


AMOUNT_PX: Final = 48  # beside the longest bar: its share
SMALLEST: Final = 0.0005  # shares below are not drawn; the table has them
MOST_PARTS_POINTS: Final = 400
MOST_STRIP_POINTS: Final = 500
TABLE_ROWS: Final = 500
_HIGH: Final = 0.99  # a first step may be very long


def waterfall(efficiency: Efficiency | None, theme: Theme) -> Drawing:
    """Draw one bar a cause, each beginning where the one above it ended."""
    if efficiency is None:
        return empty(theme, "No steps recorded: time cannot be attributed.")
    steps = _waterfall_steps(efficiency, theme)
    labels = [label for label, *_ in steps]
    bars = go.Bar(
        orientation="h",
        y=labels,
        base=[100 * base for _, base, _, _, _ in steps],
        x=[100 * share for _, _, share, _, _ in steps],
        marker={"color": [colour for _, _, _, colour, _ in steps], "line": {"width": 0}},
        customdata=[lost for *_, lost in steps],
        text=[_amount(index, share) for index, (_, _, share, _, _) in enumerate(steps)],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{x:.2f} % of rank time<extra></extra>",
    )
    losses = sorted(efficiency.waterfall, key=lambda part: -part.share)
    first = f"; largest loss: {cause(losses[0].cause)}" if losses else ""
    rows = [
        {"part": label, "share %": round(100 * share, 3)}
        for label, share in _all_causes(efficiency)
    ]
    achieved = f"{'At most ' * efficiency.at_most}{text.percent(efficiency.achieved)}"
    return Drawing(
        figure(theme, bars, **_waterfall_axes(labels, theme)),
        f"{achieved} parallel efficiency{first}.",
        rows,
    )


def _waterfall_steps(
    efficiency: Efficiency, theme: Theme
) -> list[tuple[str, float, float, str, str]]:
    """List (label, base, share, colour, cause; empty = no loss) from top to bottom."""
    steps = [("total rank time", 0.0, 1.0, theme.quiet, "")]
    left = 1.0
    for part in efficiency.waterfall:
        left -= part.share
        if part.share >= SMALLEST:
            label = text.safe(cause(part.cause))
            steps.append((label, max(left, 0.0), part.share, theme.loss, part.cause))
    return [*steps, ("efficiency", 0.0, efficiency.achieved, theme.accent, "")]


def _all_causes(efficiency: Efficiency) -> list[tuple[str, float]]:
    causes = [(cause(part.cause), part.share) for part in efficiency.waterfall]
    return [*causes, ("efficiency", efficiency.achieved)]


def _amount(index: int, share: float) -> str:
    if index == 0:
        return "100 %"
    return text.percent(share)


def _waterfall_axes(labels: list[str], theme: Theme) -> dict[str, Any]:
    return {
        "xaxis": {
            "range": [0, 100],
            "fixedrange": True,
            "tickvals": [0, 50, 100],
            "ticktext": ["0", "50 %", "100 %"],
        },
        "margin": {"r": AMOUNT_PX},
        "yaxis": {
            "autorange": "reversed",
            "fixedrange": True,
            "tickfont": {"color": theme.text},
            "categoryarray": labels,
            "ticksuffix": "  ",
        },
        "bargap": 0.28,
    }


def step_parts(times: Times, theme: Theme) -> Drawing:
    """Draw an area a category; neighbouring steps that share a point are its mean."""
    if not times.steps:
        return empty(theme, "No steps recorded.")
    mean = times.mean
    columns = step_times.split_evenly(len(times.steps), MOST_PARTS_POINTS)
    shown = np.stack([mean[:, part].mean(axis=1) for part in columns], axis=1)
    steps = [times.steps[part.start] for part in columns]
    areas = [
        _area(name, steps, row, theme)
        for name, row in zip(times.categories, shown, strict=True)
        if row.any()
    ]
    high = max(float(np.quantile(shown.sum(axis=0), _HIGH)), 1.0) * 1.1
    drawn = figure(theme, *areas, **_parts_axes(high))
    return Drawing(drawn, parts_summary(times.categories, mean), partial(_parts_rows, times, mean))


def parts_summary(categories: tuple[str, ...], mean: Floats) -> str:
    """Return the two largest categories of the mean step."""
    whole = mean.mean(axis=1)
    order = np.argsort(-whole)[:2]
    parts = [
        f"{text.duration(float(whole[at]))} {name_of(categories[at])}" for at in order if whole[at]
    ]
    return f"Mean step {text.duration(float(whole.sum()))}: {' and '.join(parts)}."


def _area(name: str, steps: list[int], row: Floats, theme: Theme) -> go.Scatter:
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


def _parts_rows(times: Times, mean: Floats) -> list[dict[str, Any]]:
    """List the longest steps."""
    longest = np.argsort(-mean.sum(axis=0), kind="stable")[:TABLE_ROWS]
    return [
        {"step": times.steps[at], "step time": quantity.time(float(mean[:, at].sum()))}
        | {
            name_of(name): quantity.time(float(ns))
            for name, ns in zip(times.categories, mean[:, at], strict=True)
        }
        for at in longest.tolist()
    ]


def _parts_axes(high: float) -> dict[str, Any]:
    return {
        "xaxis": {"title": {"text": "step"}, "showgrid": False, "fixedrange": True},
        "yaxis": axes.durations(high) | {"range": [0, high]},
        "showlegend": True,
        "legend": {"traceorder": "normal"},
        "hovermode": "x unified",
        "margin": {"t": 30},
    }


def strip(times: Times, windows: pl.DataFrame, whole: Window, theme: Theme) -> Drawing:
    """Stack the categories' shares over time; `windows` are the steps' (step, start, end)."""
    if not windows.height:
        return empty(theme, "No steps recorded.")
    shares = _strip_shares(times, windows)
    middle = ((windows["start_ns"] + windows["end_ns"]) / 2 - whole.start_ns) / SECOND
    columns = np.array_split(np.arange(windows.height), min(windows.height, MOST_STRIP_POINTS))
    x = [float(middle[int(group[0])]) for group in columns]
    areas = [
        go.Scatter(
            x=x,
            y=[100 * float(share[group].mean()) for group in columns],
            name=name_of(category),
            stackgroup="all",
            mode="none",
            fillcolor=theme.categories[category],
            hovertemplate="%{y:.0f} % %{fullData.name}<extra></extra>",
        )
        for category, share in shares.items()
        if share.any()
    ]
    biggest = max(shares, key=lambda category: float(shares[category].mean()))
    return Drawing(
        figure(theme, *areas, **_strip_axes(whole)),
        f"Largest category over the run: {name_of(biggest)}, "
        f"{text.percent(float(shares[biggest].mean()))} of rank time.",
    )


def _strip_shares(times: Times, windows: pl.DataFrame) -> dict[str, Array]:
    """Return the categories' shares in the steps that have a window."""
    column = np.searchsorted(times.steps, windows["step"].to_numpy())
    shares = times.shares()[:, column]
    return dict(zip(times.categories, shares, strict=True))


def _strip_axes(whole: Window) -> dict[str, object]:
    return {
        "margin": {"l": LEFT_PX, "r": RIGHT_PX, "t": 4, "b": 4},
        "xaxis": {
            "range": [0, whole.width_ns / SECOND],
            "fixedrange": True,
            "visible": False,
            "automargin": False,
        },
        "yaxis": {
            "range": [0, 100],
            "fixedrange": True,
            "tickvals": [50],
            "ticktext": ["all ranks" + NARROW],
            "showgrid": False,
            "automargin": False,
        },
        "hovermode": "x unified",
    }

"""Where the time of a run went: by cause as a waterfall, by category step by step, and as a strip."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from plotly import graph_objects as go

from tracelens.lod import step_times
from tracelens.reports.messages import cause
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, quantity
from tracelens_dashboard.figures.drawing import Drawing, bars, empty, figure
from tracelens_dashboard.figures.timeline.frame import LEFT_PX, NARROW, RIGHT_PX, SECOND
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    import polars as pl

    from tracelens.arrays import Floats
    from tracelens.lod.step_times import Times
    from tracelens.lod.viewport import Window
    from tracelens.model.result import Efficiency
    from tracelens_dashboard.figures.drawing import Rows
    from tracelens_dashboard.theme import Theme

SHARE_TEXT_PX: Final = 48  # beyond the longest bar
LEAST_SHARE: Final = 0.0005  # shares below are not drawn; the table has them
MOST_STEP_POINTS: Final = 400
MOST_STRIP_POINTS: Final = 500
MOST_STEPS_LISTED: Final = 500
SCALE_QUANTILE: Final = 0.99  # of the steps: a first step may be very long


class WaterfallBar(NamedTuple):
    """A bar from `base` to `base + share` of rank time; without a cause it is no loss."""

    label: str
    base: float
    share: float
    colour: str
    cause: str = ""


def waterfall(efficiency: Efficiency | None, theme: Theme) -> Drawing:
    """Draw one bar a cause, each beginning where the one above it ended."""
    if efficiency is None:
        return empty(theme, "No steps recorded: time cannot be attributed.")
    steps = [WaterfallBar("total rank time", 0.0, 1.0, theme.quiet)]
    remaining_share = 1.0
    for loss in efficiency.waterfall:
        remaining_share -= loss.share
        if loss.share >= LEAST_SHARE:
            label, base = text.safe(cause(loss.cause)), max(remaining_share, 0.0)
            steps.append(WaterfallBar(label, base, loss.share, theme.loss, loss.cause))
    steps.append(WaterfallBar("efficiency", 0.0, efficiency.achieved, theme.accent))
    labels = [step.label for step in steps]
    trace = bars(
        labels,
        [100 * step.share for step in steps],
        [step.colour for step in steps],
        "%{y}: %{x:.2f} % of rank time",
        base=[100 * step.base for step in steps],
        customdata=[step.cause for step in steps],
        text=["100 %", *(text.percent(step.share) for step in steps[1:])],
        textposition="outside",
        cliponaxis=False,
    )
    share_ticks = {"tickvals": [0, 50, 100], "ticktext": ["0", "50 %", "100 %"]}
    plot = figure(
        theme,
        trace,
        xaxis={"range": [0, 100], "fixedrange": True} | share_ticks,
        yaxis=axes.rows_downwards(theme) | {"categoryarray": labels, "ticksuffix": "  "},
        margin={"r": SHARE_TEXT_PX},
        bargap=0.28,
    )
    losses = sorted(efficiency.waterfall, key=lambda loss: -loss.share)
    largest = f"; largest loss: {cause(losses[0].cause)}" if losses else ""
    achieved = f"{'At most ' * efficiency.at_most}{text.percent(efficiency.achieved)}"
    shares = [(cause(loss.cause), loss.share) for loss in efficiency.waterfall]
    shares.append(("efficiency", efficiency.achieved))
    table = [{"part": label, "share %": round(100 * share, 3)} for label, share in shares]
    return Drawing(plot, f"{achieved} parallel efficiency{largest}.", table)


def step_parts(times: Times, theme: Theme, *, of_hosts: bool = False) -> Drawing:
    """Draw an area a category; neighbouring steps that share a point are its mean.

    `of_hosts`: devices did the work, and `times` are those of the threads that feed them.
    """
    if not times.steps:
        return empty(theme, "No steps recorded.")
    mean_ns = times.mean
    neighbours = step_times.split_evenly(len(times.steps), MOST_STEP_POINTS)
    drawn_ns = np.stack([mean_ns[:, steps].mean(axis=1) for steps in neighbours], axis=1)
    traces = [
        go.Scatter(
            x=[times.steps[steps.start] for steps in neighbours],
            y=category_ns,
            name=name_of(name),
            stackgroup="all",
            mode="none",
            line={"shape": "hvh"},
            fillcolor=theme.categories[name],
            customdata=list(map(text.duration, category_ns.tolist())),
            hovertemplate="%{customdata} %{fullData.name}<extra></extra>",
        )
        for name, category_ns in zip(times.categories, drawn_ns, strict=True)
        if category_ns.any()
    ]
    high_ns = max(float(np.quantile(drawn_ns.sum(axis=0), SCALE_QUANTILE)), 1.0) * 1.1
    time_axis = axes.durations(high_ns) | {"range": [0, high_ns]}
    layout: dict[str, Any] = {"hovermode": "x unified"} | axes.LEGEND
    plot = figure(theme, *traces, xaxis=axes.STEPS, yaxis=time_axis, **layout)
    note = "These are host threads, not devices. " if of_hosts else ""
    summary = f"{note}{parts_summary(times.categories, mean_ns)}"
    return Drawing(plot, summary, partial(_longest_steps, times, mean_ns))


def parts_summary(categories: tuple[str, ...], mean_ns: Floats) -> str:
    """Return the two largest categories of the mean step; `mean_ns` is [category, step]."""
    category_ns = mean_ns.mean(axis=1)
    largest = [
        f"{text.duration(float(category_ns[index]))} {name_of(categories[index])}"
        for index in np.argsort(-category_ns)[:2]
        if category_ns[index]
    ]
    return f"Mean step {text.duration(float(category_ns.sum()))}: {' and '.join(largest)}."


def _longest_steps(times: Times, mean_ns: Floats) -> Rows:
    order = np.argsort(-mean_ns.sum(axis=0), kind="stable")[:MOST_STEPS_LISTED]
    return [
        {"step": times.steps[index], "step time": quantity.time(float(mean_ns[:, index].sum()))}
        | {
            name_of(name): quantity.time(float(ns))
            for name, ns in zip(times.categories, mean_ns[:, index], strict=True)
        }
        for index in order.tolist()
    ]


def strip(
    times: Times,
    windows: pl.DataFrame,
    run_window: Window,
    theme: Theme,
    *,
    of_hosts: bool = False,
) -> Drawing:
    """Stack the categories' shares over time; `windows` are the steps' (step, start, end).

    `of_hosts`: devices did the work, and `times` are those of the threads that feed them.
    """
    if not windows.height:
        return empty(theme, "No steps recorded.")
    column = np.searchsorted(times.steps, windows["step"].to_numpy())
    shares = dict(zip(times.categories, times.shares()[:, column], strict=True))
    middles_s = ((windows["start_ns"] + windows["end_ns"]) / 2 - run_window.start_ns) / SECOND
    neighbours = np.array_split(np.arange(windows.height), min(windows.height, MOST_STRIP_POINTS))
    traces = [
        go.Scatter(
            x=[float(middles_s[int(steps[0])]) for steps in neighbours],
            y=[100 * float(share[steps].mean()) for steps in neighbours],
            name=name_of(category),
            stackgroup="all",
            mode="none",
            fillcolor=theme.categories[category],
            hovertemplate="%{y:.0f} % %{fullData.name}<extra></extra>",
        )
        for category, share in shares.items()
        if share.any()
    ]
    fixed: dict[str, Any] = {"fixedrange": True, "automargin": False}
    row = {"tickvals": [50], "ticktext": ["all ranks" + NARROW], "showgrid": False}
    plot = figure(
        theme,
        *traces,
        margin={"l": LEFT_PX, "r": RIGHT_PX, "t": 4, "b": 4},
        xaxis={"range": [0, run_window.width_ns / SECOND], "visible": False} | fixed,
        yaxis={"range": [0, 100]} | row | fixed,
        hovermode="x unified",
    )
    largest = max(shares, key=lambda category: float(shares[category].mean()))
    percent = text.percent(float(shares[largest].mean()))
    owner = "host thread" if of_hosts else "rank"
    summary = f"Largest category over the run: {name_of(largest)}, {percent} of {owner} time."
    return Drawing(plot, summary)

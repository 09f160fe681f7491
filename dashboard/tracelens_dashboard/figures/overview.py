"""Where the time of a run went: by cause as a waterfall, by category step by step, and as a strip."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from plotly import graph_objects as go

from tracelens.lod import step_times
from tracelens.reports.messages import name_cause
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, quantity
from tracelens_dashboard.figures.drawing import Drawing, Rows, bars, empty, figure
from tracelens_dashboard.figures.timeline.frame import LEFT_PX, NARROW, NS_PER_SECOND, RIGHT_PX
from tracelens_dashboard.theme import Theme, name_of

if TYPE_CHECKING:
    import polars as pl

    from tracelens.arrays import Floats
    from tracelens.lod.step_times import CategoryTimes
    from tracelens.lod.viewport import Window
    from tracelens.model.result import Efficiency

SHARE_TEXT_PX: Final = 48  # beyond the longest bar
LEAST_SHARE: Final = 0.0005  # shares below are not drawn; the table has them
MOST_STEP_POINTS: Final = 400
MOST_STRIP_POINTS: Final = 500
MOST_STEPS_LISTED: Final = 500
SCALE_QUANTILE: Final = 0.99  # of the steps: a first step may be very long


class WaterfallBar(NamedTuple):
    """A bar from `base_share` of rank time, `share` long; without a cause it is no loss."""

    label: str
    base_share: float
    share: float
    colour: str
    cause: str = ""


def waterfall(efficiency: Efficiency | None, theme: Theme) -> Drawing:
    """Draw a bar per cause of loss, each beginning where the one above it ended."""
    # A loss has a cause and a share of rank time; the rest is the efficiency achieved.
    if efficiency is None:
        return empty(theme, "No steps recorded: time cannot be attributed.")
    waterfall_bars = [
        WaterfallBar("total rank time", base_share=0.0, share=1.0, colour=theme.quiet_colour)
    ]
    remaining_share = 1.0
    for loss in efficiency.waterfall:
        remaining_share -= loss.share
        if loss.share >= LEAST_SHARE:
            name, base_share = text.escape_name(name_cause(loss.cause)), max(remaining_share, 0.0)
            bar = WaterfallBar(name, base_share, loss.share, theme.loss_colour, loss.cause)
            waterfall_bars.append(bar)
    achieved = efficiency.achieved
    waterfall_bars.append(
        WaterfallBar("efficiency", base_share=0.0, share=achieved, colour=theme.accent_colour)
    )
    labels = [bar.label for bar in waterfall_bars]
    trace = bars(
        labels,
        [100 * bar.share for bar in waterfall_bars],
        [bar.colour for bar in waterfall_bars],
        "%{y}: %{x:.2f} % of rank time",
        base=[100 * bar.base_share for bar in waterfall_bars],
        customdata=[bar.cause for bar in waterfall_bars],
        text=["100 %", *(text.percent(bar.share) for bar in waterfall_bars[1:])],
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
    largest_loss_text = f"; largest loss: {name_cause(losses[0].cause)}" if losses else ""
    efficiency_text = f"{'At most ' * efficiency.at_most}{text.percent(efficiency.achieved)}"
    names_and_shares = [(name_cause(loss.cause), loss.share) for loss in efficiency.waterfall]
    names_and_shares.append(("efficiency", efficiency.achieved))
    table_rows = [
        {"part": name, "share %": round(100 * share, 3)} for name, share in names_and_shares
    ]
    return Drawing(plot, f"{efficiency_text} parallel efficiency{largest_loss_text}.", table_rows)


def step_parts(category_times: CategoryTimes, theme: Theme, *, of_hosts: bool = False) -> Drawing:
    """Draw the mean rank's time per step, an area per category; neighbours may share a point.

    `of_hosts`: devices did the work, and `category_times` are those of the threads that feed them.
    """
    if not category_times.steps:
        return empty(theme, "No steps recorded.")
    mean_ns = category_times.mean_time_ns  # [category, step]
    step_groups = step_times.split_evenly(len(category_times.steps), MOST_STEP_POINTS)
    group_means_ns = np.stack(  # [category, group]
        [mean_ns[:, group].mean(axis=1) for group in step_groups], axis=1
    )
    traces = [
        go.Scatter(
            x=[category_times.steps[group.start] for group in step_groups],
            y=category_ns,
            name=name_of(name),
            stackgroup="all",
            mode="none",
            line={"shape": "hvh"},
            fillcolor=theme.colour_by_category[name],
            customdata=list(map(text.duration, category_ns.tolist())),
            hovertemplate="%{customdata} %{fullData.name}<extra></extra>",
        )
        for name, category_ns in zip(category_times.categories, group_means_ns, strict=True)
        if category_ns.any()
    ]
    high_ns = max(float(np.quantile(group_means_ns.sum(axis=0), SCALE_QUANTILE)), 1.0) * 1.1
    time_axis = axes.durations(high_ns) | {"range": [0, high_ns]}
    layout: dict[str, Any] = {"hovermode": "x unified"} | axes.LEGEND
    plot = figure(theme, *traces, xaxis=axes.STEPS, yaxis=time_axis, **layout)
    note = "These are host threads, not devices. " if of_hosts else ""
    summary = f"{note}{parts_summary(category_times.categories, mean_ns)}"
    return Drawing(plot, summary, partial(_longest_steps, category_times, mean_ns))


def parts_summary(categories: tuple[str, ...], mean_ns: Floats) -> str:
    """Return the mean step, and its two largest categories; `mean_ns` is [category, step]."""
    category_ns = mean_ns.mean(axis=1)
    largest_texts = [
        f"{text.duration(float(category_ns[index]))} {name_of(categories[index])}"
        for index in np.argsort(-category_ns)[:2]
        if category_ns[index]
    ]
    return f"Mean step {text.duration(float(category_ns.sum()))}: {' and '.join(largest_texts)}."


def _longest_steps(category_times: CategoryTimes, mean_ns: Floats) -> Rows:
    """List the longest steps with their times by category; `mean_ns` is [category, step]."""
    longest_indexes = np.argsort(-mean_ns.sum(axis=0), kind="stable")[:MOST_STEPS_LISTED]
    headings = ["step time", *map(name_of, category_times.categories)]
    table_rows: Rows = []
    for index in longest_indexes.tolist():
        times_ns = [mean_ns[:, index].sum(), *mean_ns[:, index]]
        cells = zip(headings, (quantity.time(float(ns)) for ns in times_ns), strict=True)
        table_rows.append({"step": category_times.steps[index], **dict(cells)})
    return table_rows


def strip(
    category_times: CategoryTimes,
    step_windows: pl.DataFrame,
    run_window: Window,
    theme: Theme,
    *,
    of_hosts: bool = False,
) -> Drawing:
    """Stack the categories' shares of the time of all ranks over the run.

    `step_windows` has one row per step: step, start_ns, end_ns. `of_hosts`: devices did the work,
    and `category_times` are those of the threads that feed them.
    """
    step_count = step_windows.height
    if not step_count:
        return empty(theme, "No steps recorded.")
    step_indexes = np.searchsorted(category_times.steps, step_windows["step"].to_numpy())
    step_shares = category_times.compute_category_shares()[:, step_indexes]  # [category, step]
    share_by_category = dict(zip(category_times.categories, step_shares, strict=True))
    middles_ns = (step_windows["start_ns"] + step_windows["end_ns"]) / 2
    middles_s = (middles_ns - run_window.start_ns) / NS_PER_SECOND
    groups = np.array_split(np.arange(step_count), min(step_count, MOST_STRIP_POINTS))
    traces = [
        go.Scatter(
            x=[float(middles_s[int(group[0])]) for group in groups],
            y=[100 * float(shares[group].mean()) for group in groups],
            name=name_of(category),
            stackgroup="all",
            mode="none",
            fillcolor=theme.colour_by_category[category],
            hovertemplate="%{y:.0f} % %{fullData.name}<extra></extra>",
        )
        for category, shares in share_by_category.items()
        if shares.any()
    ]
    fixed_axis: dict[str, Any] = {"fixedrange": True, "automargin": False}
    row_axis = {"tickvals": [50], "ticktext": ["all ranks" + NARROW], "showgrid": False}
    plot = figure(
        theme,
        *traces,
        margin={"l": LEFT_PX, "r": RIGHT_PX, "t": 4, "b": 4},
        xaxis={"range": [0, run_window.width_ns / NS_PER_SECOND], "visible": False} | fixed_axis,
        yaxis={"range": [0, 100]} | row_axis | fixed_axis,
        hovermode="x unified",
    )
    mean_share = {name: float(shares.mean()) for name, shares in share_by_category.items()}
    largest_category = max(mean_share, key=lambda category: mean_share[category])
    percent_text = text.percent(mean_share[largest_category])
    owner = "host thread" if of_hosts else "rank"
    largest_name = name_of(largest_category)
    summary = f"Largest category over the run: {largest_name}, {percent_text} of {owner} time."
    return Drawing(plot, summary)

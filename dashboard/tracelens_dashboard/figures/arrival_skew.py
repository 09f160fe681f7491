"""Arrival skew of collectives: last arrivals, distribution, over the run, and what it costs per step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.lod import step_times
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, histogram, quantity, stacked_steps
from tracelens_dashboard.figures.drawing import Drawing, bars, dots, empty, figure, pairs, panels
from tracelens_dashboard.figures.quantity import rounded
from tracelens_dashboard.figures.stacked_steps import Layer

if TYPE_CHECKING:
    from plotly import graph_objects as go

    from tracelens_dashboard.theme import Theme

MOST_RANKS: Final = 32
MOST_POINTS: Final = 500
MOST_COLOURED_RANKS: Final = 3
MOST_STEPS_LISTED: Final = 500
SURE_SIGMAS: Final = 3  # of the clocks: a skew below may be theirs
DOMINANT_SHARE: Final = 0.6  # of the time in collectives: beyond, one of both dominates
COUNTED: Final = "calls"
CALL_COLUMNS: Final = ("first_ns", "over_ns", "last_rank")
NONE_IN_STEPS: Final = "No collectives within steps."
NO_CALLS: Final = "No call entered by several ranks was recorded."
RANK_COLUMNS: Final[quantity.Columns] = {
    "rank": "rank",
    "calls": "calls",
    "last arrivals": "last",
    "expected by chance": ("expected", rounded(1)),
    "chance, upper bound": ("chance", rounded(1)),
    "wait caused alone": ("alone_ns", quantity.time),
    "waited": ("wait_ns", quantity.time),
    "transfer": ("transfer_ns", quantity.time),
}
STEP_COLUMNS: Final[quantity.Columns] = {
    "step": "step",
    "calls": "calls",
    "skew, median": ("skew_ns", quantity.time),
    "skew, max": ("skew_max_ns", quantity.time),
    "last rank": "last_rank",
}


def last_arrivals(ranks: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a row a rank, of many those that are last beyond chance, or cause most wait alone."""
    if ranks.is_empty():
        return empty(theme, NO_CALLS)
    by_wait = ranks.sort("alone_ns", descending=True)
    drawn = ranks
    if ranks.height > MOST_RANKS:
        by_count = ranks.sort(pl.col("last") - pl.col("chance"), descending=True)
        both = pl.concat([by_count.head(MOST_RANKS // 2), by_wait])
        drawn = both.unique("rank", maintain_order=True).head(MOST_RANKS).sort("rank")
    plot = panels(["last arrivals (calls)", "wait caused alone"], theme, 0.06)
    for column, draw in ((1, _counts), (1, _chances), (2, _waits)):
        labels = [f"rank {rank} " for rank in drawn["rank"]]
        plot.add_trace(draw(drawn, labels, theme), row=1, col=column)
    plot.update_layout(margin={"t": 34}, bargap=0.35)
    plot.update_xaxes(fixedrange=True, nticks=5, rangemode="tozero")
    most_ns = float(drawn["alone_ns"].to_numpy().max())
    plot.update_xaxes(axes.durations(most_ns * 1.05, most=4), row=1, col=2)
    plot.update_yaxes(fixedrange=True, autorange="reversed", dtick=1)
    return Drawing(plot, last_arrivals_summary(ranks), quantity.tabulate(by_wait, RANK_COLUMNS))


def _longest_calls(ranks: pl.DataFrame) -> list[list[Any] | None]:
    """Return the call that waited longest for each rank."""
    return [
        None if begin is None else [begin, end, rank]
        for rank, begin, end in ranks.select("rank", "first_ns", "over_ns").iter_rows()
    ]


def _counts(ranks: pl.DataFrame, labels: list[str], theme: Theme) -> go.Bar:
    counts = ranks["last"]
    is_beyond_chance = counts.to_numpy() > ranks["chance"].to_numpy()
    colours = np.where(is_beyond_chance, theme.loss, theme.accent).tolist()
    calls = ranks["calls"]
    texts = [f"{last:,} of {count:,} calls" for last, count in zip(counts, calls, strict=True)]
    data, hover = pairs(texts, _longest_calls(ranks)), "%{y}arrives last in %{customdata[0]}"
    return bars(labels, counts.to_list(), colours, hover, customdata=data)


def _chances(ranks: pl.DataFrame, labels: list[str], theme: Theme) -> go.Scatter:
    """Mark what is expected by chance, and its upper bound."""
    expected, bound = ranks["expected"].to_numpy(), ranks["chance"].to_numpy()
    reach = {"array": (bound - expected).tolist(), "arrayminus": [0] * len(labels)}
    marker = {"symbol": "line-ns", "size": 11, "line": {"width": 2, "color": theme.text}}
    texts = [f"{low:.0f}, at most {high:.0f}" for low, high in zip(expected, bound, strict=True)]
    data, hover = pairs(texts, [None] * len(texts)), "expected by chance: %{customdata[0]}"
    error_x = reach | {"color": theme.text, "width": 3}
    return dots(expected.tolist(), labels, marker, hover, error_x=error_x, customdata=data)


def _waits(ranks: pl.DataFrame, labels: list[str], theme: Theme) -> go.Bar:
    colour, edge = theme.categories["wait"], {"width": 1, "color": theme.secondary}
    data = pairs(map(text.duration, ranks["alone_ns"]), _longest_calls(ranks))
    hover, marker = "wait caused by %{y}alone: %{customdata[0]}", {"color": colour, "line": edge}
    wait_ns = ranks["alone_ns"].to_list()
    return bars(labels, wait_ns, colour, hover, marker=marker, customdata=data)


def last_arrivals_summary(ranks: pl.DataFrame) -> str:
    """Name the rank that is last more often than by chance, and the one that causes most wait alone."""
    worst = ranks.sort("alone_ns").row(-1, named=True)
    alone = text.duration(worst["alone_ns"])
    wait = f"Most wait caused alone: rank {worst['rank']}, {alone} over the run."
    beyond_chance = ranks.filter(pl.col("last") > pl.col("chance")).sort("last", descending=True)
    if beyond_chance.is_empty():
        return f"No rank arrives last more often than expected by chance. {wait}"
    rank_row, others = beyond_chance.row(0, named=True), beyond_chance.height - 1
    also = f", as do {text.count(others, 'other')}" if others else ""
    return (
        f"Rank {rank_row['rank']} arrives last in {rank_row['last']:,} of {rank_row['calls']:,} calls, "
        f"more often than expected by chance (at most {rank_row['chance']:,.0f}){also}. {wait}"
    )


def distribution(spread: pl.DataFrame, uncertainty_ns: int, theme: Theme) -> Drawing:
    """Draw the skew of all calls by operation; `spread` as `Arrivals.spread`."""
    if spread.is_empty():
        return empty(theme, NO_CALLS)
    series = histogram.from_table(spread, "op", CALL_COLUMNS, theme)
    plot = histogram.draw(series, "arrival skew (first to last arrival)", COUNTED, theme)
    sure_ns = float(SURE_SIGMAS * uncertainty_ns)
    median, p99 = (histogram.quantile(spread, share) for share in (0.5, 0.99))
    marks = [("clock uncertainty (3 sigma)", sure_ns)] if uncertainty_ns else []
    histogram.mark(plot, [*marks, ("p50", median), ("p99", p99)], theme)
    largest = spread.sort("from_ns").row(-1, named=True)
    summary = (
        f"Arrival skew of {text.count(int(spread['count'].sum()), 'call')}: p50 "
        f"{text.duration(median)}, p99 {text.duration(p99)}; largest in step {largest['step']}, "
        f"rank {largest['last_rank']} last."
    )
    if uncertainty_ns:
        summary += f" Skew below {text.duration(sure_ns)} is within clock uncertainty."
    return Drawing(plot, summary, histogram.rows(series, COUNTED))


def by_step(steps: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw the mean rank's time; `steps` as `arrivals.STEP_COLUMNS`."""
    if steps.is_empty():
        return empty(theme, NONE_IN_STEPS)
    layers = (
        Layer("transfer_ns", "transfer", theme.categories["transfer"]),
        Layer("wait_ns", "wait for the last arrival", theme.categories["wait"]),
    )
    plot, rows = stacked_steps.draw(steps, layers, theme), stacked_steps.rows(steps, layers)
    return Drawing(plot, by_step_summary(steps), rows)


def by_step_summary(steps: pl.DataFrame) -> str:
    """Name the larger: wait or transfer."""
    wait_ns, transfer_ns = (int(steps[name].sum()) for name in ("wait_ns", "transfer_ns"))
    total_ns = wait_ns + transfer_ns
    if not total_ns:
        return "Collectives take no time."
    wait_share = wait_ns / total_ns
    conclusion = ""
    if wait_share > DOMINANT_SHARE:
        conclusion = " Arrival skew dominates, not the network."
    elif wait_share < 1 - DOMINANT_SHARE:
        conclusion = " Transfer dominates, not arrival skew."
    return (
        f"A rank spends {text.duration(total_ns / steps.height)} per step in collectives, including "
        f"time overlapped with compute: {text.percent(wait_share)} wait for the last arrival, "
        f"{text.percent(1 - wait_share)} transfer.{conclusion}"
    )


def over_run(steps: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a point a step; `steps` as `arrivals.STEP_COLUMNS`. Of many steps the worst are drawn."""
    if steps.is_empty():
        return empty(theme, NONE_IN_STEPS)
    skew_ns = steps["skew_max_ns"].to_numpy()
    neighbours = step_times.split_evenly(steps.height, MOST_POINTS)
    drawn = steps[[part.start + int(skew_ns[part].argmax()) for part in neighbours]]
    sums = drawn.group_by("last_rank").agg(pl.col("skew_max_ns").sum())
    order = sums.sort("skew_max_ns", "last_rank")["last_rank"].reverse().to_list()
    coloured = order[:MOST_COLOURED_RANKS]
    others = drawn.filter(~pl.col("last_rank").is_in(coloured))
    traces = [_points(others, "another rank last", theme.quiet)] if others.height else []
    traces += [
        _points(drawn.filter(pl.col("last_rank") == rank), f"rank {rank} last", colour)
        for rank, colour in zip(coloured, theme.series, strict=False)
    ]
    skew_axis = axes.log_durations(float(np.maximum(skew_ns, 1).min()), float(skew_ns.max()))
    plot = figure(
        theme, *traces, xaxis=axes.STEPS, yaxis=skew_axis, showlegend=True, margin={"t": 30}
    )
    by_skew = steps.sort("skew_max_ns", descending=True).head(MOST_STEPS_LISTED)
    return Drawing(plot, over_run_summary(steps), quantity.tabulate(by_skew, STEP_COLUMNS))


def over_run_summary(steps: pl.DataFrame) -> str:
    """Return the median skew, and the step with the largest."""
    step_row = steps.sort("skew_max_ns").row(-1, named=True)
    median_ns = float(np.median(steps["skew_ns"].to_numpy()))
    return (
        f"Median arrival skew {text.duration(median_ns)} per step; largest in step {step_row['step']}: "
        f"{text.duration(step_row['skew_max_ns'])}, rank {step_row['last_rank']} last."
    )


def _points(steps: pl.DataFrame, name: str, colour: str) -> go.Scatter:
    skew_ns, ranks = steps["skew_max_ns"], steps["last_rank"]
    texts = [
        f"skew {text.duration(ns)}, rank {rank} last"
        for ns, rank in zip(skew_ns, ranks, strict=True)
    ]
    data = pairs(texts, steps.select(CALL_COLUMNS).rows())
    marker, hover = {"size": 6, "color": colour}, "step %{x}: %{customdata[0]}"
    y = skew_ns.clip(lower_bound=1).to_list()
    return dots(steps["step"].to_list(), y, marker, hover, name=name, customdata=data)

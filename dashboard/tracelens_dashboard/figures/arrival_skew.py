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
CLOCK_SIGMAS: Final = 3  # of the clocks: a skew below may be theirs
DOMINANT_SHARE: Final = 0.6  # of the time in collectives: beyond, one of both dominates
COUNTED: Final = "calls"
CALL_COLUMNS: Final = ("first_ns", "over_ns", "last_rank")
NONE_IN_STEPS: Final = "No collectives within steps."
NO_CALLS: Final = "No call entered by several ranks was recorded."
RANK_COLUMNS: Final[quantity.Columns] = {
    "rank": "rank",
    "calls": "calls",
    "last arrivals": "last",
    "expected by chance": ("expected", rounded(digits=1)),
    "chance, upper bound": ("chance", rounded(digits=1)),
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
    """Draw how often each rank is last, and the wait it alone caused."""
    # `ranks` has one row per rank: in how many `calls` it was `last`, the upper bound of that by
    # `chance`, and for how long all others waited for it alone (`alone_ns`), over the run.
    if ranks.is_empty():
        return empty(theme, NO_CALLS)
    by_wait = ranks.sort("alone_ns", descending=True)
    drawn_ranks = ranks
    if ranks.height > MOST_RANKS:  # those that are last beyond chance, and that cause most wait
        by_surplus = ranks.sort(pl.col("last") - pl.col("chance"), descending=True)
        candidates = pl.concat([by_surplus.head(MOST_RANKS // 2), by_wait])
        drawn_ranks = candidates.unique("rank", maintain_order=True).head(MOST_RANKS).sort("rank")
    plot = panels(["last arrivals (calls)", "wait caused alone"], theme, spacing_share=0.06)
    for panel, draw in ((1, _draw_counts), (1, _draw_chances), (2, _draw_waits)):
        labels = [f"rank {rank} " for rank in drawn_ranks["rank"]]
        plot.add_trace(draw(drawn_ranks, labels, theme), row=1, col=panel)
    plot.update_layout(margin={"t": 34}, bargap=0.35)
    plot.update_xaxes(fixedrange=True, nticks=5, rangemode="tozero")
    max_wait_ns = float(drawn_ranks["alone_ns"].to_numpy().max())
    plot.update_xaxes(axes.durations(max_wait_ns * 1.05, most_ticks=4), row=1, col=2)
    plot.update_yaxes(fixedrange=True, autorange="reversed", dtick=1)
    return Drawing(plot, last_arrivals_summary(ranks), quantity.tabulate(by_wait, RANK_COLUMNS))


def _link_longest_calls(ranks: pl.DataFrame) -> list[list[Any] | None]:
    """Return the call that waited longest for each rank: [first arrival, last exit, rank], ns."""
    return [
        None if first_ns is None else [first_ns, over_ns, rank]
        for rank, first_ns, over_ns in ranks.select("rank", "first_ns", "over_ns").iter_rows()
    ]


def _draw_counts(ranks: pl.DataFrame, labels: list[str], theme: Theme) -> go.Bar:
    """Draw a bar per rank (row): how many calls it was last in; red beyond `chance`, a count."""
    last_counts = ranks["last"]
    is_beyond_chance = last_counts.to_numpy() > ranks["chance"].to_numpy()
    colours = np.where(is_beyond_chance, theme.loss_colour, theme.accent_colour).tolist()
    counts = zip(last_counts, ranks["calls"], strict=True)
    texts = [f"{last_count:,} of {call_count:,} calls" for last_count, call_count in counts]
    custom_data = pairs(texts, _link_longest_calls(ranks))
    hover = "%{y}arrives last in %{customdata[0]}"
    return bars(labels, last_counts.to_list(), colours, hover, customdata=custom_data)


def _draw_chances(ranks: pl.DataFrame, labels: list[str], theme: Theme) -> go.Scatter:
    """Mark per rank (row) in how many calls chance makes it last; whiskers reach to the bound."""
    expected, bounds = ranks["expected"].to_numpy(), ranks["chance"].to_numpy()
    whiskers = {"array": (bounds - expected).tolist(), "color": theme.text_colour, "width": 3}
    marker = {"symbol": "line-ns", "size": 11, "line": {"width": 2, "color": theme.text_colour}}
    texts = [f"{low:.0f}, at most {high:.0f}" for low, high in zip(expected, bounds, strict=True)]
    custom_data = pairs(texts, [None] * len(texts))
    hover = "expected by chance: %{customdata[0]}"
    options = {"error_x": whiskers | {"arrayminus": [0] * len(labels)}, "customdata": custom_data}
    return dots(expected.tolist(), labels, marker, hover, **options)


def _draw_waits(ranks: pl.DataFrame, labels: list[str], theme: Theme) -> go.Bar:
    """Draw a bar per rank: how long others waited for it alone, over the run."""
    colour, edge = theme.colour_by_category["wait"], {"width": 1, "color": theme.secondary_colour}
    custom_data = pairs(map(text.duration, ranks["alone_ns"]), _link_longest_calls(ranks))
    hover, marker = "wait caused by %{y}alone: %{customdata[0]}", {"color": colour, "line": edge}
    wait_ns = ranks["alone_ns"].to_list()
    return bars(labels, wait_ns, colour, hover, marker=marker, customdata=custom_data)


def last_arrivals_summary(ranks: pl.DataFrame) -> str:
    """Name the rank that is last beyond chance most often, and the one that causes most wait."""
    # `ranks` has one row per rank; `chance` is the upper bound of `last` by chance.
    worst_row = ranks.sort("alone_ns").row(-1, named=True)
    alone_text = text.duration(worst_row["alone_ns"])
    wait_sentence = f"Most wait caused alone: rank {worst_row['rank']}, {alone_text} over the run."
    beyond_chance = ranks.filter(pl.col("last") > pl.col("chance")).sort("last", descending=True)
    if beyond_chance.is_empty():
        return f"No rank arrives last more often than expected by chance. {wait_sentence}"
    top_row, other_count = beyond_chance.row(0, named=True), beyond_chance.height - 1
    others_text = f", as do {text.count(other_count, 'other')}" if other_count else ""
    return (
        f"Rank {top_row['rank']} arrives last in {top_row['last']:,} of "
        f"{top_row['calls']:,} calls, more often than expected by chance (at most "
        f"{top_row['chance']:,.0f}){others_text}. "
        f"{wait_sentence}"
    )


def distribution(spread: pl.DataFrame, uncertainty_ns: int, theme: Theme) -> Drawing:
    """Draw how many calls have which arrival skew, by operation.

    `spread` has one row per operation and bin of skew: `from_ns`, `to_ns`, `count`, and of its call
    with the largest skew `step` and `CALL_COLUMNS`. `uncertainty_ns` is that of the clocks, 0 for
    one clock.
    """
    if spread.is_empty():
        return empty(theme, NO_CALLS)
    series = histogram.from_table(spread, "op", CALL_COLUMNS, theme)
    plot = histogram.draw(series, "arrival skew (first to last arrival)", COUNTED, theme)
    clock_limit_ns = float(CLOCK_SIGMAS * uncertainty_ns)
    median_ns, p99_ns = (histogram.quantile(spread, share) for share in (0.5, 0.99))
    marks = [("clock uncertainty (3 sigma)", clock_limit_ns)] if uncertainty_ns else []
    histogram.mark(plot, [*marks, ("p50", median_ns), ("p99", p99_ns)], theme)
    largest_bin = spread.sort("from_ns").row(-1, named=True)
    summary = (
        f"Arrival skew of {text.count(int(spread['count'].sum()), 'call')}: p50 "
        f"{text.duration(median_ns)}, p99 {text.duration(p99_ns)}; largest in step "
        f"{largest_bin['step']}, rank {largest_bin['last_rank']} last."
    )
    if uncertainty_ns:
        summary += f" Skew below {text.duration(clock_limit_ns)} is within clock uncertainty."
    return Drawing(plot, summary, histogram.rows(series, COUNTED))


def by_step(steps: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw each step's wait and transfer on the mean rank; `steps` has one row per step."""
    if steps.is_empty():
        return empty(theme, NONE_IN_STEPS)
    layers = (
        Layer("transfer_ns", "transfer", theme.colour_by_category["transfer"]),
        Layer("wait_ns", "wait for the last arrival", theme.colour_by_category["wait"]),
    )
    plot, rows = stacked_steps.draw(steps, layers, theme), stacked_steps.rows(steps, layers)
    return Drawing(plot, by_step_summary(steps), rows)


def by_step_summary(steps: pl.DataFrame) -> str:
    """Return a sentence with the shares of wait and transfer, and which of both dominates."""
    # `steps` has one row per step with the mean rank's `wait_ns` and `transfer_ns`.
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
        f"A rank spends {text.duration(total_ns / steps.height)} per step in collectives, "
        f"including time overlapped with compute: {text.percent(wait_share)} wait for the last "
        f"arrival, {text.percent(1 - wait_share)} transfer.{conclusion}"
    )


def over_run(steps: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw each step's largest skew, coloured by the last rank of that call."""
    # `steps` has one row per step; a point shows the one with the largest skew of its steps.
    if steps.is_empty():
        return empty(theme, NONE_IN_STEPS)
    skew_ns = steps["skew_max_ns"].to_numpy()
    step_groups = step_times.split_evenly(steps.height, MOST_POINTS)  # one point each
    drawn_steps = steps[[group.start + int(skew_ns[group].argmax()) for group in step_groups]]
    skew_by_rank = drawn_steps.group_by("last_rank").agg(pl.col("skew_max_ns").sum())
    ranks_by_skew = skew_by_rank.sort("skew_max_ns", "last_rank")["last_rank"].reverse().to_list()
    coloured_ranks = ranks_by_skew[:MOST_COLOURED_RANKS]
    other_steps = drawn_steps.filter(~pl.col("last_rank").is_in(coloured_ranks))
    traces = []
    if other_steps.height:
        traces.append(_draw_points(other_steps, "another rank last", theme.quiet_colour))
    traces += [
        _draw_points(drawn_steps.filter(pl.col("last_rank") == rank), f"rank {rank} last", colour)
        for rank, colour in zip(coloured_ranks, theme.series_colours, strict=False)
    ]
    skew_axis = axes.log_durations(float(np.maximum(skew_ns, 1).min()), float(skew_ns.max()))
    plot = figure(
        theme, *traces, xaxis=axes.STEPS, yaxis=skew_axis, showlegend=True, margin={"t": 30}
    )
    by_skew = steps.sort("skew_max_ns", descending=True).head(MOST_STEPS_LISTED)
    return Drawing(plot, over_run_summary(steps), quantity.tabulate(by_skew, STEP_COLUMNS))


def over_run_summary(steps: pl.DataFrame) -> str:
    """Return the median of the steps' median arrival skews (`skew_ns`), and the largest of a call."""
    largest_step = steps.sort("skew_max_ns").row(-1, named=True)
    median_ns = float(np.median(steps["skew_ns"].to_numpy()))
    return (
        f"Median arrival skew {text.duration(median_ns)} per step; largest in step "
        f"{largest_step['step']}: {text.duration(largest_step['skew_max_ns'])}, rank "
        f"{largest_step['last_rank']} last."
    )


def _draw_points(steps: pl.DataFrame, name: str, colour: str) -> go.Scatter:
    """Draw a point per step (row) at its largest arrival skew; a logarithmic axis has no zero."""
    skew_ns, last_ranks = steps["skew_max_ns"], steps["last_rank"]
    skews_and_ranks = zip(skew_ns, last_ranks, strict=True)
    texts = [f"skew {text.duration(ns)}, rank {rank} last" for ns, rank in skews_and_ranks]
    custom_data = pairs(texts, steps.select(CALL_COLUMNS).rows())
    marker, hover = {"size": 6, "color": colour}, "step %{x}: %{customdata[0]}"
    drawn_ns = skew_ns.clip(lower_bound=1).to_list()
    return dots(steps["step"].to_list(), drawn_ns, marker, hover, name=name, customdata=custom_data)

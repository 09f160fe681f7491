"""Arrival skew of collectives: last arrivals, distribution, over the run, and what it costs per step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from tracelens.lod import step_times
from tracelens_dashboard import text
from tracelens_dashboard import theme as themes
from tracelens_dashboard.figures import axes, histogram, quantity, stacked_steps
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.figures.stacked_steps import Part

if TYPE_CHECKING:
    from tracelens_dashboard.theme import Theme

MOST_RANKS: Final = 32
MOST_POINTS: Final = 500
NAMED: Final = 3  # ranks with a colour of their own
TABLE_ROWS: Final = 500
TIMES_SURE: Final = 3  # standard deviations of the clocks: what is below may be theirs
MOSTLY: Final = 0.6  # of the time in collectives: beyond, one of both dominates
COUNTED: Final = "calls"
CALL_COLUMNS: Final = ("first_ns", "over_ns", "last_rank")
NONE_IN_STEPS: Final = "No collectives within steps."
NO_CALLS: Final = "No call entered by several ranks was recorded."


def last_arrivals(last: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a row a rank, of many those that are last beyond chance, or cause most wait alone."""
    if last.is_empty():
        return empty(theme, NO_CALLS)
    beyond = pl.col("last") - pl.col("chance")
    ordered = last.sort("alone_ns", descending=True)
    shown = (
        last
        if last.height <= MOST_RANKS
        else pl.concat([last.sort(beyond, descending=True).head(MOST_RANKS // 2), ordered])
        .unique("rank", maintain_order=True)
        .head(MOST_RANKS)
        .sort("rank")
    )
    drawn = make_subplots(
        cols=2,
        shared_yaxes=True,
        horizontal_spacing=0.06,
        subplot_titles=["last arrivals (calls)", "wait caused alone"],
    )
    labels = [f"rank {rank} " for rank in shown["rank"]]
    drawn.add_trace(_counts(shown, labels, theme), row=1, col=1)
    drawn.add_trace(_chance(shown, labels, theme), row=1, col=1)
    drawn.add_trace(_alone(shown, labels, theme), row=1, col=2)
    _set_axes(drawn, shown, theme)
    return Drawing(drawn, last_arrivals_summary(last), last_arrivals_table(last))


def last_arrivals_summary(last: pl.DataFrame) -> str:
    """Return which rank is last more often than by chance, and which causes most wait alone."""
    longest = last.sort("alone_ns").row(-1, named=True)
    waited = (
        f"Most wait caused alone: rank {longest['rank']}, "
        f"{text.duration(longest['alone_ns'])} over the run."
    )
    often = last.filter(pl.col("last") > pl.col("chance")).sort("last", descending=True)
    if often.is_empty():
        return f"No rank arrives last more often than expected by chance. {waited}"
    first = often.row(0, named=True)
    others = f", as do {text.count(often.height - 1, 'other')}" if often.height > 1 else ""
    return (
        f"Rank {first['rank']} arrives last in {first['last']:,} of {first['calls']:,} calls, more "
        f"often than expected by chance (at most {first['chance']:,.0f}){others}. {waited}"
    )


def last_arrivals_table(last: pl.DataFrame) -> list[dict[str, Any]]:
    """List all ranks, those that cause most wait alone first."""
    return [
        {
            "rank": row["rank"],
            "calls": row["calls"],
            "last arrivals": row["last"],
            "expected by chance": round(row["expected"], 1),
            "chance, upper bound": round(row["chance"], 1),
            "wait caused alone": quantity.time(row["alone_ns"]),
            "waited": quantity.time(row["wait_ns"]),
            "transfer": quantity.time(row["transfer_ns"]),
        }
        for row in last.sort("alone_ns", descending=True).iter_rows(named=True)
    ]


def _leads(shown: pl.DataFrame) -> list[list[Any] | None]:
    """Return the call that waited longest for each rank."""
    return [
        None if begin is None else [begin, end, rank]
        for rank, begin, end in shown.select("rank", "first_ns", "over_ns").iter_rows()
    ]


def _counts(shown: pl.DataFrame, labels: list[str], theme: Theme) -> go.Bar:
    beyond = shown["last"].to_numpy() > shown["chance"].to_numpy()
    counts = [
        f"{last:,} of {calls:,} calls" for last, calls in shown.select("last", "calls").iter_rows()
    ]
    return go.Bar(
        orientation="h",
        y=labels,
        x=shown["last"].to_list(),
        marker={"color": np.where(beyond, theme.loss, theme.accent).tolist()},
        customdata=[list(pair) for pair in zip(counts, _leads(shown), strict=True)],
        hovertemplate="%{y}arrives last in %{customdata[0]}<extra></extra>",
    )


def _chance(shown: pl.DataFrame, labels: list[str], theme: Theme) -> go.Scatter:
    """Mark what is expected by chance, and its upper bound."""
    reach = shown["chance"].to_numpy() - shown["expected"].to_numpy()
    return go.Scatter(
        x=shown["expected"].to_list(),
        y=labels,
        mode="markers",
        marker={"symbol": "line-ns", "size": 11, "line": {"width": 2, "color": theme.text}},
        error_x={
            "array": reach.tolist(),
            "arrayminus": [0] * len(reach),
            "color": theme.text,
            "width": 3,
        },
        customdata=[
            [f"{about:.0f}, at most {most:.0f}", None]
            for about, most in shown.select("expected", "chance").iter_rows()
        ],
        hovertemplate="expected by chance: %{customdata[0]}<extra></extra>",
    )


def _alone(shown: pl.DataFrame, labels: list[str], theme: Theme) -> go.Bar:
    lengths = [text.duration(ns) for ns in shown["alone_ns"]]
    return go.Bar(
        orientation="h",
        y=labels,
        x=shown["alone_ns"].to_list(),
        marker={"color": theme.categories["wait"], "line": {"width": 1, "color": theme.secondary}},
        customdata=[list(pair) for pair in zip(lengths, _leads(shown), strict=True)],
        hovertemplate="wait caused by %{y}alone: %{customdata[0]}<extra></extra>",
    )


def _set_axes(drawn: go.Figure, shown: pl.DataFrame, theme: Theme) -> None:
    drawn.update_layout(template=themes.template(theme.name), margin={"t": 34}, bargap=0.35)
    drawn.update_annotations(font={"size": 12, "color": theme.secondary})
    drawn.update_xaxes(fixedrange=True, nticks=5, rangemode="tozero")
    most = float(shown["alone_ns"].to_numpy().max())
    drawn.update_xaxes(axes.durations(most * 1.05, most=4), row=1, col=2)
    stride = max(-(-shown.height // MOST_RANKS), 1)
    drawn.update_yaxes(fixedrange=True, autorange="reversed", dtick=stride)


def distribution(spread: pl.DataFrame, uncertainty_ns: int, theme: Theme) -> Drawing:
    """Draw the skew of all calls by operation; `spread` as `Arrivals.spread`."""
    if spread.is_empty():
        return empty(theme, NO_CALLS)
    bars = histogram.of_table(spread, "op", CALL_COLUMNS, theme)
    drawn = histogram.draw(bars, "arrival skew (first to last arrival)", COUNTED, theme)
    named = [
        ("p50", histogram.quantile(spread, 0.5)),
        ("p99", histogram.quantile(spread, 0.99)),
    ]
    if uncertainty_ns:
        named.insert(0, ("clock uncertainty (3 sigma)", float(TIMES_SURE * uncertainty_ns)))
    histogram.mark(drawn, named, theme)
    return Drawing(
        drawn, distribution_summary(spread, uncertainty_ns), histogram.rows(bars, COUNTED)
    )


def distribution_summary(spread: pl.DataFrame, uncertainty_ns: int) -> str:
    """Return the median and the tail of the skew, and the clocks' uncertainty."""
    half, rare = (text.duration(histogram.quantile(spread, share)) for share in (0.5, 0.99))
    largest = spread.sort("from_ns").row(-1, named=True)
    calls = text.count(int(spread["count"].sum()), "call")
    sentence = (
        f"Arrival skew of {calls}: p50 {half}, p99 {rare}; largest in step {largest['step']}, "
        f"rank {largest['last_rank']} last."
    )
    if not uncertainty_ns:
        return sentence
    sure = text.duration(TIMES_SURE * uncertainty_ns)
    return f"{sentence} Skew below {sure} is within clock uncertainty."


def by_step(by_step: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw the mean rank's time; `by_step` as `arrivals.STEP_COLUMNS`."""
    if by_step.is_empty():
        return empty(theme, NONE_IN_STEPS)
    parts = (
        Part("transfer_ns", "transfer", theme.categories["transfer"]),
        Part("wait_ns", "wait for the last arrival", theme.categories["wait"]),
    )
    return Drawing(
        stacked_steps.draw(by_step, parts, theme),
        by_step_summary(by_step),
        stacked_steps.rows(by_step, parts),
    )


def by_step_summary(by_step: pl.DataFrame) -> str:
    """Return which of both dominates."""
    waited, moved = (int(by_step[name].sum()) for name in ("wait_ns", "transfer_ns"))
    whole = waited + moved
    if not whole:
        return "Collectives take no time."
    share = waited / whole
    each = text.duration(whole / by_step.height)
    begin = (
        f"A rank spends {each} per step in collectives, including time overlapped with compute: "
        f"{text.percent(share)} wait for the last arrival, {text.percent(1 - share)} transfer."
    )
    if share > MOSTLY:
        return f"{begin} Arrival skew dominates, not the network."
    if share < 1 - MOSTLY:
        return f"{begin} Transfer dominates, not arrival skew."
    return begin


def over_run(by_step: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a point a step; `by_step` as `arrivals.STEP_COLUMNS`. Of many steps the worst are kept."""
    if by_step.is_empty():
        return empty(theme, NONE_IN_STEPS)
    skew = by_step["skew_max_ns"].to_numpy()
    columns = step_times.split_evenly(by_step.height, MOST_POINTS)
    kept = by_step[[part.start + int(skew[part].argmax()) for part in columns]]
    lost = (
        kept.group_by("last_rank").agg(pl.col("skew_max_ns").sum()).sort("skew_max_ns", "last_rank")
    )
    named = lost["last_rank"].reverse().to_list()[:NAMED]
    strong = theme.series
    points = [
        _points(kept.filter(pl.col("last_rank") == rank), f"rank {rank} last", colour)
        for rank, colour in zip(named, strong, strict=False)
    ]
    others = kept.filter(~pl.col("last_rank").is_in(named))
    if others.height:
        points.insert(0, _points(others, "another rank last", theme.quiet))
    low = float(np.maximum(skew, 1).min())
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "step"}, "showgrid": False, "fixedrange": True},
        "yaxis": axes.log_durations(low, float(skew.max())),
        "showlegend": True,
        "margin": {"t": 30},
    }
    return Drawing(
        figure(theme, *points, **layout), over_run_summary(by_step), over_run_table(by_step)
    )


def over_run_summary(by_step: pl.DataFrame) -> str:
    """Return the median skew, and the step with the largest."""
    worst = by_step.sort("skew_max_ns").row(-1, named=True)
    usual = float(np.median(by_step["skew_ns"].to_numpy()))
    return (
        f"Median arrival skew {text.duration(usual)} per step; largest in step {worst['step']}: "
        f"{text.duration(worst['skew_max_ns'])}, rank {worst['last_rank']} last."
    )


def over_run_table(by_step: pl.DataFrame) -> list[dict[str, Any]]:
    """List the steps with the largest skew."""
    worst = by_step.sort("skew_max_ns", descending=True).head(TABLE_ROWS)
    return [
        {
            "step": row["step"],
            "calls": row["calls"],
            "skew, median": quantity.time(row["skew_ns"]),
            "skew, max": quantity.time(row["skew_max_ns"]),
            "last rank": row["last_rank"],
        }
        for row in worst.iter_rows(named=True)
    ]


def _points(rows: pl.DataFrame, name: str, colour: str) -> go.Scatter:
    wanted = ("skew_max_ns", "first_ns", "over_ns", "last_rank")
    return go.Scatter(
        name=name,
        x=rows["step"].to_list(),
        y=rows["skew_max_ns"].clip(lower_bound=1).to_list(),
        mode="markers",
        marker={"size": 6, "color": colour},
        customdata=[
            [f"skew {text.duration(skew)}, rank {rank} last", [first, over, rank]]
            for skew, first, over, rank in rows.select(wanted).iter_rows()
        ],
        hovertemplate="step %{x}: %{customdata[0]}<extra></extra>",
    )

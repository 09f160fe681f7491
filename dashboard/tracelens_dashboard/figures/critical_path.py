"""The critical path: its ranks per step, composition, longest segments, and the slack of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go

from tracelens.lod.colours import mixed
from tracelens.model.fmt import capital
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, quantity
from tracelens_dashboard.figures.axes import TIMES, cell_lead, scaled
from tracelens_dashboard.figures.drawing import Drawing, bars, dots, empty, figure
from tracelens_dashboard.figures.quantity import milliseconds, rounded
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens_dashboard.theme import Theme

MOST_ROWS: Final = 24  # the ranks that hold most; all others share a row below them
MOST_COLUMNS: Final = 320
FEW_COLUMNS: Final = 40  # between which there is a gap
OTHERS: Final = -1
STRENGTHS: Final = ((0.5, 1.0), (0.2, 0.6), (0.0, 0.3))  # least share of a step's path, how strong
NO_PATH: Final = "No steps recorded: no critical path."
GROUPS: Final = ("rank", "category", "host")
MOST_GROUPS: Final = 16
LEAST_SHARE: Final = 0.003  # of the path; categories with less are in the table
OUTSIDE: Final = "outside"
MOST_SEGMENTS: Final = 14
MOST_CELLS_LISTED: Final = 5000
MOST_SLACK_RANKS: Final = 24
CRITICAL_SHARE: Final = 0.5  # of the steps on the path: drawn in red
UNKNOWN: Final = "No full collectives between ranks were recorded, so slack is unknown."
ALONE: Final = "A single rank waits for no other: all of its time is on the path."
CELL_COLUMNS: Final[quantity.Columns] = {
    "step": "step",
    "rank": "rank",
    "phase": ("category", name_of),
    "time on the path (ms)": ("ns", lambda ns: ns / 1e6),
}
SLACK_COLUMNS: Final[quantity.Columns] = {
    "rank": "rank",
    "slack, median (ms)": ("slack_ns", milliseconds(4)),
    "slack, min (ms)": ("least_slack_ns", milliseconds(4)),
    "% of steps without slack": ("critical_steps", rounded(2, 0.01)),
}


def by_step(cells: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw the ranks on the path; `cells` as in `analyses.critical_path`.

    A cell is coloured by the category that took most of the path on its rank, the fainter the less of
    the step's path it holds; it is blank where the path was elsewhere.
    """
    if cells.is_empty():
        return empty(theme, NO_PATH)
    dominant = _find_dominant(_group_cells(cells))
    rows = dominant["row"].unique().sort().to_list()
    ranks = [rank for rank in rows if rank != OTHERS] + [OTHERS] * (OTHERS in rows)
    categories = [name for name in theme.categories if name in set(dominant["category"])]
    columns = dominant["column"].unique().sort().to_list()
    colours = np.full((len(ranks), len(columns)), np.nan, np.float32)
    links, texts = np.full(colours.shape, None, object), np.full(colours.shape, "", object)
    for row, column, category, ns, rank, share in dominant.iter_rows():
        cell = ranks.index(row), columns.index(column)
        strength = next(i for i, (least, _) in enumerate(STRENGTHS) if share >= least)
        colours[cell] = categories.index(category) * len(STRENGTHS) + strength
        links[cell] = cell_lead(rank, column)
        texts[cell] = (
            f"rank {rank}, step {column}: {name_of(category)}, {text.duration(ns)} of the path, "
            f"{text.percent(share)} of it is on this rank"
        )
    heat = go.Heatmap(
        z=colours,
        x=columns,
        y=list(range(len(ranks))),
        customdata=links.tolist(),
        text=texts.tolist(),
        colorscale=_stepped_scale(categories, theme),
        zmin=-0.5,
        zmax=len(categories) * len(STRENGTHS) - 0.5,
        showscale=False,
        hoverongaps=False,
        xgap=1 if len(columns) <= FEW_COLUMNS else 0,
        ygap=2,
        hovertemplate="%{text}<extra></extra>",
    )
    labels = ["other ranks " if rank == OTHERS else f"rank {rank} " for rank in ranks]
    plot = figure(
        theme,
        heat,
        *(_legend_entry(name, theme) for name in categories),
        xaxis=axes.STEPS,
        yaxis=axes.labelled_rows(labels, theme, showgrid=False, zeroline=False),
        showlegend=True,
        legend={"itemclick": False},
    )
    table = quantity.tabulate(cells.head(MOST_CELLS_LISTED), CELL_COLUMNS)
    return Drawing(plot, by_step_sentence(cells), table)


def by_step_sentence(cells: pl.DataFrame) -> str:
    """Return the rank that holds most of the path, and how often the path changes ranks."""
    rank_shares = _sum_shares(cells, "rank")
    rank, share = rank_shares[0]
    phase = name_of(_sum_shares(cells.filter(pl.col("rank") == rank), "category")[0][0])
    if len(rank_shares) == 1:
        return f"All of the path is on rank {rank}, most of it in {phase}."
    ranks_by_step = cells.group_by("step").agg(pl.col("rank").n_unique())["rank"]
    changes = int((ranks_by_step > 1).sum()) / len(ranks_by_step)
    return (
        f"Rank {rank} holds {text.percent(share)} of the path, most of it in {phase}; "
        f"{text.count(len(rank_shares), 'rank')} share it, and it changes ranks within "
        f"{text.percent(changes)} of the steps."
    )


def _sum_shares(cells: pl.DataFrame, by: str) -> list[tuple[Any, float]]:
    """Return the share of the path of each value of a column, the largest first."""
    total_ns = max(int(cells["ns"].sum()), 1)
    sums = cells.group_by(by).agg(pl.col("ns").sum()).sort("ns", by, descending=[True, False])
    return [(value, ns / total_ns) for value, ns in sums.iter_rows()]


def _group_cells(cells: pl.DataFrame) -> pl.DataFrame:
    """Add each cell's row, and its column's first step."""
    ranks = [rank for rank, _ in _sum_shares(cells, "rank")[:MOST_ROWS]]
    steps = cells["step"].unique().sort().to_numpy()
    columns = np.array_split(steps, min(len(steps), MOST_COLUMNS))
    first_steps = np.array([column[0] for column in columns])
    index = np.searchsorted(first_steps, cells["step"].to_numpy(), side="right") - 1
    row = pl.when(pl.col("rank").is_in(ranks)).then("rank").otherwise(OTHERS)
    return cells.with_columns(row=row, column=pl.Series(first_steps[index]))


def _find_dominant(cells: pl.DataFrame) -> pl.DataFrame:
    """Return the category and rank with most of each row and column, and the cell's share."""
    cell_columns = ["row", "column"]
    sums = cells.group_by(*cell_columns, "category").agg(
        pl.col("ns").sum(), pl.col("rank").get(pl.col("ns").arg_max())
    )
    total_ns = pl.col("ns").sum().over("column")
    shares = sums.with_columns(share=pl.col("ns").sum().over(cell_columns) / total_ns)
    dominant = (
        shares.sort("ns", descending=True).group_by(cell_columns, maintain_order=True).first()
    )
    return dominant.select(*cell_columns, "category", "ns", "rank", "share")


def _stepped_scale(categories: list[str], theme: Theme) -> list[list[object]]:
    """Return a colour scale without transitions: each category in all strengths."""
    colours = [
        "rgb({},{},{})".format(*mixed(theme.categories[name], theme.surface, strength))
        for name in categories
        for _, strength in STRENGTHS
    ]
    width = 1 / len(colours)
    return [
        [side, colour]
        for index, colour in enumerate(colours)
        for side in (index * width, min((index + 1) * width, 1.0))
    ]


def _legend_entry(category: str, theme: Theme) -> go.Scatter:
    return go.Scatter(
        x=[None],
        y=[None],
        mode="markers",
        name=name_of(category),
        marker={"symbol": "square", "size": 11, "color": theme.categories[category]},
        hoverinfo="skip",
    )


def composition(
    shares: pl.DataFrame, hosts: Mapping[int, str], grouping: str, theme: Theme
) -> Drawing:
    """Draw a bar a group, the largest first, each divided by category.

    `shares` as in `analyses.critical_path`, `hosts` by rank, `by` one of `GROUPS`.
    """
    if shares.is_empty():
        return empty(theme, NO_PATH)
    grouped = shares.with_columns(group=_group_name(grouping, hosts))
    sums = grouped.group_by("group").agg(pl.col("share").sum())
    order = sums.sort("share", "group", descending=[True, False])
    drawn = order.head(MOST_GROUPS)["group"].to_list()
    group_shares = grouped.group_by("group", "category", maintain_order=True).agg(
        pl.col("share").sum()
    )
    totals = dict(group_shares.group_by("category").agg(pl.col("share").sum()).iter_rows())
    traces = []
    for category in [*theme.categories, OUTSIDE]:
        if totals.get(category, 0.0) >= LEAST_SHARE:
            bar = group_shares.filter(pl.col("category") == category)
            name, groups = part_name(category), bar["group"].to_list()
            colour = theme.categories.get(category, theme.quiet)
            data = [[grouping, group, category] for group in groups]
            hover, percents = f"%{{y}}, {name}: %{{x:.1f}} % of the path", 100 * bar["share"]
            traces.append(
                bars(groups, percents.to_list(), colour, hover, name=name, customdata=data)
            )
    order_of_rows = {"categoryorder": "array", "categoryarray": drawn, "ticksuffix": " "}
    plot = figure(
        theme,
        *traces,
        barmode="stack",
        bargap=0.3 if len(drawn) > 3 else 0.6,
        xaxis={"ticksuffix": " %", "fixedrange": True, "title": {"text": "of the path"}},
        yaxis=axes.rows_of(len(drawn), theme, **order_of_rows),
        showlegend=True,
        legend={"traceorder": "normal"},
    )
    return Drawing(
        plot,
        _composition_sentence(order, grouped, grouping),
        _composition_rows(group_shares, order),
    )


def part_name(category: str) -> str:
    """Return the name of a category of the path."""
    return "before the first step" if category == OUTSIDE else name_of(category)


def _group_name(grouping: str, hosts: Mapping[int, str]) -> pl.Expr:
    if grouping == "host":
        names = {rank: text.safe(host) for rank, host in hosts.items()}
        return pl.col("rank").replace_strict(names, default="?", return_dtype=pl.String)
    if grouping == "category":
        return pl.col("category").map_elements(part_name, return_dtype=pl.String)
    return pl.format("rank {}", "rank")


def _composition_sentence(order: pl.DataFrame, grouped: pl.DataFrame, grouping: str) -> str:
    group, share = order.row(0)
    members = grouped.filter(pl.col("group") == group).sort("share", descending=True)
    if grouping == "category":
        return (
            f"{text.percent(share)} of the path is {group}, most of it on rank {members['rank'][0]}: "
            "only time on the path shortens the job."
        )
    phase = part_name(members["category"][0])
    return f"{capital(group)} has {text.percent(share)} of the path, most of it in {phase}."


def _composition_rows(parts: pl.DataFrame, order: pl.DataFrame) -> list[dict[str, Any]]:
    totals = order.select("group", total="share")
    table = parts.join(totals, on="group").sort("total", "share", descending=True)
    return [
        {"group": group, "phase": part_name(category), "% of the path": round(100 * share, 3)}
        for group, category, share, _ in table.iter_rows()
    ]


def segments(longest: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a bar a segment; `longest` as in `analyses.critical_path`, the longest first."""
    if longest.is_empty():
        return empty(theme, NO_PATH)
    drawn = longest.head(MOST_SEGMENTS).to_dicts()
    lengths_ns = np.array([row["end_ns"] - row["start_ns"] for row in drawn], float)
    unit, lengths = scaled(lengths_ns, TIMES)
    labels, names, hovers = [], [], []
    for row, ns in zip(drawn, lengths_ns.tolist(), strict=True):
        position = f"rank {row['rank']}, step {row['step']}"
        name = f" {text.safe(row['name']) or name_of(row['category'])}, {text.duration(ns)} "
        labels.append(f"{position} ")
        names.append(name)
        hovers.append(f"{position}, {name_of(row['category'])}:{name}")
    indexes = list(range(len(drawn)))
    trace = bars(
        indexes,
        lengths,
        [theme.categories[row["category"]] for row in drawn],
        "%{hovertext}",
        customdata=indexes,
        text=names,
        textposition="auto",
        hovertext=hovers,
    )
    length_axis = {"fixedrange": True, "ticksuffix": f" {unit}", "nticks": 4}
    rows = axes.labelled_rows(labels, theme)
    plot = figure(theme, trace, xaxis=length_axis, yaxis=rows, bargap=0.25)
    return Drawing(plot, _segments_sentence(longest), segment_rows(longest))


def segment_rows(longest: pl.DataFrame) -> list[dict[str, Any]]:
    """List them; a row's index is the segment's."""
    return [
        {
            "rank": row["rank"],
            "step": row["step"],
            "phase": name_of(row["category"]),
            "span": row["name"] or "",
            "duration (ms)": round((row["end_ns"] - row["start_ns"]) / 1e6, 4),
        }
        for row in longest.iter_rows(named=True)
    ]


def _segments_sentence(longest: pl.DataFrame) -> str:
    segment = longest.row(0, named=True)
    counts = longest.group_by("rank", "category").len()
    order = counts.sort("len", "rank", "category", descending=[True, False, False])
    rank, category, count = order.row(0)
    return (
        f"The longest segment is {text.duration(segment['end_ns'] - segment['start_ns'])} of "
        f"{name_of(segment['category'])} on rank {segment['rank']} in step {segment['step']}; of the "
        f"{longest.height} longest, {count} are {name_of(category)} on rank {rank}."
    )


def slack(ranks: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw the median slack of a step as a dot, the least as a ring, the least slack on top.

    `ranks` as in `analyses.slack`: how much later each rank could be without delaying the job.
    """
    if ranks.is_empty():
        return empty(theme, UNKNOWN)
    if ranks.height == 1:
        return empty(theme, ALONE)
    ordered = ranks.sort("slack_ns", "rank")
    drawn = ordered.head(MOST_SLACK_RANKS)
    medians_ns = drawn["slack_ns"].to_numpy().astype(float)
    is_critical = drawn["critical_steps"].to_numpy() > CRITICAL_SHARE
    labels = [f"rank {rank} " for rank in drawn["rank"]]
    data = [
        [rank, text.percent(critical), text.duration(median_ns), text.duration(least_ns)]
        for rank, critical, median_ns, least_ns in drawn.select(
            "rank", "critical_steps", "slack_ns", "least_slack_ns"
        ).iter_rows()
    ]
    common: dict[str, Any] = {"cliponaxis": False, "customdata": data}
    rings = dots(
        drawn["least_slack_ns"].to_numpy(),
        labels,
        {"size": 9, "symbol": "circle-open", "color": theme.secondary},
        "%{y}slack at least %{customdata[3]}",
        name="least",
        **common,
    )
    medians = dots(
        medians_ns,
        labels,
        {"size": 11, "color": np.where(is_critical, theme.loss, theme.accent)},
        "%{y}slack %{customdata[2]} in the median step, none in %{customdata[1]} of steps",
        name="median step",
        **common,
    )
    slack_axis = {"zeroline": False, "title": {"text": "slack per step"}}
    plot = figure(
        theme,
        rings,
        medians,
        xaxis=axes.durations(float(medians_ns.max())) | slack_axis,
        yaxis=axes.rows_of(len(labels), theme, ticksuffix=" "),
        showlegend=True,
        legend={"traceorder": "reversed"},
    )
    return Drawing(plot, slack_sentence(ordered), quantity.tabulate(ordered, SLACK_COLUMNS))


def slack_sentence(ordered: pl.DataFrame) -> str:
    """Return the rank with least slack, and the one with most."""
    tightest, loosest = ordered.row(0, named=True), ordered.row(-1, named=True)
    critical = ordered.sort("critical_steps", descending=True).row(0, named=True)
    most_text = (
        f"rank {loosest['rank']} has {text.duration(loosest['slack_ns'])} of slack in most steps"
    )
    if critical["critical_steps"] > CRITICAL_SHARE:
        return (
            f"Rank {critical['rank']} has no slack in "
            f"{text.percent(critical['critical_steps'])} of steps; {most_text}."
        )
    return (
        f"No rank is always on the path: rank {tightest['rank']} has least slack, "
        f"{text.duration(tightest['slack_ns'])} in the median step, and {most_text}."
    )

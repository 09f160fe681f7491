"""The critical path: its ranks per step, composition, longest segments, and the slack of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go

from tracelens.lod.colours import mix_colours
from tracelens.model.fmt import capital
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, quantity
from tracelens_dashboard.figures.axes import TIMES, scale_to_unit, write_cell_values
from tracelens_dashboard.figures.drawing import Drawing, bars, dots, empty, figure
from tracelens_dashboard.figures.quantity import milliseconds, rounded
from tracelens_dashboard.theme import Theme, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping


MOST_ROWS: Final = 24  # the ranks that hold most; all others share a row below them
MOST_COLUMNS: Final = 320
FEW_COLUMNS: Final = 40  # between which there is a gap
OTHERS: Final = -1  # in place of a rank: all that have no row
# (least share of a step's path, strength of the colour from 0 to 1)
COLOUR_STRENGTHS: Final = ((0.5, 1.0), (0.2, 0.6), (0.0, 0.3))
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
    "slack, median (ms)": ("slack_ns", milliseconds(digits=4)),
    "slack, min (ms)": ("least_slack_ns", milliseconds(digits=4)),
    "% of steps without slack": ("critical_steps", rounded(digits=2, factor=0.01)),
}


def by_step(cells: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw the ranks on the path, step by step.

    `cells` has one row per step, rank and category with its time on the path, `ns`. A cell is
    coloured by the category that took most of the path on its rank, the fainter the less of the
    step's path it holds; it is blank where the path was elsewhere. Its colour is a number: of the
    category and strength.
    """
    if cells.is_empty():
        return empty(theme, NO_PATH)
    dominant = _find_dominant(_group_cells(cells))
    row_ranks = dominant["row"].unique().sort().to_list()
    ranks = [rank for rank in row_ranks if rank != OTHERS] + [OTHERS] * (OTHERS in row_ranks)
    categories = [name for name in theme.colour_by_category if name in set(dominant["category"])]
    first_steps = dominant["column"].unique().sort().to_list()
    colour_numbers = np.full((len(ranks), len(first_steps)), np.nan, np.float32)  # [rank, column]
    cell_links = np.full(colour_numbers.shape, None, object)
    cell_texts = np.full(colour_numbers.shape, "", object)
    for row_rank, first_step, category, ns, rank, share in dominant.iter_rows():
        cell = ranks.index(row_rank), first_steps.index(first_step)
        strength_index = next(i for i, (least, _) in enumerate(COLOUR_STRENGTHS) if share >= least)
        colour_numbers[cell] = categories.index(category) * len(COLOUR_STRENGTHS) + strength_index
        cell_links[cell] = write_cell_values(rank, first_step)
        cell_texts[cell] = (
            f"rank {rank}, step {first_step}: {name_of(category)}, {text.duration(ns)} of the "
            f"path, {text.percent(share)} of it is on this rank"
        )
    heat = go.Heatmap(
        z=colour_numbers,
        x=first_steps,
        y=list(range(len(ranks))),
        customdata=cell_links.tolist(),
        text=cell_texts.tolist(),
        colorscale=_stepped_scale(categories, theme),
        zmin=-0.5,
        zmax=len(categories) * len(COLOUR_STRENGTHS) - 0.5,
        showscale=False,
        hoverongaps=False,
        xgap=1 if len(first_steps) <= FEW_COLUMNS else 0,
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
    return Drawing(plot, describe_steps(cells), table)


def describe_steps(cells: pl.DataFrame) -> str:
    """Return the rank that holds most of the path, and how often the path changes ranks."""
    # `cells` has one row per step, rank and category with its time on the path.
    rank_shares = _sum_shares(cells, "rank")
    rank, share = rank_shares[0]
    phase_name = name_of(_sum_shares(cells.filter(pl.col("rank") == rank), "category")[0][0])
    if len(rank_shares) == 1:
        return f"All of the path is on rank {rank}, most of it in {phase_name}."
    rank_counts = cells.group_by("step").agg(pl.col("rank").n_unique())["rank"]
    changing_share = int((rank_counts > 1).sum()) / len(rank_counts)
    return (
        f"Rank {rank} holds {text.percent(share)} of the path, most of it in {phase_name}; "
        f"{text.count(len(rank_shares), 'rank')} share it, and it changes ranks within "
        f"{text.percent(changing_share)} of the steps."
    )


def _sum_shares(cells: pl.DataFrame, column: str) -> list[tuple[Any, float]]:
    """Return (value of a column, its share of the path's time), the largest share first."""
    total_ns = max(int(cells["ns"].sum()), 1)
    time_by_value = (
        cells.group_by(column).agg(pl.col("ns").sum()).sort("ns", column, descending=[True, False])
    )
    return [(value, ns / total_ns) for value, ns in time_by_value.iter_rows()]


def _group_cells(cells: pl.DataFrame) -> pl.DataFrame:
    """Add each cell's `row`, a rank or OTHERS, and `column`, the first of the steps drawn there."""
    # `cells` has one row per step, rank and category; ranks that hold most have their own rows.
    shown_ranks = [rank for rank, _ in _sum_shares(cells, "rank")[:MOST_ROWS]]
    steps = cells["step"].unique().sort().to_numpy()
    step_groups = np.array_split(steps, min(len(steps), MOST_COLUMNS))
    first_steps = np.array([group[0] for group in step_groups])
    group_index = np.searchsorted(first_steps, cells["step"].to_numpy(), side="right") - 1
    row_expression = pl.when(pl.col("rank").is_in(shown_ranks)).then("rank").otherwise(OTHERS)
    return cells.with_columns(row=row_expression, column=pl.Series(first_steps[group_index]))


def _find_dominant(cells: pl.DataFrame) -> pl.DataFrame:
    """Return a row per `row` and `column` with the category and rank that have most of its time."""
    # `ns` is that category's time, `share` that of all categories of the row in the column's time.
    cell_columns = ["row", "column"]
    totals = cells.group_by(*cell_columns, "category").agg(
        pl.col("ns").sum(), pl.col("rank").get(pl.col("ns").arg_max())
    )
    column_time = pl.col("ns").sum().over("column")
    cell_time = pl.col("ns").sum().over(cell_columns)
    largest_first = totals.with_columns(share=cell_time / column_time).sort("ns", descending=True)
    dominant = largest_first.group_by(cell_columns, maintain_order=True).first()
    return dominant.select(*cell_columns, "category", "ns", "rank", "share")


def _stepped_scale(categories: list[str], theme: Theme) -> list[list[object]]:
    """Return a colour scale without transitions: of each category all `COLOUR_STRENGTHS`, in turn."""
    colours = [
        "rgb({},{},{})".format(
            *mix_colours(theme.colour_by_category[name], theme.surface_colour, strength)
        )
        for name in categories
        for _, strength in COLOUR_STRENGTHS
    ]
    colour_width = 1 / len(colours)
    return [
        [edge, colour]
        for index, colour in enumerate(colours)
        for edge in (index * colour_width, min((index + 1) * colour_width, 1.0))
    ]


def _legend_entry(category: str, theme: Theme) -> go.Scatter:
    marker = {"symbol": "square", "size": 11, "color": theme.colour_by_category[category]}
    return go.Scatter(
        x=[None], y=[None], mode="markers", name=name_of(category), marker=marker, hoverinfo="skip"
    )


def composition(
    path_shares: pl.DataFrame, host_by_rank: Mapping[int, str], grouping: str, theme: Theme
) -> Drawing:
    """Draw the path's shares as bars by `grouping` (one of `GROUPS`), the largest first."""
    # `path_shares` has one row per rank and category, with its `share` of the path.
    if path_shares.is_empty():
        return empty(theme, NO_PATH)
    grouped_shares = path_shares.with_columns(group=_name_group(grouping, host_by_rank))
    share_by_group = grouped_shares.group_by("group").agg(pl.col("share").sum())
    groups_by_share = share_by_group.sort("share", "group", descending=[True, False])
    drawn_groups = groups_by_share.head(MOST_GROUPS)["group"].to_list()
    by_group_and_category = grouped_shares.group_by("group", "category", maintain_order=True)
    group_shares = by_group_and_category.agg(pl.col("share").sum())
    category_totals = group_shares.group_by("category").agg(pl.col("share").sum())
    share_by_category = dict(category_totals.iter_rows())
    traces = []
    for category in [*theme.colour_by_category, OUTSIDE]:
        if share_by_category.get(category, 0.0) >= LEAST_SHARE:
            category_shares = group_shares.filter(pl.col("category") == category)
            name, groups = part_name(category), category_shares["group"].to_list()
            colour = theme.colour_by_category.get(category, theme.quiet_colour)
            links = [[grouping, group, category] for group in groups]
            hover = f"%{{y}}, {name}: %{{x:.1f}} % of the path"
            percents = 100 * category_shares["share"]
            traces.append(
                bars(groups, percents.to_list(), colour, hover, name=name, customdata=links)
            )
    order_of_rows = {"categoryorder": "array", "categoryarray": drawn_groups, "ticksuffix": " "}
    plot = figure(
        theme,
        *traces,
        barmode="stack",
        bargap=0.3 if len(drawn_groups) > 3 else 0.6,
        xaxis={"ticksuffix": " %", "fixedrange": True, "title": {"text": "of the path"}},
        yaxis=axes.rows_of(len(drawn_groups), theme, **order_of_rows),
        showlegend=True,
        legend={"traceorder": "normal"},
    )
    return Drawing(
        plot,
        _composition_sentence(groups_by_share, grouped_shares, grouping),
        _composition_rows(group_shares, groups_by_share),
    )


def part_name(category: str) -> str:
    """Return the name of a category of the path."""
    return "before the first step" if category == OUTSIDE else name_of(category)


def _name_group(grouping: str, host_by_rank: Mapping[int, str]) -> pl.Expr:
    """Return the expression for the group of a row with the columns `rank` and `category`."""
    if grouping == "host":
        names = {rank: text.escape_name(host) for rank, host in host_by_rank.items()}
        return pl.col("rank").replace_strict(names, default="?", return_dtype=pl.String)
    if grouping == "category":
        return pl.col("category").map_elements(part_name, return_dtype=pl.String)
    return pl.format("rank {}", "rank")


def _composition_sentence(
    groups_by_share: pl.DataFrame, grouped_shares: pl.DataFrame, grouping: str
) -> str:
    """Return the largest group with its share of the path, and its largest member."""
    # `groups_by_share`: a row per group, largest first; `grouped_shares`: per rank and category.
    group, share = groups_by_share.row(0)
    shares_in_group = grouped_shares.filter(pl.col("group") == group).sort("share", descending=True)
    if grouping == "category":
        return (
            f"{text.percent(share)} of the path is {group}, most of it on rank "
            f"{shares_in_group['rank'][0]}: only time on the path shortens the job."
        )
    phase = part_name(shares_in_group["category"][0])
    return f"{capital(group)} has {text.percent(share)} of the path, most of it in {phase}."


def _composition_rows(
    group_shares: pl.DataFrame, groups_by_share: pl.DataFrame
) -> list[dict[str, Any]]:
    """List the shares of each group by category, the largest groups first."""
    # `group_shares` has one row per group and category, `groups_by_share` one per group.
    total_by_group = groups_by_share.select("group", total="share")
    shares = group_shares.join(total_by_group, on="group").sort("total", "share", descending=True)
    return [
        {"group": group, "phase": part_name(category), "% of the path": round(100 * share, 3)}
        for group, category, share, _ in shares.iter_rows()
    ]


def segments(longest: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a bar per segment of the path; `longest` has one row per segment, the longest first."""
    if longest.is_empty():
        return empty(theme, NO_PATH)
    drawn_segments = longest.head(MOST_SEGMENTS).to_dicts()
    lengths_ns = np.array([row["end_ns"] - row["start_ns"] for row in drawn_segments], float)
    unit_name, lengths = scale_to_unit(lengths_ns, TIMES)
    labels, names, hovers = [], [], []
    for row, ns in zip(drawn_segments, lengths_ns.tolist(), strict=True):
        position = f"rank {row['rank']}, step {row['step']}"
        name = f" {text.escape_name(row['name']) or name_of(row['category'])}, {text.duration(ns)} "
        labels.append(f"{position} ")
        names.append(name)
        hovers.append(f"{position}, {name_of(row['category'])}:{name}")
    segment_indexes = list(range(len(drawn_segments)))
    trace = bars(
        segment_indexes,
        lengths,
        [theme.colour_by_category[row["category"]] for row in drawn_segments],
        "%{hovertext}",
        customdata=segment_indexes,
        text=names,
        textposition="auto",
        hovertext=hovers,
    )
    length_axis = {"fixedrange": True, "ticksuffix": f" {unit_name}", "nticks": 4}
    rows = axes.labelled_rows(labels, theme)
    plot = figure(theme, trace, xaxis=length_axis, yaxis=rows, bargap=0.25)
    return Drawing(plot, _segments_sentence(longest), segment_rows(longest))


def segment_rows(longest: pl.DataFrame) -> list[dict[str, Any]]:
    """List the segments; the index of a row is that of its segment."""
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
    """Return the longest segment, and the rank and category with most of the segments (rows)."""
    longest_segment = longest.row(0, named=True)
    segment_counts = longest.group_by("rank", "category").len()
    counts_by_size = segment_counts.sort("len", "rank", "category", descending=[True, False, False])
    rank, category, count = counts_by_size.row(0)
    return (
        "The longest segment is "
        f"{text.duration(longest_segment['end_ns'] - longest_segment['start_ns'])} of "
        f"{name_of(longest_segment['category'])} on rank {longest_segment['rank']} in step "
        f"{longest_segment['step']}; of the {longest.height} longest, {count} are "
        f"{name_of(category)} on rank {rank}."
    )


def slack(ranks: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a rank's slack in the median step as a dot, the least as a ring, the least slack on top.

    Slack is how much later a rank could be without delaying the job. `ranks` has one row per rank
    (`SLACK_COLUMNS`); `critical_steps` is the share of steps in which it has none.
    """
    if ranks.is_empty():
        return empty(theme, UNKNOWN)
    if ranks.height == 1:
        return empty(theme, ALONE)
    ranks_by_slack = ranks.sort("slack_ns", "rank")
    drawn_ranks = ranks_by_slack.head(MOST_SLACK_RANKS)
    medians_ns = drawn_ranks["slack_ns"].to_numpy().astype(float)
    is_critical = drawn_ranks["critical_steps"].to_numpy() > CRITICAL_SHARE
    labels = [f"rank {rank} " for rank in drawn_ranks["rank"]]
    hover_texts = [
        [rank, text.percent(critical), text.duration(median_ns), text.duration(least_ns)]
        for rank, critical, median_ns, least_ns in drawn_ranks.select(
            "rank", "critical_steps", "slack_ns", "least_slack_ns"
        ).iter_rows()
    ]
    shared_options: dict[str, Any] = {"cliponaxis": False, "customdata": hover_texts}
    rings = dots(
        drawn_ranks["least_slack_ns"].to_numpy(),
        labels,
        {"size": 9, "symbol": "circle-open", "color": theme.secondary_colour},
        "%{y}slack at least %{customdata[3]}",
        name="least",
        **shared_options,
    )
    medians = dots(
        medians_ns,
        labels,
        {"size": 11, "color": np.where(is_critical, theme.loss_colour, theme.accent_colour)},
        "%{y}slack %{customdata[2]} in the median step, none in %{customdata[1]} of steps",
        name="median step",
        **shared_options,
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
    return Drawing(
        plot, describe_slack(ranks_by_slack), quantity.tabulate(ranks_by_slack, SLACK_COLUMNS)
    )


def describe_slack(ranks_by_slack: pl.DataFrame) -> str:
    """Return the rank with least slack, and the one with most."""
    # A rank is a row, least slack first; `critical_steps` is the share of steps without slack.
    least_row = ranks_by_slack.row(0, named=True)
    most_row = ranks_by_slack.row(-1, named=True)
    most_critical_row = ranks_by_slack.sort("critical_steps", descending=True).row(0, named=True)
    most_slack = text.duration(most_row["slack_ns"])
    most_slack_text = f"rank {most_row['rank']} has {most_slack} of slack in most steps"
    if most_critical_row["critical_steps"] > CRITICAL_SHARE:
        return (
            f"Rank {most_critical_row['rank']} has no slack in "
            f"{text.percent(most_critical_row['critical_steps'])} of steps; {most_slack_text}."
        )
    return (
        f"No rank is always on the path: rank {least_row['rank']} has least slack, "
        f"{text.duration(least_row['slack_ns'])} in the median step, and {most_slack_text}."
    )

"""The critical path: its ranks per step, composition by rank, phase or host, and longest segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go

from tracelens.lod.colours import mixed
from tracelens.model.fmt import capital
from tracelens_dashboard import text
from tracelens_dashboard.figures.axes import TIMES, cell_lead, scaled
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens_dashboard.theme import Theme


MOST_ROWS: Final = 24  # the ranks that hold most; all others share a row below them
MOST_COLUMNS: Final = 320
OTHERS: Final = -1
STRENGTHS: Final = ((0.5, 1.0), (0.2, 0.6), (0.0, 0.3))  # least share of a step's path, how strong
NO_PATH: Final = "No steps recorded: no critical path."
MS: Final = 1e6
GROUPS: Final = ("rank", "category", "host")
MOST_GROUPS: Final = 16
SMALLEST: Final = 0.003  # of the path; what is less is in the table
OUTSIDE: Final = "outside"
MOST_SEGMENTS: Final = 14


def by_step(cells: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw it; `cells` as in `analyses.critical_path`.

    A cell is coloured by the category that took most of the path on its rank, the fainter the less of
    the step's path it holds; it is blank where the path was elsewhere.
    """
    if cells.is_empty():
        return empty(theme, NO_PATH)
    table = _placed(cells)
    shown = _dominant(table)
    rows = shown["row"].unique().sort().to_list()
    ranks = [rank for rank in rows if rank != OTHERS] + [OTHERS] * (OTHERS in rows)
    names = [name for name in theme.categories if name in set(shown["category"])]
    columns = shown["column"].unique().sort().to_list()
    z = np.full((len(ranks), len(columns)), np.nan, np.float32)
    leads = np.full(z.shape, None, object)
    details = np.full(z.shape, "", object)
    for row, column, category, ns, rank, share in shown.iter_rows():
        place = ranks.index(row), columns.index(column)
        opacity = next(i for i, (least, _) in enumerate(STRENGTHS) if share >= least)
        z[place] = names.index(category) * len(STRENGTHS) + opacity
        spent = f"{name_of(category)}, {text.duration(ns)}"
        leads[place] = cell_lead(rank, column)
        details[place] = (
            f"rank {rank}, step {column}: {spent} of the path, "
            f"{text.percent(share)} of it is on this rank"
        )
    heat = go.Heatmap(
        z=z,
        x=columns,
        y=list(range(len(ranks))),
        customdata=leads.tolist(),
        text=details.tolist(),
        colorscale=_scale(_colours(names, theme)),
        zmin=-0.5,
        zmax=len(names) * len(STRENGTHS) - 0.5,
        showscale=False,
        hoverongaps=False,
        xgap=1 if len(columns) <= 40 else 0,
        ygap=2,
        hovertemplate="%{text}<extra></extra>",
    )
    drawn = figure(theme, heat, *_legend(names, theme), **_by_step_axes(ranks, theme))
    return Drawing(drawn, by_step_sentence(cells), _by_step_rows(cells))


def by_step_sentence(cells: pl.DataFrame) -> str:
    """Return the rank that holds most of it, and how often the path changes ranks."""
    by_rank = _shares(cells, "rank")
    first, share = by_rank[0]
    mine = cells.filter(pl.col("rank") == first)
    phase = _shares(mine, "category")[0][0]
    if len(by_rank) == 1:
        return f"All of the path is on rank {first}, most of it in {name_of(phase)}."
    steps = cells["step"].n_unique()
    alone = cells.group_by("step").agg(pl.col("rank").n_unique())["rank"]
    changes = int((alone > 1).sum())
    return (
        f"Rank {first} holds {text.percent(share)} of the path, most of it in {name_of(phase)}; "
        f"{text.count(len(by_rank), 'rank')} share it, and it changes ranks within "
        f"{text.percent(changes / steps)} of the steps."
    )


def _shares(cells: pl.DataFrame, by: str) -> list[tuple[Any, float]]:
    total = max(int(cells["ns"].sum()), 1)
    sums = cells.group_by(by).agg(pl.col("ns").sum()).sort("ns", by, descending=[True, False])
    return [(key, ns / total) for key, ns in sums.iter_rows()]


def _placed(cells: pl.DataFrame) -> pl.DataFrame:
    """Add each cell's row, and its column's first step."""
    kept = [rank for rank, _ in _shares(cells, "rank")[:MOST_ROWS]]
    steps = cells["step"].unique().sort().to_numpy()
    groups = np.array_split(steps, min(len(steps), MOST_COLUMNS))
    first = np.array([group[0] for group in groups])
    column = first[np.searchsorted(first, cells["step"].to_numpy(), side="right") - 1]
    row = pl.when(pl.col("rank").is_in(kept)).then("rank").otherwise(OTHERS)
    return cells.with_columns(row=row, column=pl.Series(column))


def _dominant(table: pl.DataFrame) -> pl.DataFrame:
    """Return what has most of each row and column: category and rank; and the cell's share."""
    by = ["row", "column"]
    sums = table.group_by(*by, "category").agg(
        pl.col("ns").sum(), pl.col("rank").get(pl.col("ns").arg_max())
    )
    whole = pl.col("ns").sum().over("column")
    most = sums.with_columns(share=pl.col("ns").sum().over(by) / whole)
    picked = most.sort("ns", descending=True).group_by(by, maintain_order=True).first()
    return picked.select(*by, "category", "ns", "rank", "share")


def _colours(names: list[str], theme: Theme) -> list[str]:
    """Return each category's colour in all strengths."""
    return [
        "rgb({},{},{})".format(*mixed(theme.categories[name], theme.surface, strength))
        for name in names
        for _, strength in STRENGTHS
    ]


def _scale(colours: list[str]) -> list[list[object]]:
    """Return a scale of plain steps, one a colour."""
    width = 1 / len(colours)
    edges = [(i * width, (i + 1) * width, colour) for i, colour in enumerate(colours)]
    return [[side, colour] for low, high, colour in edges for side in (low, min(high, 1.0))]


def _legend(names: list[str], theme: Theme) -> list[go.Scatter]:
    return [
        go.Scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=name_of(name),
            marker={"symbol": "square", "size": 11, "color": theme.categories[name]},
            hoverinfo="skip",
        )
        for name in names
    ]


def _by_step_axes(ranks: list[int], theme: Theme) -> dict[str, Any]:
    labels = ["other ranks " if rank == OTHERS else f"rank {rank} " for rank in ranks]
    return {
        "xaxis": {"title": {"text": "step"}, "showgrid": False, "fixedrange": True},
        "yaxis": {
            "tickvals": list(range(len(labels))),
            "ticktext": labels,
            "range": [len(labels) - 0.5, -0.5],
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
            "tickfont": {"color": theme.text},
        },
        "showlegend": True,
        "legend": {"itemclick": False},
    }


def _by_step_rows(cells: pl.DataFrame) -> list[dict[str, Any]]:
    return [
        {"step": step, "rank": rank, "phase": name_of(category), "time on the path (ms)": ns / MS}
        for step, _, rank, category, ns in cells.head(5000).iter_rows()
    ]


def composition(shares: pl.DataFrame, hosts: Mapping[int, str], by: str, theme: Theme) -> Drawing:
    """Draw a bar a group, the largest first, each divided by category.

    `shares` as in `analyses.critical_path`, `hosts` by rank, `by` one of `GROUPS`.
    """
    if shares.is_empty():
        return empty(theme, NO_PATH)
    table = shares.with_columns(group=_group(by, hosts))
    sums = table.group_by("group").agg(pl.col("share").sum())
    order = sums.sort("share", "group", descending=[True, False])
    shown = order.head(MOST_GROUPS)["group"].to_list()
    parts = table.group_by("group", "category").agg(pl.col("share").sum())
    whole = parts.group_by("category").agg(pl.col("share").sum())
    seen = set(whole.filter(pl.col("share") >= SMALLEST)["category"])
    bars = [
        _bar(parts.filter(pl.col("category") == category), category, by, theme)
        for category in [*theme.categories, OUTSIDE]
        if category in seen
    ]
    drawn = figure(theme, *bars, **_composition_axes(shown, theme))
    return Drawing(drawn, _composition_sentence(order, table, by), _composition_rows(parts, order))


def part_name(category: str) -> str:
    """Return the name of a category of the path."""
    return "before the first step" if category == OUTSIDE else name_of(category)


def _group(by: str, hosts: Mapping[int, str]) -> pl.Expr:
    if by == "host":
        shown = {rank: text.safe(host) for rank, host in hosts.items()}
        return pl.col("rank").replace_strict(shown, default="?", return_dtype=pl.String)
    if by == "category":
        return pl.col("category").map_elements(part_name, return_dtype=pl.String)
    return pl.format("rank {}", "rank")


def _bar(part: pl.DataFrame, category: str, by: str, theme: Theme) -> go.Bar:
    return go.Bar(
        orientation="h",
        y=part["group"].to_list(),
        x=(100 * part["share"]).to_list(),
        name=part_name(category),
        customdata=[[by, group, category] for group in part["group"]],
        marker={"color": theme.categories.get(category, theme.quiet), "line": {"width": 0}},
        hovertemplate=f"%{{y}}, {part_name(category)}: %{{x:.1f}} % of the path<extra></extra>",
    )


def _composition_sentence(order: pl.DataFrame, table: pl.DataFrame, by: str) -> str:
    group, share = order.row(0)
    mine = table.filter(pl.col("group") == group).sort("share", descending=True)
    if by == "category":
        most = mine.row(0, named=True)
        return (
            f"{text.percent(share)} of the path is {group}, most of it on rank {most['rank']}: "
            "only time on the path shortens the job."
        )
    phase = part_name(mine["category"][0])
    return f"{capital(group)} has {text.percent(share)} of the path, most of it in {phase}."


def _composition_rows(parts: pl.DataFrame, order: pl.DataFrame) -> list[dict[str, Any]]:
    whole = order.select("group", whole="share")
    table = parts.join(whole, on="group").sort("whole", "share", descending=True)
    return [
        {"group": group, "phase": part_name(category), "% of the path": round(100 * share, 3)}
        for group, category, share, _ in table.iter_rows()
    ]


def _composition_axes(shown: list[str], theme: Theme) -> dict[str, Any]:
    return {
        "barmode": "stack",
        "bargap": 0.3 if len(shown) > 3 else 0.6,
        "xaxis": {"ticksuffix": " %", "fixedrange": True, "title": {"text": "of the path"}},
        "yaxis": {
            "categoryorder": "array",
            "categoryarray": shown,
            "range": [len(shown) - 0.5, -0.5],
            "ticksuffix": " ",
            "fixedrange": True,
            "tickfont": {"color": theme.text},
        },
        "showlegend": True,
        "legend": {"traceorder": "normal"},
    }


def segments(longest: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a bar a segment; `longest` as in `analyses.critical_path`, the longest first."""
    if longest.is_empty():
        return empty(theme, NO_PATH)
    shown = longest.head(MOST_SEGMENTS).to_dicts()
    lengths = np.array([row["end_ns"] - row["start_ns"] for row in shown], float)
    unit, scale = scaled(lengths, TIMES)
    bars = go.Bar(
        orientation="h",
        y=list(range(len(shown))),
        x=scale,
        customdata=list(range(len(shown))),
        marker={
            "color": [theme.categories[row["category"]] for row in shown],
            "line": {"width": 0},
        },
        text=[_segment_label(row) for row in shown],
        textposition="auto",
        hovertext=[_segment_hover(row) for row in shown],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    return Drawing(
        figure(theme, bars, **_segments_axes(shown, unit, theme)),
        _segments_sentence(longest),
        segment_rows(longest),
    )


def segment_rows(longest: pl.DataFrame) -> list[dict[str, Any]]:
    """List them; a row's place is the segment's."""
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
    first = longest.row(0, named=True)
    lasted = text.duration(first["end_ns"] - first["start_ns"])
    counted = (
        longest.group_by("rank", "category").len().sort("len", "rank", descending=[True, False])
    )
    rank, category, count = counted.row(0)
    return (
        f"The longest segment is {lasted} of {name_of(first['category'])} on rank {first['rank']} in "
        f"step {first['step']}; of the {longest.height} longest, {count} are {name_of(category)} on "
        f"rank {rank}."
    )


def _segment_label(row: dict[str, Any]) -> str:
    sentence = text.safe(row["name"]) or name_of(row["category"])
    return f" {sentence}, {text.duration(row['end_ns'] - row['start_ns'])} "


def _segment_hover(row: dict[str, Any]) -> str:
    return (
        f"rank {row['rank']}, step {row['step']}, {name_of(row['category'])}:{_segment_label(row)}"
    )


def _segments_axes(shown: list[dict[str, Any]], unit: str, theme: Theme) -> dict[str, Any]:
    labels = [f"rank {row['rank']}, step {row['step']} " for row in shown]
    return {
        "xaxis": {"fixedrange": True, "ticksuffix": f" {unit}", "nticks": 4},
        "yaxis": {
            "tickvals": list(range(len(labels))),
            "ticktext": labels,
            "range": [len(labels) - 0.5, -0.5],
            "fixedrange": True,
            "tickfont": {"color": theme.text},
        },
        "bargap": 0.25,
    }

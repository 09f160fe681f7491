"""Who carries the critical path, step by step: rank x step, coloured by what the rank did on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures.cells import lead
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.theme import mixed, name_of

if TYPE_CHECKING:
    from tracelens_dashboard.theme import Theme

MOST_ROWS: Final = 24  # the ranks that carry most; all others share a row below them
MOST_COLUMNS: Final = 320
OTHERS: Final = -1
STRENGTHS: Final = (
    (0.5, 1.0),
    (0.2, 0.6),
    (0.0, 0.3),
)  # least share of a step's path, and how strong
NO_PATH: Final = "No step was recorded, so there is no path through them."
MS: Final = 1e6


def draw(cells: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw it; `cells` as in `analyses.critical_path`.

    A cell is coloured by the category that took most of the path on its rank, the fainter the less of
    the step's path it carries; it is blank where the path was elsewhere.
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
        faint = next(i for i, (least, _) in enumerate(STRENGTHS) if share >= least)
        z[place] = names.index(category) * len(STRENGTHS) + faint
        said = f"{name_of(category)}, {text.duration(ns)}"
        leads[place] = lead(rank, column)
        details[place] = (
            f"rank {rank}, step {column}: {said} of the path, "
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
    drawn = figure(theme, heat, *_legend(names, theme), **_axes(ranks, theme))
    return Drawing(drawn, sentence(cells), _rows(cells))


def sentence(cells: pl.DataFrame) -> str:
    """Say who carries most of it, and how often it changes hands."""
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
        f"Rank {first} carries {text.percent(share)} of the path, most of it in {name_of(phase)}; "
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


def _axes(ranks: list[int], theme: Theme) -> dict[str, Any]:
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


def _rows(cells: pl.DataFrame) -> list[dict[str, Any]]:
    return [
        {"step": step, "rank": rank, "on it": name_of(category), "of the path (ms)": ns / MS}
        for step, _, rank, category, ns in cells.head(5000).iter_rows()
    ]

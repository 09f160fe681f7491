"""The longest pieces of the critical path: what to shorten first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.figures.path_strip import NO_PATH
from tracelens_dashboard.figures.units import TIMES, scaled
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    import polars as pl

    from tracelens_dashboard.theme import Theme

MOST: Final = 14


def draw(longest: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a bar a piece; `longest` as in `analyses.critical_path`, the longest first."""
    if longest.is_empty():
        return empty(theme, NO_PATH)
    shown = longest.head(MOST).to_dicts()
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
        text=[_words(row) for row in shown],
        textposition="auto",
        hovertext=[_hover(row) for row in shown],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    return Drawing(
        figure(theme, bars, **_axes(shown, unit, theme)), _sentence(longest), rows(longest)
    )


def rows(longest: pl.DataFrame) -> list[dict[str, Any]]:
    """List them; a row's place is the piece's."""
    return [
        {
            "rank": row["rank"],
            "step": row["step"],
            "on it": name_of(row["category"]),
            "span": row["name"] or "",
            "lasted (ms)": round((row["end_ns"] - row["start_ns"]) / 1e6, 4),
        }
        for row in longest.iter_rows(named=True)
    ]


def _sentence(longest: pl.DataFrame) -> str:
    first = longest.row(0, named=True)
    lasted = text.duration(first["end_ns"] - first["start_ns"])
    counted = (
        longest.group_by("rank", "category").len().sort("len", "rank", descending=[True, False])
    )
    rank, category, count = counted.row(0)
    return (
        f"The longest piece is {lasted} of {name_of(first['category'])} on rank {first['rank']} in "
        f"step {first['step']}; of the {longest.height} longest, {count} are {name_of(category)} on "
        f"rank {rank}."
    )


def _words(row: dict[str, Any]) -> str:
    said = text.safe(row["name"]) or name_of(row["category"])
    return f" {said}, {text.duration(row['end_ns'] - row['start_ns'])} "


def _hover(row: dict[str, Any]) -> str:
    return f"rank {row['rank']}, step {row['step']}, {name_of(row['category'])}:{_words(row)}"


def _axes(shown: list[dict[str, Any]], unit: str, theme: Theme) -> dict[str, Any]:
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

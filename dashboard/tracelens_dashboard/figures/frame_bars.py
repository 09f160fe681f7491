"""The frames in which a rank spends longer than its peers, by the time in which they were innermost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.figures.icicle import FEW, short
from tracelens_dashboard.figures.units import TIMES, scaled

if TYPE_CHECKING:
    from tracelens_dashboard.theme import Theme

MOST: Final = 12
LABEL: Final = 36  # letters of a frame beside its bars
LONGER: Final = 1.25  # times the median peer's, and by
LEAST: Final = 0.01  # of the longest: drawn in red


def draw(frames: pl.DataFrame, rank: int, theme: Theme) -> Drawing:
    """Draw a pair of bars a frame, the rank's and the median peer's, the largest excess first."""
    if frames.is_empty():
        return empty(theme, FEW)
    shown = frames.head(MOST)
    compared = bool(shown["peers_self_ns"].is_not_null().all())
    mine = shown["self_ns"].to_numpy()
    unit, _ = scaled(mine, TIMES)
    factor = next(factor for factor, name in TIMES if name == unit)
    places = list(range(shown.height))
    names = shown["frame"].to_list()
    bars = [_bars(f"rank {rank}", mine / factor, names, unit, theme.accent)]
    if compared:
        others = shown["peers_self_ns"].to_numpy() / factor
        bars.insert(0, _bars("median peer", others, names, unit, theme.quiet))
        longer = mine / factor > LONGER * others + LEAST * mine.max() / factor
        bars[1].marker.color = np.where(longer, theme.loss, theme.accent)
    drawn = figure(
        theme, *bars, **_axes(places, [short(name, LABEL) for name in names], unit, theme)
    )
    return Drawing(drawn, _sentence(frames, rank, compared=compared), _rows(frames))


def _bars(
    name: str, lengths: np.ndarray[Any, Any], frames: list[str], unit: str, colour: str
) -> go.Bar:
    return go.Bar(
        orientation="h",
        y=list(range(len(frames))),
        x=lengths,
        name=name,
        customdata=frames,
        hovertext=[text.safe(frame) for frame in frames],
        marker={"color": colour, "line": {"width": 0}},
        hovertemplate=f"%{{hovertext}}<br>{name}: %{{x:,.2f}} {unit}<extra></extra>",
    )


def _sentence(frames: pl.DataFrame, rank: int, *, compared: bool) -> str:
    first = frames.row(0, named=True)
    name, own = short(first["frame"]), text.duration(first["self_ns"])
    if not compared:
        return f"Rank {rank} is most often in {name}: for {own}. Click a frame to see when."
    usual = text.duration(first["peers_self_ns"])
    return f"{name}: {own} on rank {rank}, {usual} on the median peer. Click a frame to see when."


def _rows(frames: pl.DataFrame) -> list[dict[str, Any]]:
    return frames.select(
        "frame",
        (pl.col("self_ns") / 1e6).round(3).alias("innermost (ms)"),
        (pl.col("peers_self_ns") / 1e6).round(3).alias("median peer (ms)"),
        ((pl.col("self_ns") - pl.col("peers_self_ns")) / 1e6).round(3).alias("longer (ms)"),
        (pl.col("ns") / 1e6).round(3).alias("with what it calls (ms)"),
    ).to_dicts()


def _axes(places: list[int], labels: list[str], unit: str, theme: Theme) -> dict[str, Any]:
    return {
        "xaxis": {"fixedrange": True, "ticksuffix": f" {unit}", "nticks": 4},
        "yaxis": {
            "tickvals": places,
            "ticktext": [f"{label} " for label in labels],
            "range": [len(places) - 0.5, -0.5],
            "fixedrange": True,
            "tickfont": {"color": theme.text, "size": 11},
        },
        "bargap": 0.25,
        "showlegend": True,
        "legend": {"traceorder": "reversed"},
    }

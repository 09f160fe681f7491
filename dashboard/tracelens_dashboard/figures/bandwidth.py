"""Bandwidth of collectives by message size: measured, fitted, and the best that was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go

from tracelens import words
from tracelens_dashboard import text
from tracelens_dashboard.figures import size_axis
from tracelens_dashboard.figures.drawing import Drawing, empty, figure

if TYPE_CHECKING:
    from tracelens_dashboard.theme import Theme

MOST_SERIES: Final = 6
SIGNS: Final = ("algorithm bandwidth", "fitted")  # of all colours: the legend names them once, last
LAST: Final = 1001
NO_BYTES: Final = (
    "No collective of this run carries a number of bytes: hooks of frameworks note it; a span of your "
    "own does with nbytes=…"
)
_BY: Final = ("op", "ranks")


def draw(
    bandwidths: pl.DataFrame, lines: pl.DataFrame, slowest: pl.DataFrame, theme: Theme
) -> Drawing:
    """Draw bus bandwidth (filled), algorithm bandwidth (hollow), latency + bytes / bandwidth (dashed).

    Args:
        bandwidths: As `communication.BANDWIDTH_COLUMNS`.
        lines: As `communication.LINE_COLUMNS`.
        slowest: As `Communication.slowest`: where a point leads.
        theme: The colours.
    """
    if bandwidths.is_empty():
        return empty(theme, NO_BYTES)
    rows = bandwidths.join(slowest, on=[*_BY, "from_bytes"], how="left", suffix="_slowest")
    most = rows.group_by(_BY).agg(pl.col("calls").sum()).sort("calls", *_BY, descending=True)
    shown = most.head(MOST_SERIES).sort(_BY)
    traces: list[go.Scatter] = []
    for row, colour in zip(shown.iter_rows(named=True), _colours(theme), strict=False):
        mine = [pl.col(name) == row[name] for name in _BY]
        traces += _series(rows.filter(mine), lines.filter(mine), colour)
    _name_once(traces)
    drawn = figure(theme, *traces, **_axes(rows))
    best = _best(bandwidths)
    if best:
        drawn.add_hline(y=best, line={"dash": "dot", "width": 1.2, "color": theme.secondary})
        drawn.add_annotation(**_label(best, theme))
    return Drawing(drawn, summary(bandwidths, lines), table(bandwidths))


def summary(bandwidths: pl.DataFrame, lines: pl.DataFrame) -> str:
    """Say what the most frequent collective reaches, and what it costs by itself."""
    most = bandwidths.sort("bus_bandwidth", "calls").tail(1).row(0, named=True)
    share = f", {text.percent(most['of_best'])} of the best seen" if most["of_best"] else ""
    said = (
        f"{words.capital(_name(most))} reaches {words.bandwidth(most['bus_bandwidth'])} of bus "
        f"bandwidth with {text.size(most['bytes'])}{share}."
    )
    line = lines.filter(pl.col("op") == most["op"], pl.col("ranks") == most["ranks"])
    if line.is_empty():
        return f"{said} Of one size alone, latency and bandwidth cannot be told apart."
    cost = line.row(0, named=True)
    half = cost["half_bandwidth_bytes"]
    return (
        f"{said} A call costs {text.duration(cost['latency_ns'])} by itself; "
        f"messages below {text.size(half or 0)} are latency for the most part."
    )


def table(bandwidths: pl.DataFrame) -> list[dict[str, Any]]:
    """List all sizes."""
    return [
        {
            "operation": text.safe(row["op"]),
            "ranks": row["ranks"],
            "size": text.size(row["bytes"]),
            "calls": row["calls"],
            "time": text.duration(row["wire_ns"]),
            "algorithm bandwidth": words.bandwidth(row["algorithm_bandwidth"]),
            "bus bandwidth": words.bandwidth(row["bus_bandwidth"]),
            "of the best": text.percent(row["of_best"]) if row["of_best"] is not None else "-",
        }
        for row in bandwidths.iter_rows(named=True)
    ]


def _series(rows: pl.DataFrame, line: pl.DataFrame, colour: str) -> list[go.Scatter]:
    first = rows.row(0, named=True)
    name = _name(first)
    parts = [
        _points(rows, "bus_bandwidth", name, colour, "circle"),
        _points(rows, "algorithm_bandwidth", SIGNS[0], colour, "circle-open"),
    ]
    return [*parts, *(_curve(rows, fit, colour) for fit in line.iter_rows(named=True))]


def _name_once(traces: list[go.Scatter]) -> None:
    """Let the legend explain a sign that all colours share only once."""
    named: set[str] = set()
    for trace in traces:
        trace.showlegend = trace.name not in named
        trace.legendrank = LAST if trace.name in SIGNS else None
        named.add(trace.name)


def _points(rows: pl.DataFrame, column: str, name: str, colour: str, symbol: str) -> go.Scatter:
    return go.Scatter(
        name=name,
        x=rows["bytes"].to_list(),
        y=rows[column].to_list(),
        mode="lines+markers" if symbol == "circle" else "markers",
        marker={"size": 9, "color": colour, "symbol": symbol},
        line={"color": colour, "width": 1.4},
        customdata=[_hover(row, column) for row in rows.iter_rows(named=True)],
        hovertemplate=f"{name}<br>%{{customdata[0]}}<extra></extra>",
    )


def _hover(row: dict[str, Any], column: str) -> list[Any]:
    said = (
        f"{text.size(row['bytes'])}: {words.bandwidth(row[column])}, "
        f"{text.duration(row['wire_ns'])} on the wire, {text.count(row['calls'], 'call')}"
    )
    ready = row["ready_ns"]
    lead = [ready, ready + int(row["wire_ns_slowest"]), None] if ready else None
    return [said, lead]


def _curve(rows: pl.DataFrame, fit: dict[str, Any], colour: str) -> go.Scatter:
    """Draw B n / (h + n), n bytes, B the fitted bandwidth, h where it is half of that."""
    low, high = rows["bytes"].to_numpy().min() / 2, rows["bytes"].to_numpy().max() * 2
    size = np.geomspace(low, high, 60)
    bus = fit["bus_bandwidth"]
    half = fit["half_bandwidth_bytes"] or 0.0
    return go.Scatter(
        name=SIGNS[1],
        x=size,
        y=bus * size / (half + size) if bus else None,
        mode="lines",
        line={"color": colour, "width": 1.2, "dash": "dash"},
        hoverinfo="skip",
    )


def _axes(rows: pl.DataFrame) -> dict[str, Any]:
    size, speeds = rows["bytes"].to_numpy(), rows.select("algorithm_bandwidth", "bus_bandwidth")
    known = speeds.to_numpy().ravel()
    known = known[known > 0]
    return {
        "xaxis": size_axis.of_bytes(size.min() / 2, size.max() * 2)
        | {"title": {"text": "message size"}},
        "yaxis": size_axis.of_bandwidth(known.min() / 1.5, known.max() * 2.5),
        "showlegend": True,
        "margin": {"t": 30},
    }


def _best(bandwidths: pl.DataFrame) -> float:
    """Return the best bus bandwidth that calls of one size reach."""
    best = bandwidths.filter(pl.col("of_best") > 0).select(
        (pl.col("bus_bandwidth") / pl.col("of_best")).max()
    )
    return float(best.item() or 0.0)


def _label(best: float, theme: Theme) -> dict[str, Any]:
    return {
        "text": f"best seen: {words.bandwidth(best)}",
        "x": 1,
        "xref": "paper",
        "xanchor": "right",
        "y": float(np.log10(best)),
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 11, "color": theme.secondary},
    }


def _colours(theme: Theme) -> list[str]:
    names = ("forward", "transfer", "data", "update", "gc", "backprop")
    return [theme.categories[name] for name in names]


def _name(row: dict[str, Any]) -> str:
    return f"{text.safe(row['op'])} of {row['ranks']} ranks"

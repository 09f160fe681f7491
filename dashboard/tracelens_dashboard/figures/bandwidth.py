"""Bandwidth: of collectives by message size (measured, fitted, peak), and of links between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go

from tracelens.model import fmt
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, quantity
from tracelens_dashboard.figures.drawing import Drawing, empty, figure

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracelens_dashboard.theme import Theme


MOST_SERIES: Final = 6
SIGNS: Final = ("algorithm bandwidth", "fitted")  # of all colours: the legend names them once, last
LAST: Final = 1001
NO_BYTES: Final = (
    "No collective of this run has a byte count: hooks of frameworks record it; a span of your own does "
    "with nbytes=…"
)
MOST_LINKS: Final = 24
ALIKE: Final = 1.05
NO_MESSAGES: Final = (
    "No messages between two ranks were recorded. Collectives alone do not identify a slow link; "
    "point-to-point calls do: with MPI, tl.attach(comm) records them."
)
_BY: Final = ("op", "ranks", "algorithm")
ALPHA: Final = "\N{GREEK SMALL LETTER ALPHA}"


def by_size(
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
    rows = bandwidths.join(
        slowest, on=[*_BY, "from_bytes"], how="left", suffix="_slowest", nulls_equal=True
    )
    most = rows.group_by(_BY).agg(pl.col("calls").sum()).sort("calls", *_BY, descending=True)
    shown = most.head(MOST_SERIES).sort(_BY)
    traces: list[go.Scatter] = []
    for row, colour in zip(shown.iter_rows(named=True), theme.series, strict=False):
        mine = [pl.col(name).eq_missing(pl.lit(row[name])) for name in _BY]
        traces += _series(rows.filter(mine), lines.filter(mine), colour)
    _name_once(traces)
    drawn = figure(theme, *traces, **_axes(rows))
    best = _best(bandwidths)
    if best:
        drawn.add_hline(y=best, line={"dash": "dot", "width": 1.2, "color": theme.secondary})
        drawn.add_annotation(**_label(best, theme))
    return Drawing(drawn, sizes_summary(bandwidths, lines), sizes_table(bandwidths))


def sizes_summary(bandwidths: pl.DataFrame, lines: pl.DataFrame) -> str:
    """Return the bandwidth that the most frequent collective reaches, and the fit of its cost."""
    most = bandwidths.sort("bus_bandwidth", "calls").tail(1).row(0, named=True)
    share = f", {text.percent(most['of_best'])} of peak observed" if most["of_best"] else ""
    reached = (
        f"{fmt.capital(_operation(most))} reaches {fmt.bandwidth(most['bus_bandwidth'])} of bus "
        f"bandwidth with {text.size(most['bytes'])}{share}."
    )
    line = lines.filter([pl.col(name).eq_missing(pl.lit(most[name])) for name in _BY])
    if line.is_empty():
        return f"{reached} With a single size, latency ({ALPHA}) and bandwidth (β) cannot be separated."
    cost = line.row(0, named=True)
    half = cost["half_bandwidth_bytes"]
    return (
        f"{reached} {ALPHA}-β fit: latency {text.duration(cost['latency_ns'])}, n½ "
        f"{text.size(half or 0)}; smaller messages are latency-bound."
    )


def sizes_table(bandwidths: pl.DataFrame) -> list[dict[str, Any]]:
    """List all sizes."""
    return [
        {
            "operation": text.safe(row["op"]),
            "ranks": row["ranks"],
            **({"algorithm": text.safe(row["algorithm"])} if row["algorithm"] else {}),
            "size": quantity.size(row["bytes"]),
            "calls": row["calls"],
            "time": quantity.time(row["wire_ns"]),
            "algorithm bandwidth": quantity.bandwidth(row["algorithm_bandwidth"]),
            "bus bandwidth": quantity.bandwidth(row["bus_bandwidth"]),
            "% of peak observed": quantity.share(row["of_best"]),
        }
        for row in bandwidths.iter_rows(named=True)
    ]


def _series(rows: pl.DataFrame, line: pl.DataFrame, colour: str) -> list[go.Scatter]:
    first = rows.row(0, named=True)
    name = _operation(first)
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
        customdata=[_size_hover(row, column) for row in rows.iter_rows(named=True)],
        hovertemplate=f"{name}<br>%{{customdata[0]}}<extra></extra>",
    )


def _size_hover(row: dict[str, Any], column: str) -> list[Any]:
    shown = (
        f"{text.size(row['bytes'])}: {fmt.bandwidth(row[column])}, "
        f"{text.duration(row['wire_ns'])} on the wire, {text.count(row['calls'], 'call')}"
    )
    ready = row["ready_ns"]
    lead = [ready, ready + int(row["wire_ns_slowest"]), None] if ready else None
    return [shown, lead]


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
        "xaxis": axes.log_sizes(size.min() / 2, size.max() * 2)
        | {"title": {"text": "message size"}},
        "yaxis": axes.log_bandwidths(known.min() / 1.5, known.max() * 2.5),
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
        "text": f"peak observed: {fmt.bandwidth(best)}",
        "x": 1,
        "xref": "paper",
        "xanchor": "right",
        "y": float(np.log10(best)),
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 11, "color": theme.secondary},
    }


def _operation(row: dict[str, Any]) -> str:
    how = f" ({text.safe(row['algorithm'])})" if row["algorithm"] else ""
    return f"{text.safe(row['op'])} of {row['ranks']} ranks{how}"


def by_link(links: pl.DataFrame, theme: Theme, found: Collection[tuple[int, int]] = ()) -> Drawing:
    """Draw a bar a link, red if it is among those that findings name, (sender, receiver).

    `links` as `links.LINK_COLUMNS`, the slowest first.
    """
    if links.is_empty():
        return empty(theme, NO_MESSAGES)
    shown = links.head(MOST_LINKS)
    speeds = shown["bandwidth"].to_numpy()
    ends = shown.select("sender", "receiver").rows()
    trace = go.Bar(
        orientation="h",
        y=[_link_name(row) + " " for row in shown.iter_rows(named=True)],
        x=speeds,
        marker={"color": [theme.loss if pair in found else theme.accent for pair in ends]},
        customdata=[
            [_link_hover(row), [row["sender"], row["receiver"]]]
            for row in shown.iter_rows(named=True)
        ],
        hovertemplate="%{y}: %{customdata[0]}<extra></extra>",
    )
    high = float(shown["bandwidth"].to_numpy().max())
    axis = axes.bandwidths(high * 1.05)
    layout: dict[str, Any] = {
        "xaxis": axis,
        "yaxis": {"autorange": "reversed", "fixedrange": True, "tickfont": {"color": theme.text}},
        "bargap": 0.35,
    }
    return Drawing(figure(theme, trace, **layout), links_summary(links, found), links_table(links))


def links_summary(links: pl.DataFrame, found: Collection[tuple[int, int]] = ()) -> str:
    """Return the slowest link, how far it is below the median, and whether a finding names it."""
    first, usual = links.row(0, named=True), _median_bandwidth(links)
    ratio = usual / max(float(first["bandwidth"]), 1e-12)
    begin = f"The slowest of {text.count(links.height, 'link')}, {_link_name(first)}, moves"
    speed = fmt.bandwidth(first["bandwidth"])
    times = f"{ratio:.1f} times slower than" if ratio > ALIKE else "no slower than"
    named = "a finding" if (first["sender"], first["receiver"]) in found else "no finding"
    return f"{begin} {speed}: {times} the median link ({fmt.bandwidth(usual)}); {named} names it."


def links_table(links: pl.DataFrame) -> list[dict[str, Any]]:
    """List all links."""
    return [
        {
            "from": row["sender"],
            "to": row["receiver"],
            "from host": text.safe(row["sender_host"]),
            "to host": text.safe(row["receiver_host"]),
            "messages": row["messages"],
            "bytes": quantity.size(row["bytes"]),
            "time per message": quantity.time(row["message_ns"]),
            "bandwidth": quantity.bandwidth(row["bandwidth"]),
        }
        for row in links.iter_rows(named=True)
    ]


def _median_bandwidth(links: pl.DataFrame) -> float:
    return float(np.median(links["bandwidth"].to_numpy()))


def _link_name(row: dict[str, Any]) -> str:
    return f"rank {row['sender']} \N{RIGHTWARDS ARROW} {row['receiver']}"


def _link_hover(row: dict[str, Any]) -> str:
    return (
        f"{fmt.bandwidth(row['bandwidth'])}, {text.duration(row['message_ns'])} per message, "
        f"{row['messages']:,} messages"
    )

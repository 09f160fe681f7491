"""Bandwidth: of collectives by message size (measured, fitted, peak), and of links between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go

from tracelens.model import fmt
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, quantity
from tracelens_dashboard.figures.drawing import Drawing, bars, dots, empty, figure, pairs

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracelens_dashboard.theme import Theme

MOST_SERIES: Final = 6
ALGORITHM_SIGN, FIT_SIGN = "algorithm bandwidth", "fitted"  # of all colours
LAST_IN_LEGEND: Final = 1001
NO_BYTES: Final = (
    "No collective of this run has a byte count: hooks of frameworks record it; a span of your own does "
    "with nbytes=…"
)
MOST_LINKS: Final = 24
SAME_RATIO: Final = 1.05  # below, a link is as fast as the median one
NO_MESSAGES: Final = (
    "No messages between two ranks were recorded. Collectives alone do not identify a slow link; "
    "point-to-point calls do: with MPI, tl.attach(comm) records them."
)
OPERATION: Final = ("op", "ranks", "algorithm")
ALPHA: Final = "\N{GREEK SMALL LETTER ALPHA}"
LINK_COLUMNS: Final[quantity.Columns] = {
    "from": "sender",
    "to": "receiver",
    "from host": ("sender_host", quantity.name),
    "to host": ("receiver_host", quantity.name),
    "messages": "messages",
    "bytes": ("bytes", quantity.size),
    "time per message": ("message_ns", quantity.time),
    "bandwidth": ("bandwidth", quantity.bandwidth),
}


def by_size(
    bandwidths: pl.DataFrame, fits: pl.DataFrame, slowest: pl.DataFrame, theme: Theme
) -> Drawing:
    """Draw bus bandwidth (filled), algorithm bandwidth (hollow), latency + bytes / bandwidth (dashed).

    Args:
        bandwidths: As `communication.BANDWIDTH_COLUMNS`.
        fits: As `communication.LINE_COLUMNS`.
        slowest: As `Communication.slowest`: where a point leads.
        theme: The colours.
    """
    if bandwidths.is_empty():
        return empty(theme, NO_BYTES)
    sizes = bandwidths.join(
        slowest, on=[*OPERATION, "from_bytes"], how="left", suffix="_slowest", nulls_equal=True
    )
    calls = sizes.group_by(OPERATION).agg(pl.col("calls").sum())
    frequent = calls.sort("calls", *OPERATION, descending=True).head(MOST_SERIES).sort(OPERATION)
    traces: list[go.Scatter] = []
    for operation, colour in zip(frequent.iter_rows(named=True), theme.series, strict=False):
        points = sizes.filter(_is_operation(operation))
        name = _name_operation(operation)
        traces += [
            _points(points, "bus_bandwidth", name, colour, "circle"),
            _points(points, "algorithm_bandwidth", ALGORITHM_SIGN, colour, "circle-open"),
            *(
                _curve(points, fit, colour)
                for fit in fits.filter(_is_operation(operation)).iter_rows(named=True)
            ),
        ]
    _name_once(traces)
    nbytes = sizes["bytes"].to_numpy()
    speeds = sizes.select("algorithm_bandwidth", "bus_bandwidth").to_numpy().ravel()
    speeds = speeds[speeds > 0]
    size_axis = axes.log_sizes(nbytes.min() / 2, nbytes.max() * 2)
    plot = figure(
        theme,
        *traces,
        xaxis=size_axis | {"title": {"text": "message size"}},
        yaxis=axes.log_bandwidths(speeds.min() / 1.5, speeds.max() * 2.5),
        showlegend=True,
        margin={"t": 30},
    )
    peak = bandwidths.filter(pl.col("of_best") > 0).select(
        (pl.col("bus_bandwidth") / pl.col("of_best")).max()
    )
    if peak.item():
        _mark_peak(plot, float(peak.item()), theme)
    return Drawing(plot, sizes_summary(bandwidths, fits), sizes_table(bandwidths))


def _is_operation(operation: dict[str, Any]) -> list[pl.Expr]:
    return [pl.col(name).eq_missing(pl.lit(operation[name])) for name in OPERATION]


def sizes_summary(bandwidths: pl.DataFrame, fits: pl.DataFrame) -> str:
    """Return the highest bandwidth that a collective reaches, and the fit of its cost."""
    row = bandwidths.sort("bus_bandwidth", "calls").row(-1, named=True)
    share = f", {text.percent(row['of_best'])} of peak observed" if row["of_best"] else ""
    reached = (
        f"{fmt.capital(_name_operation(row))} reaches {fmt.bandwidth(row['bus_bandwidth'])} of bus "
        f"bandwidth with {text.size(row['bytes'])}{share}."
    )
    fit = fits.filter(_is_operation(row))
    if fit.is_empty():
        return f"{reached} With a single size, latency ({ALPHA}) and bandwidth (β) cannot be separated."
    cost = fit.row(0, named=True)
    return (
        f"{reached} {ALPHA}-β fit: latency {text.duration(cost['latency_ns'])}, n½ "
        f"{text.size(cost['half_bandwidth_bytes'] or 0)}; smaller messages are latency-bound."
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


def _name_once(traces: list[go.Scatter]) -> None:
    """Let the legend explain a sign that all colours share only once."""
    explained: set[str] = set()
    for trace in traces:
        trace.showlegend = trace.name not in explained
        trace.legendrank = LAST_IN_LEGEND if trace.name in {ALGORITHM_SIGN, FIT_SIGN} else None
        explained.add(trace.name)


def _points(sizes: pl.DataFrame, column: str, name: str, colour: str, symbol: str) -> go.Scatter:
    texts, calls = [], []
    for row in sizes.iter_rows(named=True):
        texts.append(
            f"{text.size(row['bytes'])}: {fmt.bandwidth(row[column])}, "
            f"{text.duration(row['wire_ns'])} on the wire, {text.count(row['calls'], 'call')}"
        )
        ready = row["ready_ns"]
        calls.append([ready, ready + int(row["wire_ns_slowest"]), None] if ready else None)
    return dots(
        sizes["bytes"].to_list(),
        sizes[column].to_list(),
        {"size": 9, "color": colour, "symbol": symbol},
        f"{name}<br>%{{customdata[0]}}",
        name=name,
        mode="lines+markers" if symbol == "circle" else "markers",
        line={"color": colour, "width": 1.4},
        customdata=pairs(texts, calls),
    )


def _curve(sizes: pl.DataFrame, fit: dict[str, Any], colour: str) -> go.Scatter:
    """Draw B n / (h + n), n bytes, B the fitted bandwidth, h where it is half of that."""
    nbytes = sizes["bytes"].to_numpy()
    curve_bytes = np.geomspace(nbytes.min() / 2, nbytes.max() * 2, 60)
    bandwidth, half_bytes = fit["bus_bandwidth"], fit["half_bandwidth_bytes"] or 0.0
    return go.Scatter(
        name=FIT_SIGN,
        x=curve_bytes,
        y=bandwidth * curve_bytes / (half_bytes + curve_bytes) if bandwidth else None,
        mode="lines",
        line={"color": colour, "width": 1.2, "dash": "dash"},
        hoverinfo="skip",
    )


def _mark_peak(plot: go.Figure, peak: float, theme: Theme) -> None:
    plot.add_hline(y=peak, line={"dash": "dot", "width": 1.2, "color": theme.secondary})
    plot.add_annotation(
        text=f"peak observed: {fmt.bandwidth(peak)}",
        x=1,
        xref="paper",
        xanchor="right",
        y=float(np.log10(peak)),
        yanchor="bottom",
        showarrow=False,
        font={"size": 11, "color": theme.secondary},
    )


def _name_operation(row: dict[str, Any]) -> str:
    algorithm = f" ({text.safe(row['algorithm'])})" if row["algorithm"] else ""
    return f"{text.safe(row['op'])} of {row['ranks']} ranks{algorithm}"


def by_link(
    links: pl.DataFrame, theme: Theme, slow_links: Collection[tuple[int, int]] = ()
) -> Drawing:
    """Draw a bar a link, red if it is among those that findings name, (sender, receiver).

    `links` as `links.LINK_COLUMNS`, the slowest first.
    """
    if links.is_empty():
        return empty(theme, NO_MESSAGES)
    drawn = links.head(MOST_LINKS)
    speeds, ends = drawn["bandwidth"].to_numpy(), drawn.select("sender", "receiver").rows()
    colours = [theme.loss if link in slow_links else theme.accent for link in ends]
    texts = [
        f"{fmt.bandwidth(row['bandwidth'])}, {text.duration(row['message_ns'])} per message, "
        f"{row['messages']:,} messages"
        for row in drawn.iter_rows(named=True)
    ]
    labels = [_name_link(*link) + " " for link in ends]
    data = pairs(texts, ends)
    trace = bars(labels, speeds, colours, "%{y}: %{customdata[0]}", customdata=data)
    speed_axis = axes.bandwidths(float(speeds.max()) * 1.05)
    plot = figure(theme, trace, xaxis=speed_axis, yaxis=axes.rows_downwards(theme), bargap=0.35)
    table = quantity.tabulate(links, LINK_COLUMNS)
    return Drawing(plot, links_summary(links, slow_links), table)


def links_summary(links: pl.DataFrame, slow_links: Collection[tuple[int, int]] = ()) -> str:
    """Return the slowest link, how far it is below the median, and whether a finding names it."""
    slowest = links.row(0, named=True)
    link = slowest["sender"], slowest["receiver"]
    median_speed = float(np.median(links["bandwidth"].to_numpy()))
    ratio = median_speed / max(float(slowest["bandwidth"]), 1e-12)
    comparison = f"{ratio:.1f} times slower than" if ratio > SAME_RATIO else "no slower than"
    finding = "a finding" if link in slow_links else "no finding"
    return (
        f"The slowest of {text.count(links.height, 'link')}, {_name_link(*link)}, moves "
        f"{fmt.bandwidth(slowest['bandwidth'])}: {comparison} the median link "
        f"({fmt.bandwidth(median_speed)}); {finding} names it."
    )


def _name_link(sender: int, receiver: int) -> str:
    return f"rank {sender} \N{RIGHTWARDS ARROW} {receiver}"

"""Bandwidth: of collectives by message size (measured, fitted, peak), and of links between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.model import fmt
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, drawing, quantity
from tracelens_dashboard.figures.drawing import Drawing, bars, dots, empty, figure, pairs

if TYPE_CHECKING:
    from collections.abc import Collection

    from plotly import graph_objects as go

    from tracelens_dashboard.theme import Theme

MOST_SERIES: Final = 6
ALGORITHM_SIGN, FIT_SIGN = "algorithm bandwidth", "fitted"  # of all colours
LAST_IN_LEGEND: Final = 1001
NO_BYTES: Final = (
    "No collective of this run has a byte count: hooks of frameworks record it; a span of your "
    "own does with nbytes=…"
)
MOST_LINKS: Final = 24
SAME_RATIO: Final = 1.05  # below, a link is as fast as the median one
NO_MESSAGES: Final = (
    "No messages between two ranks were recorded. Collectives alone do not identify a slow link; "
    "point-to-point calls do: with MPI, tl.attach(comm) records them."
)
OPERATION: Final = ("op", "ranks", "algorithm")
ALPHA: Final = "\N{GREEK SMALL LETTER ALPHA}"
SINGLE_SIZE: Final = f"With a single size, latency ({ALPHA}) and bandwidth (β) cannot be separated."
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
        bandwidths: A row per operation, number of ranks, algorithm and message size: medians of its
            calls, in bytes per ns; `of_best` is the bus bandwidth's share of the peak observed.
        fits: A row per operation, number of ranks and algorithm: the fit of its cost.
        slowest: A row per row of `bandwidths`: the slowest call, to which a point leads.
        theme: The colours.
    """
    if bandwidths.is_empty():
        return empty(theme, NO_BYTES)
    sizes = bandwidths.join(
        slowest, on=[*OPERATION, "from_bytes"], how="left", suffix="_slowest", nulls_equal=True
    )
    calls_by_operation = sizes.group_by(OPERATION).agg(pl.col("calls").sum())
    frequent_operations = (
        calls_by_operation.sort("calls", *OPERATION, descending=True)
        .head(MOST_SERIES)
        .sort(OPERATION)
    )
    traces: list[go.Scatter] = []
    for operation, colour in zip(
        frequent_operations.iter_rows(named=True), theme.series_colours, strict=False
    ):
        operation_sizes = sizes.filter(_has_operation(operation))
        operation_name = _name_operation(operation)
        traces += [
            _draw_sizes(operation_sizes, "bus_bandwidth", operation_name, colour, "circle"),
            _draw_sizes(
                operation_sizes, "algorithm_bandwidth", ALGORITHM_SIGN, colour, "circle-open"
            ),
            *(
                _draw_fit(operation_sizes, fit, colour)
                for fit in fits.filter(_has_operation(operation)).iter_rows(named=True)
            ),
        ]
    _name_once(traces)
    nbytes = sizes["bytes"].to_numpy()
    drawn_bandwidths = sizes.select("algorithm_bandwidth", "bus_bandwidth").to_numpy().ravel()
    drawn_bandwidths = drawn_bandwidths[drawn_bandwidths > 0]
    size_axis = axes.log_sizes(nbytes.min() / 2, nbytes.max() * 2)
    plot = figure(
        theme,
        *traces,
        xaxis=size_axis | {"title": {"text": "message size"}},
        yaxis=axes.log_bandwidths(drawn_bandwidths.min() / 1.5, drawn_bandwidths.max() * 2.5),
        showlegend=True,
        margin={"t": 30},
    )
    peaks = bandwidths.filter(pl.col("of_best") > 0).select(
        (pl.col("bus_bandwidth") / pl.col("of_best")).max()
    )
    if peak_bandwidth := peaks.item():
        _mark_peak(plot, float(peak_bandwidth), theme)
    return Drawing(plot, sizes_summary(bandwidths, fits), sizes_table(bandwidths))


def _has_operation(operation: dict[str, Any]) -> list[pl.Expr]:
    return [pl.col(name).eq_missing(pl.lit(operation[name])) for name in OPERATION]


def sizes_summary(bandwidths: pl.DataFrame, fits: pl.DataFrame) -> str:
    """Return the highest bandwidth that an operation reaches, and the fit of its cost."""
    # Tables as in `by_size`; `of_best` is a share of the peak observed.
    fastest = bandwidths.sort("bus_bandwidth", "calls").row(-1, named=True)
    share = fastest["of_best"]
    share_text = f", {text.percent(share)} of peak observed" if share else ""
    reached_sentence = (
        f"{fmt.capital(_name_operation(fastest))} reaches "
        f"{fmt.bandwidth(fastest['bus_bandwidth'])} of bus bandwidth with "
        f"{text.size(fastest['bytes'])}{share_text}."
    )
    fits_of_operation = fits.filter(_has_operation(fastest))
    if fits_of_operation.is_empty():
        return f"{reached_sentence} {SINGLE_SIZE}"
    fit = fits_of_operation.row(0, named=True)
    return (
        f"{reached_sentence} {ALPHA}-β fit: latency {text.duration(fit['latency_ns'])}, n½ "
        f"{text.size(fit['half_bandwidth_bytes'] or 0)}; smaller messages are latency-bound."
    )


def sizes_table(bandwidths: pl.DataFrame) -> list[dict[str, Any]]:
    """List all message sizes of all operations, a row each."""
    return [
        {
            "operation": text.escape_name(row["op"]),
            "ranks": row["ranks"],
            **({"algorithm": text.escape_name(row["algorithm"])} if row["algorithm"] else {}),
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


def _draw_sizes(
    sizes: pl.DataFrame, column: str, name: str, colour: str, symbol: str
) -> go.Scatter:
    """Draw a mark per message size (row) at its bandwidth in `column`, bytes per ns."""
    # `wire_ns` is the median call's time on the wire. A mark leads to the slowest call of its size,
    # from when all ranks were ready; no rank of it is pinned (None).
    texts, calls = [], []
    for row in sizes.iter_rows(named=True):
        texts.append(
            f"{text.size(row['bytes'])}: {fmt.bandwidth(row[column])}, "
            f"{text.duration(row['wire_ns'])} on the wire, {text.count(row['calls'], 'call')}"
        )
        ready_ns = row["ready_ns"]
        calls.append([ready_ns, ready_ns + int(row["wire_ns_slowest"]), None] if ready_ns else None)
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


def _draw_fit(sizes: pl.DataFrame, fit: dict[str, Any], colour: str) -> go.Scatter:
    """Draw the fit's bandwidth B n / (h + n), bytes per ns, over n bytes: half of B at h bytes."""
    # `sizes` has one row per message size; the curve goes a little beyond them.
    nbytes = sizes["bytes"].to_numpy()
    curve_bytes = np.geomspace(nbytes.min() / 2, nbytes.max() * 2, 60)
    bandwidth, half_bytes = fit["bus_bandwidth"], fit["half_bandwidth_bytes"] or 0.0
    fitted = bandwidth * curve_bytes / (half_bytes + curve_bytes) if bandwidth else None
    line = {"color": colour, "width": 1.2, "dash": "dash"}
    return drawing.lines(curve_bytes, fitted, line, name=FIT_SIGN)


def _mark_peak(plot: go.Figure, peak_bandwidth: float, theme: Theme) -> None:
    """Draw a dotted line at the peak, in bytes per ns, with its name."""
    plot.add_hline(
        y=peak_bandwidth, line={"dash": "dot", "width": 1.2, "color": theme.secondary_colour}
    )
    position = {"x": 1, "xref": "paper", "xanchor": "right", "yanchor": "bottom"}
    name = f"peak observed: {fmt.bandwidth(peak_bandwidth)}"
    height = float(np.log10(peak_bandwidth))
    plot.add_annotation(drawing.label(name, theme.secondary_colour, position, y=height))


def _name_operation(row: dict[str, Any]) -> str:
    algorithm = f" ({text.escape_name(row['algorithm'])})" if row["algorithm"] else ""
    return f"{text.escape_name(row['op'])} of {row['ranks']} ranks{algorithm}"


def by_link(
    links: pl.DataFrame, theme: Theme, slow_links: Collection[tuple[int, int]] = ()
) -> Drawing:
    """Draw a bar per link (row), the slowest first, at its bandwidth; red if a finding names it."""
    # Bandwidths are in bytes per ns; `slow_links` are (sender, receiver).
    if links.is_empty():
        return empty(theme, NO_MESSAGES)
    drawn_links = links.head(MOST_LINKS)
    link_bandwidths = drawn_links["bandwidth"].to_numpy()
    link_ranks = drawn_links.select("sender", "receiver").rows()
    colours = [
        theme.loss_colour if link in slow_links else theme.accent_colour for link in link_ranks
    ]
    texts = [
        f"{fmt.bandwidth(row['bandwidth'])}, {text.duration(row['message_ns'])} per message, "
        f"{row['messages']:,} messages"
        for row in drawn_links.iter_rows(named=True)
    ]
    labels = [_name_link(*link) + " " for link in link_ranks]
    custom_data = pairs(texts, link_ranks)
    trace = bars(labels, link_bandwidths, colours, "%{y}: %{customdata[0]}", customdata=custom_data)
    speed_axis = axes.bandwidths(float(link_bandwidths.max()) * 1.05)
    plot = figure(theme, trace, xaxis=speed_axis, yaxis=axes.rows_downwards(theme), bargap=0.35)
    table = quantity.tabulate(links, LINK_COLUMNS)
    return Drawing(plot, links_summary(links, slow_links), table)


def links_summary(links: pl.DataFrame, slow_links: Collection[tuple[int, int]] = ()) -> str:
    """Return the slowest link, how far it is below the median, and whether a finding names it."""
    # `links` has one row per link, the slowest first; bandwidths are in bytes per ns.
    slowest = links.row(0, named=True)
    slowest_pair = slowest["sender"], slowest["receiver"]
    median_bandwidth = float(np.median(links["bandwidth"].to_numpy()))
    slowdown_ratio = median_bandwidth / max(float(slowest["bandwidth"]), 1e-12)
    comparison = (
        f"{slowdown_ratio:.1f} times slower than"
        if slowdown_ratio > SAME_RATIO
        else "no slower than"
    )
    finding_text = "a finding" if slowest_pair in slow_links else "no finding"
    return (
        f"The slowest of {text.count(links.height, 'link')}, {_name_link(*slowest_pair)}, moves "
        f"{fmt.bandwidth(slowest['bandwidth'])}: {comparison} the median link "
        f"({fmt.bandwidth(median_bandwidth)}); {finding_text} names it."
    )


def _name_link(sender: int, receiver: int) -> str:
    return f"rank {sender} \N{RIGHTWARDS ARROW} {receiver}"

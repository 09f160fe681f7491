"""Bandwidth of single links between ranks, the slowest first, against the best of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens import words
from tracelens_dashboard import text
from tracelens_dashboard.figures import size_axis
from tracelens_dashboard.figures.drawing import Drawing, empty, figure

if TYPE_CHECKING:
    import polars as pl

    from tracelens_dashboard.theme import Theme

MOST_LINKS: Final = 24
SLOW: Final = 1.5  # times slower than the median link: in red
NO_MESSAGES: Final = (
    "No messages between two ranks were recorded. Collectives alone do not tell which link is slow; "
    "point-to-point calls do: with MPI, tl.attach(comm) records them."
)


def draw(links: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a bar a link; `links` as `links.LINK_COLUMNS`, the slowest first."""
    if links.is_empty():
        return empty(theme, NO_MESSAGES)
    shown = links.head(MOST_LINKS)
    usual = _usual(links)
    speeds = shown["bandwidth"].to_numpy()
    trace = go.Bar(
        orientation="h",
        y=[_name(row) + " " for row in shown.iter_rows(named=True)],
        x=speeds,
        marker={"color": np.where(speeds * SLOW < usual, theme.loss, theme.accent)},
        customdata=[
            [_hover(row), [row["sender"], row["receiver"]]] for row in shown.iter_rows(named=True)
        ],
        hovertemplate="%{y}: %{customdata[0]}<extra></extra>",
    )
    high = float(shown["bandwidth"].to_numpy().max())
    axis = size_axis.of_bandwidth_from_zero(high * 1.05)
    layout: dict[str, Any] = {
        "xaxis": axis,
        "yaxis": {"autorange": "reversed", "fixedrange": True, "tickfont": {"color": theme.text}},
        "bargap": 0.35,
    }
    return Drawing(figure(theme, trace, **layout), summary(links), table(links))


def summary(links: pl.DataFrame) -> str:
    """Say which link is slowest, and by how much."""
    first, usual = links.row(0, named=True), _usual(links)
    ratio = usual / max(float(first["bandwidth"]), 1e-12)
    begin = f"The slowest of {text.count(links.height, 'link')}, {_name(first)}, moves"
    speed = words.bandwidth(first["bandwidth"])
    if ratio < SLOW:
        return f"{begin} {speed}; none stands out from the median link ({words.bandwidth(usual)})."
    return f"{begin} {speed}: {ratio:.1f} times slower than the median link ({words.bandwidth(usual)})."


def table(links: pl.DataFrame) -> list[dict[str, Any]]:
    """List all links."""
    return [
        {
            "from": row["sender"],
            "to": row["receiver"],
            "from host": text.safe(row["sender_host"]),
            "to host": text.safe(row["receiver_host"]),
            "messages": row["messages"],
            "bytes": text.size(row["bytes"]),
            "a message takes": text.duration(row["message_ns"]),
            "bandwidth": words.bandwidth(row["bandwidth"]),
        }
        for row in links.iter_rows(named=True)
    ]


def _usual(links: pl.DataFrame) -> float:
    return float(np.median(links["bandwidth"].to_numpy()))


def _name(row: dict[str, Any]) -> str:
    return f"rank {row['sender']} \N{RIGHTWARDS ARROW} {row['receiver']}"


def _hover(row: dict[str, Any]) -> str:
    return (
        f"{words.bandwidth(row['bandwidth'])}, {text.duration(row['message_ns'])} a message, "
        f"{row['messages']:,} messages"
    )

"""Sampled stacks of a rank compared with its peers': as an icicle, by function, and over time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go

from tracelens.lod.colours import mixed
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes
from tracelens_dashboard.figures.axes import TIMES, scaled
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.figures.timeline.frame import SECOND
from tracelens_dashboard.theme import readable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.arrays import Array
    from tracelens.lod.raster import Colour
    from tracelens.lod.viewport import Window
    from tracelens_dashboard.theme import Theme


FEW_SAMPLES: Final = (
    "Too few samples in this window and phase: choose more steps, or record with a higher rate "
    "(tracelens record --sample=250)."
)
TEXT_PX: Final = 12
WIDE: Final = 0.25  # of the whole: room for a file's name, too
ALL_OF_IT: Final = 0.995  # as calls that start a program do, which fork nowhere
WORTH_REPORTING: Final = 0.01  # of all time shown: less is no difference between ranks
MOST_FUNCTIONS: Final = 12
LABEL: Final = 36  # letters of a frame beside its bars
LONGER: Final = 1.25  # times the median peer's, and by
LEAST: Final = 0.01  # of the longest: drawn in red
BINS: Final = 160  # of the window, in each of which a frame's share is drawn
_PLACE: Final = re.compile(r"^(?P<name>.*) \((?P<file>.*):(?P<line>\d+)\)$")


def icicle(calls: pl.DataFrame, rank: int, peers: int, theme: Theme) -> Drawing:
    """Draw the calls; `calls` as `tracelens.lod.stacks.calls` returns them."""
    if calls.is_empty():
        return empty(theme, FEW_SAMPLES)
    rows = calls.to_dicts()
    whole = max(rows[0]["ns"], 1.0)
    shown, outer = _without_outer(rows)
    colours = [_call_colour(row, whole, theme) for row in shown]
    icicle = go.Icicle(
        ids=[str(row["call"]) for row in shown],
        parents=["" if row["parent"] is None else str(row["parent"]) for row in shown],
        labels=[_root(rank, outer), *(short(row["frame"]) for row in shown[1:])],
        text=[_root(rank, outer), *(_fitting(row, whole) for row in shown[1:])],
        texttemplate="%{text}",
        values=[row["ns"] for row in shown],
        branchvalues="total",
        marker={
            "colors": ["#{:02x}{:02x}{:02x}".format(*colour) for colour in colours],
            "line": {"width": 1, "color": theme.surface},
        },
        tiling={"orientation": "v"},
        customdata=[row["frame"] for row in shown],
        hovertext=[_call_hover(row, whole, peers) for row in shown],
        hovertemplate="%{hovertext}<extra></extra>",
        textfont={"size": TEXT_PX, "color": [readable(colour) for colour in colours]},
        leaf={"opacity": 1},
        textposition="middle left",
        pathbar={"visible": False},
        sort=True,
    )
    layout = {"margin": dict.fromkeys("lrtb", 2), "uniformtext": {"minsize": 10, "mode": "hide"}}
    drawn = figure(theme, icicle, **layout)
    return Drawing(drawn, icicle_sentence(calls, rank, peers), _icicle_rows(rows, whole))


def short(frame: str, most: int = 80) -> str:
    """Name a frame without the folders of its file, in at most so many letters."""
    match = _PLACE.match(frame)
    sentence = frame
    if match:
        file = match["file"].replace("\\", "/").rsplit("/", 1)[-1]
        sentence = f"{match['name']} ({file}:{match['line']})"
    return text.safe(sentence if len(sentence) <= most else sentence[: most - 1] + "…")


def icicle_sentence(calls: pl.DataFrame, rank: int, peers: int) -> str:
    """Follow the residual down from the whole to the innermost call that holds most of it."""
    rows = calls.to_dicts()
    if not peers:
        return f"Rank {rank}: {text.duration(rows[0]['ns'])}; no other rank was sampled."
    local = rows[0]
    residual = _residual(local)
    if residual < WORTH_REPORTING * local["ns"]:
        return f"Rank {rank} does not exceed the median of {_peers(peers)}."
    below: dict[int, list[dict[str, Any]]] = {}
    for row in rows[1:]:
        below.setdefault(row["parent"], []).append(row)
    while below.get(local["call"]):
        worst = max(below[local["call"]], key=_residual)
        if _residual(worst) < 0.6 * _residual(local):
            break
        local = worst
    where = f", most of it in {short(local['frame'])}" if local["frame"] else ""
    more = f"{text.duration(residual)} longer than the median of {_peers(peers)}"
    return f"Rank {rank} takes {more}{where}."


def _peers(peers: int) -> str:
    return text.count(peers, "other rank")


def _residual(row: dict[str, Any]) -> float:
    return float(row["ns"] - (row["peers_ns"] or 0.0)) if row["peers_ns"] is not None else 0.0


def _without_outer(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Leave out the calls that hold all of the time, but the innermost; return their number, too."""
    outer = [row for row in rows[1:] if row["ns"] >= ALL_OF_IT * rows[0]["ns"]]
    left_out = {row["call"] for row in outer[:-1]}
    kept = [row for row in rows if row["call"] not in left_out]
    root = rows[0]["call"]
    return [row | {"parent": root} if row["parent"] in left_out else row for row in kept], len(
        left_out
    )


def _root(rank: int, outer: int) -> str:
    left_out = f", below {text.count(outer, 'call')} that hold all of it" if outer else ""
    return f"rank {rank}{left_out}"


def _fitting(row: dict[str, Any], whole: float) -> str:
    """Name a call; where it is narrow without its file, as a text that is cut says less."""
    name = short(row["frame"])
    return name if row["ns"] >= WIDE * whole else name.partition(" (")[0]


def _call_colour(row: dict[str, Any], whole: float, theme: Theme) -> Colour:
    """Make calls that take longer than the peers' red, the others pale."""
    share = min(max(_residual(row) / whole, 0.0) * 3, 1.0)
    strong = share if share > WORTH_REPORTING else 0.0
    return mixed(theme.loss, theme.flame, strong)


def _call_hover(row: dict[str, Any], whole: float, peers: int) -> str:
    sentence = f"{text.safe(row['frame']) or 'all'}<br>{text.duration(row['ns'])}"
    sentence += f", {text.percent(row['ns'] / whole)} of what is shown"
    if row["peers_ns"] is None:
        return sentence
    return f"{sentence}<br>the median of {_peers(peers)}: {text.duration(row['peers_ns'])}"


def _icicle_rows(rows: list[dict[str, Any]], whole: float) -> list[dict[str, Any]]:
    return [
        {
            "call": row["frame"] or "all",
            "of": rows[row["parent"]]["frame"] if row["parent"] else "",
            "time (ms)": round(row["ns"] / 1e6, 3),
            "%": round(100 * row["ns"] / whole, 2),
            "median peer (ms)": None
            if row["peers_ns"] is None
            else round(row["peers_ns"] / 1e6, 3),
        }
        for row in rows
    ]


def by_function(frames: pl.DataFrame, rank: int, theme: Theme) -> Drawing:
    """Draw a pair of bars a frame, the rank's and the median peer's, the largest residual first."""
    if frames.is_empty():
        return empty(theme, FEW_SAMPLES)
    shown = frames.head(MOST_FUNCTIONS)
    compared = bool(shown["peers_self_ns"].is_not_null().all())
    mine = shown["self_ns"].to_numpy()
    unit, _ = scaled(mine, TIMES)
    factor = next(factor for factor, name in TIMES if name == unit)
    places = list(range(shown.height))
    names = shown["frame"].to_list()
    bars = [_function_bars(f"rank {rank}", mine / factor, names, unit, theme.accent)]
    if compared:
        others = shown["peers_self_ns"].to_numpy() / factor
        bars.insert(0, _function_bars("median peer", others, names, unit, theme.quiet))
        longer = mine / factor > LONGER * others + LEAST * mine.max() / factor
        bars[1].marker.color = np.where(longer, theme.loss, theme.accent)
    drawn = figure(
        theme, *bars, **_function_axes(places, [short(name, LABEL) for name in names], unit, theme)
    )
    return Drawing(
        drawn, _function_sentence(frames, rank, compared=compared), _function_rows(frames)
    )


def _function_bars(name: str, lengths: Array, frames: list[str], unit: str, colour: str) -> go.Bar:
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


def _function_sentence(frames: pl.DataFrame, rank: int, *, compared: bool) -> str:
    first = frames.row(0, named=True)
    name, own = short(first["frame"]), text.duration(first["self_ns"])
    if not compared:
        return f"Rank {rank} spends most self time in {name}: {own}. Click a frame to see when."
    usual = text.duration(first["peers_self_ns"])
    return f"{name}: {own} on rank {rank}, {usual} on the median peer. Click a frame to see when."


def _function_rows(frames: pl.DataFrame) -> list[dict[str, Any]]:
    return frames.select(
        "frame",
        (pl.col("self_ns") / 1e6).round(3).alias("self time (ms)"),
        (pl.col("peers_self_ns") / 1e6).round(3).alias("median peer (ms)"),
        ((pl.col("self_ns") - pl.col("peers_self_ns")) / 1e6).round(3).alias("residual (ms)"),
        (pl.col("ns") / 1e6).round(3).alias("total time (ms)"),
    ).to_dicts()


def _function_axes(places: list[int], labels: list[str], unit: str, theme: Theme) -> dict[str, Any]:
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


def over_time(
    shares: Mapping[int, Array],
    frame: str,
    seen: Window,
    origin_ns: int,
    theme: Theme,
) -> Drawing:
    """Draw, for each rank, the share of each part of a window in which a frame was on its stack."""
    if not frame or not shares:
        return empty(theme, "Click a frame above to see when it was on the stack.")
    percents = 100 * np.stack(list(shares.values()))
    if not percents.any():
        return empty(theme, f"{short(frame)} was not sampled in this window.")
    width = seen.width_ns / percents.shape[1]
    middles = (seen.start_ns - origin_ns + (np.arange(percents.shape[1]) + 0.5) * width) / SECOND
    edges = seen.start_ns - origin_ns + np.arange(percents.shape[1]) * width
    ranks = list(shares)
    heat = go.Heatmap(
        z=percents.astype(np.float32),
        x=middles,
        y=[f"rank {rank} " for rank in ranks],
        customdata=[
            [axes.cell_lead(rank, round(edge), round(edge + width)) for edge in edges]
            for rank in ranks
        ],
        colorscale=theme.colorscale,
        zmin=0,
        zmax=100,
        ygap=2,
        colorbar={"ticksuffix": " %", "nticks": 4},
        hovertemplate="%{y}at %{x:.3f} s: on the stack %{z:.0f} % of the time<extra></extra>",
    )
    layout = {
        "xaxis": {
            "title": {"text": "time since the start"},
            "ticksuffix": " s",
            "showgrid": False,
            "fixedrange": True,
        },
        "yaxis": {
            "range": [len(ranks) - 0.5, -0.5],
            "showgrid": False,
            "fixedrange": True,
            "tickfont": {"color": theme.text},
        },
    }
    rows = [
        {"rank": rank, "on the stack (ms)": round(float(row.sum()) * width / 1e6, 3)}
        for rank, row in shares.items()
    ]
    return Drawing(figure(theme, heat, **layout), _over_time_sentence(shares, frame, width), rows)


def _over_time_sentence(shares: Mapping[int, Array], frame: str, width: float) -> str:
    total = {rank: float(row.sum()) * width for rank, row in shares.items()}
    most = max(total, key=lambda rank: total[rank])
    return (
        f"{short(frame)} was on rank {most}'s stack for {text.duration(total[most])}, more than on "
        "any other rank shown. Click a cell to see its spans."
    )

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
from tracelens_dashboard.figures.drawing import Drawing, bars, empty, figure
from tracelens_dashboard.figures.timeline.frame import SECOND
from tracelens_dashboard.theme import readable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.arrays import Array
    from tracelens.lod.raster import Colour
    from tracelens.lod.viewport import Window
    from tracelens_dashboard.figures.drawing import Rows
    from tracelens_dashboard.theme import Theme

FEW_SAMPLES: Final = (
    "Too few samples in this window and phase: choose more steps, or record with a higher rate "
    "(tracelens record --sample=250)."
)
TEXT_PX: Final = 12
WIDE_SHARE: Final = 0.25  # of the whole: room for a file's name, too
OUTER_SHARE: Final = 0.995  # held by calls that start a program, which fork nowhere
LEAST_RESIDUAL: Final = 0.01  # of all time shown: less is no difference between ranks
CHILD_SHARE: Final = 0.6  # of the residual: a call with less is not named instead of its caller
MOST_FUNCTIONS: Final = 12
LABEL_LETTERS: Final = 36  # of a frame, to the left of its bars
LONGER_RATIO: Final = 1.25  # to the median peer's, and by
LEAST_LONGER: Final = 0.01  # of the longest: drawn in red
BINS: Final = 160  # of the window, in each of which a frame's share is drawn
FRAME: Final = re.compile(r"^(?P<name>.*) \((?P<file>.*):(?P<line>\d+)\)$")


def icicle(calls: pl.DataFrame, rank: int, peers: int, theme: Theme) -> Drawing:
    """Draw the calls; `calls` as `tracelens.lod.stacks.calls` returns them."""
    if calls.is_empty():
        return empty(theme, FEW_SAMPLES)
    rows = calls.to_dicts()
    total_ns = max(rows[0]["ns"], 1.0)
    drawn, outer_count = _without_outer(rows)
    colours = [_call_colour(row, total_ns, theme) for row in drawn]
    outer = f", below {text.count(outer_count, 'call')} that hold all of it" if outer_count else ""
    root = f"rank {rank}{outer}"
    trace = go.Icicle(
        ids=[str(row["call"]) for row in drawn],
        parents=["" if row["parent"] is None else str(row["parent"]) for row in drawn],
        labels=[root, *(short(row["frame"]) for row in drawn[1:])],
        text=[root, *(_fitting_name(row, total_ns) for row in drawn[1:])],
        texttemplate="%{text}",
        values=[row["ns"] for row in drawn],
        branchvalues="total",
        marker={
            "colors": ["#{:02x}{:02x}{:02x}".format(*colour) for colour in colours],
            "line": {"width": 1, "color": theme.surface},
        },
        tiling={"orientation": "v"},
        customdata=[row["frame"] for row in drawn],
        hovertext=[_call_hover(row, total_ns, peers) for row in drawn],
        hovertemplate="%{hovertext}<extra></extra>",
        textfont={"size": TEXT_PX, "color": list(map(readable, colours))},
        leaf={"opacity": 1},
        textposition="middle left",
        pathbar={"visible": False},
        sort=True,
    )
    uniform = {"uniformtext": {"minsize": 10, "mode": "hide"}}
    plot = figure(theme, trace, margin=dict.fromkeys("lrtb", 2), **uniform)
    table = [
        {
            "call": row["frame"] or "all",
            "of": rows[row["parent"]]["frame"] if row["parent"] else "",
            "time (ms)": round(row["ns"] / 1e6, 3),
            "%": round(100 * row["ns"] / total_ns, 2),
            "median peer (ms)": None
            if row["peers_ns"] is None
            else round(row["peers_ns"] / 1e6, 3),
        }
        for row in rows
    ]
    return Drawing(plot, icicle_sentence(calls, rank, peers), table)


def short(frame: str, most: int = 80) -> str:
    """Name a frame without the folders of its file, in at most `length` letters."""
    match = FRAME.match(frame)
    name = frame
    if match:
        file = match["file"].replace("\\", "/").rsplit("/", 1)[-1]
        name = f"{match['name']} ({file}:{match['line']})"
    return text.safe(name if len(name) <= most else name[: most - 1] + "…")


def icicle_sentence(calls: pl.DataFrame, rank: int, peers: int) -> str:
    """Follow the residual down from all calls to the innermost call that holds most of it."""
    rows = calls.to_dicts()
    call = rows[0]
    if not peers:
        return f"Rank {rank}: {text.duration(call['ns'])}; no other rank was sampled."
    residual_ns = _residual(call)
    if residual_ns < LEAST_RESIDUAL * call["ns"]:
        return f"Rank {rank} does not exceed the median of {_count_peers(peers)}."
    callees: dict[int, list[dict[str, Any]]] = {}
    for row in rows[1:]:
        callees.setdefault(row["parent"], []).append(row)
    while callees.get(call["call"]):
        worst_callee = max(callees[call["call"]], key=_residual)
        if _residual(worst_callee) < CHILD_SHARE * _residual(call):
            break
        call = worst_callee
    frame = f", most of it in {short(call['frame'])}" if call["frame"] else ""
    difference = f"{text.duration(residual_ns)} longer than the median of {_count_peers(peers)}"
    return f"Rank {rank} takes {difference}{frame}."


def _count_peers(peers: int) -> str:
    return text.count(peers, "other rank")


def _residual(row: dict[str, Any]) -> float:
    return float(row["ns"] - (row["peers_ns"] or 0.0)) if row["peers_ns"] is not None else 0.0


def _without_outer(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Leave out the calls that hold all of the time, but the innermost; return their number, too."""
    outer = [row for row in rows[1:] if row["ns"] >= OUTER_SHARE * rows[0]["ns"]]
    left_out = {row["call"] for row in outer[:-1]}
    root = rows[0]["call"]
    inner = [
        row | {"parent": root} if row["parent"] in left_out else row
        for row in rows
        if row["call"] not in left_out
    ]
    return inner, len(left_out)


def _fitting_name(row: dict[str, Any], total_ns: float) -> str:
    """Name a call; where it is narrow without its file, as a text that is cut says less."""
    name = short(row["frame"])
    return name if row["ns"] >= WIDE_SHARE * total_ns else name.partition(" (")[0]


def _call_colour(row: dict[str, Any], total_ns: float, theme: Theme) -> Colour:
    """Make calls that take longer than the peers' red, the others pale."""
    strength = min(max(_residual(row) / total_ns, 0.0) * 3, 1.0)
    return mixed(theme.loss, theme.flame, strength if strength > LEAST_RESIDUAL else 0.0)


def _call_hover(row: dict[str, Any], total_ns: float, peers: int) -> str:
    share = text.percent(row["ns"] / total_ns)
    name = text.safe(row["frame"]) or "all"
    lines = f"{name}<br>{text.duration(row['ns'])}, {share} of what is shown"
    if row["peers_ns"] is None:
        return lines
    return f"{lines}<br>the median of {_count_peers(peers)}: {text.duration(row['peers_ns'])}"


def by_function(frames: pl.DataFrame, rank: int, theme: Theme) -> Drawing:
    """Draw a pair of bars a frame, the rank's and the median peer's, the largest residual first."""
    if frames.is_empty():
        return empty(theme, FEW_SAMPLES)
    drawn = frames.head(MOST_FUNCTIONS)
    self_ns, names = drawn["self_ns"].to_numpy(), drawn["frame"].to_list()
    unit, _ = scaled(self_ns, TIMES)
    factor = next(factor for factor, name in TIMES if name == unit)
    lengths = self_ns / factor
    traces = [_function_bars(f"rank {rank}", lengths, names, unit, theme.accent)]
    is_compared = bool(drawn["peers_self_ns"].is_not_null().all())
    if is_compared:
        peers = drawn["peers_self_ns"].to_numpy() / factor
        traces.insert(0, _function_bars("median peer", peers, names, unit, theme.quiet))
        is_longer = lengths > LONGER_RATIO * peers + LEAST_LONGER * self_ns.max() / factor
        traces[1].marker.color = np.where(is_longer, theme.loss, theme.accent)
    labels = [f"{short(name, LABEL_LETTERS)} " for name in names]
    tick_font = {"color": theme.text, "size": 11}
    plot = figure(
        theme,
        *traces,
        xaxis={"fixedrange": True, "ticksuffix": f" {unit}", "nticks": 4},
        yaxis=axes.labelled_rows(labels, theme, tickfont=tick_font),
        bargap=0.25,
        showlegend=True,
        legend={"traceorder": "reversed"},
    )
    residual_ns = pl.col("self_ns") - pl.col("peers_self_ns")
    table = frames.select(
        "frame",
        (pl.col("self_ns") / 1e6).round(3).alias("self time (ms)"),
        (pl.col("peers_self_ns") / 1e6).round(3).alias("median peer (ms)"),
        (residual_ns / 1e6).round(3).alias("residual (ms)"),
        (pl.col("ns") / 1e6).round(3).alias("total time (ms)"),
    )
    sentence = _function_sentence(frames, rank, is_compared=is_compared)
    return Drawing(plot, sentence, table.to_dicts())


def _function_bars(name: str, lengths: Array, frames: list[str], unit: str, colour: str) -> go.Bar:
    hover, texts = f"%{{hovertext}}<br>{name}: %{{x:,.2f}} {unit}", list(map(text.safe, frames))
    options: dict[str, Any] = {"name": name, "customdata": frames, "hovertext": texts}
    return bars(list(range(len(frames))), lengths, colour, hover, **options)


def _function_sentence(frames: pl.DataFrame, rank: int, *, is_compared: bool) -> str:
    worst_frame = frames.row(0, named=True)
    name, self_time = short(worst_frame["frame"]), text.duration(worst_frame["self_ns"])
    if not is_compared:
        return (
            f"Rank {rank} spends most self time in {name}: {self_time}. Click a frame to see when."
        )
    peers = text.duration(worst_frame["peers_self_ns"])
    return f"{name}: {self_time} on rank {rank}, {peers} on the median peer. Click a frame to see when."


def over_time(
    shares: Mapping[int, Array], frame: str, window: Window, origin_ns: int, theme: Theme
) -> Drawing:
    """Draw, for each rank, the share of each bin of a window in which a frame was on its stack."""
    if not frame or not shares:
        return empty(theme, "Click a frame above to see when it was on the stack.")
    percents = 100 * np.stack(list(shares.values()))
    if not percents.any():
        return empty(theme, f"{short(frame)} was not sampled in this window.")
    bin_count = percents.shape[1]
    bin_ns = window.width_ns / bin_count
    start_ns = window.start_ns - origin_ns
    edges_ns = start_ns + np.arange(bin_count) * bin_ns
    ranks = list(shares)
    heat = go.Heatmap(
        z=percents.astype(np.float32),
        x=(start_ns + (np.arange(bin_count) + 0.5) * bin_ns) / SECOND,
        y=[f"rank {rank} " for rank in ranks],
        customdata=[
            [axes.cell_lead(rank, round(edge), round(edge + bin_ns)) for edge in edges_ns]
            for rank in ranks
        ],
        colorscale=theme.colorscale,
        zmin=0,
        zmax=100,
        ygap=2,
        colorbar={"ticksuffix": " %", "nticks": 4},
        hovertemplate="%{y}at %{x:.3f} s: on the stack %{z:.0f} % of the time<extra></extra>",
    )
    fixed: dict[str, Any] = {"showgrid": False, "fixedrange": True}
    time_axis = {"title": {"text": "time since the start"}, "ticksuffix": " s"} | fixed
    rows = axes.rows_of(len(ranks), theme, showgrid=False)
    plot = figure(theme, heat, xaxis=time_axis, yaxis=rows)
    totals_ns = {rank: float(row.sum()) * bin_ns for rank, row in shares.items()}
    most = max(totals_ns, key=lambda rank: totals_ns[rank])
    sentence = (
        f"{short(frame)} was on rank {most}'s stack for {text.duration(totals_ns[most])}, more than on "
        "any other rank shown. Click a cell to see its spans."
    )
    table: Rows = [
        {"rank": rank, "on the stack (ms)": round(ns / 1e6, 3)} for rank, ns in totals_ns.items()
    ]
    return Drawing(plot, sentence, table)

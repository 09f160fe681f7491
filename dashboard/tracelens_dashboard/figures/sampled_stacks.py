"""Sampled stacks of a rank compared with its peers': as an icicle, by function, and over time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go

from tracelens.lod.colours import mix_colours
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes
from tracelens_dashboard.figures.axes import TIMES, scale_to_unit
from tracelens_dashboard.figures.drawing import Drawing, Rows, bars, empty, figure
from tracelens_dashboard.figures.timeline.frame import NS_PER_SECOND
from tracelens_dashboard.theme import Theme, readable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.arrays import Array
    from tracelens.lod.raster import Colour
    from tracelens.lod.viewport import Window

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
MIN_LONGER_SHARE: Final = 0.01  # of the longest: drawn in red
BIN_COUNT: Final = 160  # of the window, in each of which a frame's share is drawn
FRAME: Final = re.compile(r"^(?P<name>.*) \((?P<file>.*):(?P<line>\d+)\)$")


def icicle(calls: pl.DataFrame, rank: int, peer_count: int, theme: Theme) -> Drawing:
    """Draw the calls of a rank, callers above callees; red if longer than on the median peer.

    `calls` has one row per call path, the root first: its number (`call`) and its caller's
    (`parent`), frame, ns, and peers_ns, the median peer's, null without peers.
    """
    if calls.is_empty():
        return empty(theme, FEW_SAMPLES)
    rows = calls.to_dicts()
    total_ns = max(rows[0]["ns"], 1.0)
    drawn_rows, outer_count = _leave_out_outer(rows)
    colours = [_call_colour(row, total_ns, theme) for row in drawn_rows]
    outer_text = (
        f", below {text.count(outer_count, 'call')} that hold all of it" if outer_count else ""
    )
    root_label = f"rank {rank}{outer_text}"
    trace = go.Icicle(
        ids=[str(row["call"]) for row in drawn_rows],
        parents=["" if row["parent"] is None else str(row["parent"]) for row in drawn_rows],
        labels=[root_label, *(shorten_frame(row["frame"]) for row in drawn_rows[1:])],
        text=[root_label, *(_fitting_name(row, total_ns) for row in drawn_rows[1:])],
        texttemplate="%{text}",
        values=[row["ns"] for row in drawn_rows],
        branchvalues="total",
        marker={
            "colors": ["#{:02x}{:02x}{:02x}".format(*colour) for colour in colours],
            "line": {"width": 1, "color": theme.surface_colour},
        },
        tiling={"orientation": "v"},
        customdata=[row["frame"] for row in drawn_rows],
        hovertext=[_call_hover(row, total_ns, peer_count) for row in drawn_rows],
        hovertemplate="%{hovertext}<extra></extra>",
        textfont={"size": TEXT_PX, "color": list(map(readable, colours))},
        leaf={"opacity": 1},
        textposition="middle left",
        pathbar={"visible": False},
        sort=True,
    )
    uniform_text = {"uniformtext": {"minsize": 10, "mode": "hide"}}
    plot = figure(theme, trace, margin=dict.fromkeys("lrtb", 2), **uniform_text)
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
    return Drawing(plot, icicle_sentence(calls, rank, peer_count), table)


def shorten_frame(frame: str, most_letters: int = 80) -> str:
    """Name a frame without the folders of its file, in at most `most_letters` letters."""
    match = FRAME.match(frame)
    name = frame
    if match:
        file = match["file"].replace("\\", "/").rsplit("/", 1)[-1]
        name = f"{match['name']} ({file}:{match['line']})"
    return text.escape_name(name if len(name) <= most_letters else name[: most_letters - 1] + "…")


def icicle_sentence(calls: pl.DataFrame, rank: int, peer_count: int) -> str:
    """Follow the residual down from all calls to the innermost call that holds most of it."""
    # `calls` as in `icicle`. A residual is how much longer a call takes than on the median peer.
    rows = calls.to_dicts()
    call = rows[0]
    if not peer_count:
        return f"Rank {rank}: {text.duration(call['ns'])}; no other rank was sampled."
    residual_ns = _residual_of_call(call)
    if residual_ns < LEAST_RESIDUAL * call["ns"]:
        return f"Rank {rank} does not exceed the median of {_count_peers(peer_count)}."
    callees_by_call: dict[int, list[dict[str, Any]]] = {}
    for row in rows[1:]:
        callees_by_call.setdefault(row["parent"], []).append(row)
    # Descend as long as one callee explains most of its caller's residual.
    while callees_by_call.get(call["call"]):
        worst_callee = max(callees_by_call[call["call"]], key=_residual_of_call)
        if _residual_of_call(worst_callee) < CHILD_SHARE * _residual_of_call(call):
            break
        call = worst_callee
    frame_text = f", most of it in {shorten_frame(call['frame'])}" if call["frame"] else ""
    peers = _count_peers(peer_count)
    residual = text.duration(residual_ns)
    return f"Rank {rank} takes {residual} longer than the median of {peers}{frame_text}."


def _count_peers(peer_count: int) -> str:
    return text.count(peer_count, "other rank")


def _residual_of_call(row: dict[str, Any]) -> float:
    """Return by how much a call takes longer than on the median peer, in ns; 0 without peers."""
    return float(row["ns"] - (row["peers_ns"] or 0.0)) if row["peers_ns"] is not None else 0.0


def _leave_out_outer(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Leave out calls that hold all time, but the innermost; return the rest and how many are out."""
    # `rows` are calls, the root first; whose caller is left out is called by the root.
    outer_rows = [row for row in rows[1:] if row["ns"] >= OUTER_SHARE * rows[0]["ns"]]
    left_out_calls = {row["call"] for row in outer_rows[:-1]}
    root_call = rows[0]["call"]
    inner_rows = [
        row | {"parent": root_call} if row["parent"] in left_out_calls else row
        for row in rows
        if row["call"] not in left_out_calls
    ]
    return inner_rows, len(left_out_calls)


def _fitting_name(row: dict[str, Any], total_ns: float) -> str:
    """Name a call; where it is narrow without its file, as a text that is cut says less."""
    name = shorten_frame(row["frame"])
    return name if row["ns"] >= WIDE_SHARE * total_ns else name.partition(" (")[0]


def _call_colour(row: dict[str, Any], total_ns: float, theme: Theme) -> Colour:
    """Make calls that take longer than the peers' red, the others pale."""
    strength = min(max(_residual_of_call(row) / total_ns, 0.0) * 3, 1.0)
    return mix_colours(
        theme.loss_colour, theme.flame_colour, strength if strength > LEAST_RESIDUAL else 0.0
    )


def _call_hover(row: dict[str, Any], total_ns: float, peer_count: int) -> str:
    """Return the text under the mouse of a call: its time, its share, and its peers' median."""
    share_text = text.percent(row["ns"] / total_ns)
    name = text.escape_name(row["frame"]) or "all"
    hover_text = f"{name}<br>{text.duration(row['ns'])}, {share_text} of what is shown"
    if row["peers_ns"] is None:
        return hover_text
    peer_time = text.duration(row["peers_ns"])
    return f"{hover_text}<br>the median of {_count_peers(peer_count)}: {peer_time}"


def by_function(frames: pl.DataFrame, rank: int, theme: Theme) -> Drawing:
    """Draw self times of frames on the rank and its median peer; `frames` has one row per frame."""
    if frames.is_empty():
        return empty(theme, FEW_SAMPLES)
    drawn_frames = frames.head(MOST_FUNCTIONS)
    self_ns, names = drawn_frames["self_ns"].to_numpy(), drawn_frames["frame"].to_list()
    unit_name, _ = scale_to_unit(self_ns, TIMES)
    unit_ns = next(ns for ns, name in TIMES if name == unit_name)
    rank_lengths = self_ns / unit_ns
    traces = [_function_bars(f"rank {rank}", rank_lengths, names, unit_name, theme.accent_colour)]
    is_compared = bool(drawn_frames["peers_self_ns"].is_not_null().all())
    if is_compared:
        peer_lengths = drawn_frames["peers_self_ns"].to_numpy() / unit_ns
        traces.insert(
            0, _function_bars("median peer", peer_lengths, names, unit_name, theme.quiet_colour)
        )
        is_longer = (
            rank_lengths > LONGER_RATIO * peer_lengths + MIN_LONGER_SHARE * self_ns.max() / unit_ns
        )
        traces[1].marker.color = np.where(is_longer, theme.loss_colour, theme.accent_colour)
    labels = [f"{shorten_frame(name, LABEL_LETTERS)} " for name in names]
    tick_font = {"color": theme.text_colour, "size": 11}
    plot = figure(
        theme,
        *traces,
        xaxis={"fixedrange": True, "ticksuffix": f" {unit_name}", "nticks": 4},
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


def _function_bars(
    name: str, self_times: Array, frames: list[str], unit: str, colour: str
) -> go.Bar:
    """Draw a bar per frame; `self_times` are in `unit`."""
    hover = f"%{{hovertext}}<br>{name}: %{{x:,.2f}} {unit}"
    texts = [text.escape_name(frame) for frame in frames]
    options: dict[str, Any] = {"name": name, "customdata": frames, "hovertext": texts}
    return bars(list(range(len(frames))), self_times, colour, hover, **options)


def _function_sentence(frames: pl.DataFrame, rank: int, *, is_compared: bool) -> str:
    """Return the frame with the largest residual, and its self time on the rank and its peers.

    Unless the rank `is_compared` with peers, return the frame that was innermost longest.
    """
    # `frames` has one row per frame, that one first; times are in ns, the peers' is their median.
    worst_frame = frames.row(0, named=True)
    name, self_time = shorten_frame(worst_frame["frame"]), text.duration(worst_frame["self_ns"])
    if not is_compared:
        return (
            f"Rank {rank} spends most self time in {name}: {self_time}. Click a frame to see when."
        )
    peer_time = text.duration(worst_frame["peers_self_ns"])
    times = f"{self_time} on rank {rank}, {peer_time} on the median peer"
    return f"{name}: {times}. Click a frame to see when."


def over_time(
    shares: Mapping[int, Array], frame_name: str, window: Window, origin_ns: int, theme: Theme
) -> Drawing:
    """Draw the share of time, [bin] by rank, in which a frame was on the rank's stack."""
    # The bins divide the window evenly; `origin_ns` is the run's start.
    if not frame_name or not shares:
        return empty(theme, "Click a frame above to see when it was on the stack.")
    percents = 100 * np.stack(list(shares.values()))
    if not percents.any():
        return empty(theme, f"{shorten_frame(frame_name)} was not sampled in this window.")
    bin_count = percents.shape[1]
    bin_ns = window.width_ns / bin_count
    offset_ns = window.start_ns - origin_ns
    edges_ns = offset_ns + np.arange(bin_count) * bin_ns
    ranks = list(shares)
    heat = go.Heatmap(
        z=percents.astype(np.float32),
        x=(offset_ns + (np.arange(bin_count) + 0.5) * bin_ns) / NS_PER_SECOND,
        y=[f"rank {rank} " for rank in ranks],
        customdata=[
            [axes.write_cell_values(rank, round(edge), round(edge + bin_ns)) for edge in edges_ns]
            for rank in ranks
        ],
        colorscale=theme.colorscale,
        zmin=0,
        zmax=100,
        ygap=2,
        colorbar={"ticksuffix": " %", "nticks": 4},
        hovertemplate="%{y}at %{x:.3f} s: on the stack %{z:.0f} % of the time<extra></extra>",
    )
    fixed_axis: dict[str, Any] = {"showgrid": False, "fixedrange": True}
    time_axis = {"title": {"text": "time since the start"}, "ticksuffix": " s"} | fixed_axis
    row_axis = axes.rows_of(len(ranks), theme, showgrid=False)
    plot = figure(theme, heat, xaxis=time_axis, yaxis=row_axis)
    totals_ns = {rank: float(row.sum()) * bin_ns for rank, row in shares.items()}
    top_rank = max(totals_ns, key=lambda rank: totals_ns[rank])
    summary = (
        f"{shorten_frame(frame_name)} was on rank {top_rank}'s stack for "
        f"{text.duration(totals_ns[top_rank])}, more than on any other rank shown. Click a cell "
        "to see its spans."
    )
    table: Rows = [
        {"rank": rank, "on the stack (ms)": round(ns / 1e6, 3)} for rank, ns in totals_ns.items()
    ]
    return Drawing(plot, summary, table)

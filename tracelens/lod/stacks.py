"""Samples of call stacks as pages draw them: a rank's calls compared with its peers', and their times.

Durations of calls are estimated as by the analyses: recorded pieces give the length of a phase, the
samples in them which share each stack had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.lod.lanes import CODES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.accounting.sampled_code import Stack
    from tracelens.arrays import Array
    from tracelens.lod.lanes import Lanes
    from tracelens.lod.viewport import Window


MOST_CALLS: Final = 500
MOST_FRAMES: Final = 200
CALL_COLUMNS: Final[dict[str, pl.DataType]] = {
    "call": pl.Int32(),  # 0 is all of it
    "parent": pl.Int32(),  # null for all of it
    "frame": pl.String(),
    "ns": pl.Float64(),  # in it and in what it calls
    "peers_ns": pl.Float64(),  # the median peer's; null without peers
}
FRAME_COLUMNS: Final[dict[str, pl.DataType]] = {
    "frame": pl.String(),
    "self_ns": pl.Float64(),  # while it was the innermost
    "ns": pl.Float64(),  # in it and in what it calls
    "peers_self_ns": pl.Float64(),  # the median peer's; null without peers
}


def list_pieces(lanes: Lanes, lane: int, window: Window, category: str | None) -> pl.DataFrame:
    """Return a lane's pieces of one category (None: of any) in a window: start_ns, end_ns."""
    items = lanes.find_lane_items(lane, window.start_ns, window.end_ns)
    table = pl.DataFrame(
        {
            "start_ns": np.maximum(lanes.starts_ns[items], window.start_ns),
            "end_ns": np.minimum(lanes.ends_ns[items], window.end_ns),
            "code": lanes.palette_codes[items],
        }
    )
    if category is not None:
        table = table.filter(pl.col("code") == CODES[category])
    return table.select("start_ns", "end_ns")


def measure_time_by_stack(
    samples: pl.DataFrame, lane_pieces: pl.DataFrame
) -> Mapping[Stack, float]:
    """Divide the time of some pieces among the sampled stacks, ns; empty if too little was sampled."""
    from tracelens.accounting.sampled_code import divide_among_stacks  # noqa: PLC0415 - few runs have any

    ns_by_stack = divide_among_stacks(samples, lane_pieces)
    return {} if set(ns_by_stack) <= {()} else ns_by_stack


def list_calls(
    ns_by_stack: Mapping[Stack, float], ns_by_stack_of_peers: Sequence[Mapping[Stack, float]]
) -> pl.DataFrame:
    """Return the calls that took longest, callers before callees, in `CALL_COLUMNS`.

    Times are ns by stack: of a rank, and of each of its peers.
    """
    from tracelens.accounting.sampled_code import to_tree  # noqa: PLC0415 - few runs have any

    if not ns_by_stack:
        return pl.DataFrame(schema=CALL_COLUMNS)
    ns_by_call, *peer_ns_by_call = map(to_tree, (ns_by_stack, *ns_by_stack_of_peers))
    longest_calls = sorted(ns_by_call, key=lambda call: (-ns_by_call[call], len(call)))[:MOST_CALLS]
    number_of_call = {call: number for number, call in enumerate(longest_calls)}
    rows = [
        (
            number,
            number_of_call[call[:-1]] if call else None,
            call[-1] if call else "",
            ns_by_call[call],
            _median([peer_ns.get(call, 0.0) for peer_ns in peer_ns_by_call]),
        )
        for call, number in number_of_call.items()
    ]
    return pl.DataFrame(rows, schema=CALL_COLUMNS, orient="row")


def list_frames(
    ns_by_stack: Mapping[Stack, float], ns_by_stack_of_peers: Sequence[Mapping[Stack, float]]
) -> pl.DataFrame:
    """Return one row per frame; first those that were innermost longest beyond the median peer.

    Times are ns by stack: of a rank, and of each of its peers.
    """
    self_ns = _self_ns_by_frame(ns_by_stack)
    peer_self_ns = [_self_ns_by_frame(peer) for peer in ns_by_stack_of_peers]
    ns_by_frame = _total_ns_by_frame(ns_by_stack)
    rows = [
        (
            frame,
            self_ns.get(frame, 0.0),
            ns,
            _median([peer_ns.get(frame, 0.0) for peer_ns in peer_self_ns]),
        )
        for frame, ns in ns_by_frame.items()
    ]
    table = pl.DataFrame(rows, schema=FRAME_COLUMNS, orient="row")
    residual_ns = pl.col("self_ns") - pl.col("peers_self_ns").fill_null(0)
    return table.sort(residual_ns, "frame", descending=[True, False]).head(MOST_FRAMES)


def measure_share_over_time(samples: pl.DataFrame, frame: str, window: Window, bins: int) -> Array:
    """Return the share of time that a frame was on the stack, [bin]: `bins` divide the window.

    `samples` are as in `Trace.samples`.
    """
    matching_samples = samples.filter(pl.col("frames").list.contains(frame))
    edges_ns = np.linspace(window.start_ns, window.end_ns, bins + 1)
    begins_ns, ends_ns = (matching_samples[name].to_numpy() for name in ("start_ns", "end_ns"))
    lengths_ns = ends_ns - begins_ns
    before_ns = np.array([np.clip(edge - begins_ns, 0, lengths_ns).sum() for edge in edges_ns])
    return np.asarray(np.diff(before_ns) / np.diff(edges_ns))


def _self_ns_by_frame(ns_by_stack: Mapping[Stack, float]) -> dict[str, float]:
    ns_by_frame: dict[str, float] = {}
    for stack, ns in ns_by_stack.items():
        if stack:
            ns_by_frame[stack[-1]] = ns_by_frame.get(stack[-1], 0.0) + ns
    return ns_by_frame


def _total_ns_by_frame(ns_by_stack: Mapping[Stack, float]) -> dict[str, float]:
    """Return each frame's time including its callees; recursion counts once."""
    ns_by_frame: dict[str, float] = {}
    for stack, ns in ns_by_stack.items():
        for frame in set(stack):
            ns_by_frame[frame] = ns_by_frame.get(frame, 0.0) + ns
    return ns_by_frame


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None

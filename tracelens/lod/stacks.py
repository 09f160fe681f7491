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


def pieces(lanes: Lanes, lane: int, window: Window, category: str | None) -> pl.DataFrame:
    """Return a lane's pieces of one category (null: of any) in a window: start_ns, end_ns."""
    part = lanes.between(lane, window.start_ns, window.end_ns)
    table = pl.DataFrame(
        {
            "start_ns": np.maximum(lanes.starts[part], window.start_ns),
            "end_ns": np.minimum(lanes.ends[part], window.end_ns),
            "code": lanes.codes[part],
        }
    )
    if category is not None:
        table = table.filter(pl.col("code") == CODES[category])
    return table.select("start_ns", "end_ns")


def spent(samples: pl.DataFrame, inside: pl.DataFrame) -> Mapping[Stack, float]:
    """Return how much of some pieces' time each stack took, ns; empty if too little of it was seen."""
    from tracelens.accounting.sampled_code import by_stack  # noqa: PLC0415 - few runs have any

    found = by_stack(samples, inside)
    return {} if set(found) <= {()} else found


def calls(mine: Mapping[Stack, float], peers: Sequence[Mapping[Stack, float]]) -> pl.DataFrame:
    """Return the calls that took longest, callers before callees, in `CALL_COLUMNS`."""
    from tracelens.accounting.sampled_code import tree  # noqa: PLC0415 - few runs have any

    if not mine:
        return pl.DataFrame(schema=CALL_COLUMNS)
    (own, *others) = tree([dict(mine), *(dict(peer) for peer in peers)])
    chosen = sorted(own, key=lambda call: (-own[call], len(call)))[:MOST_CALLS]
    number = {call: place for place, call in enumerate(chosen)}
    rows = [
        (
            place,
            number[call[:-1]] if call else None,
            call[-1] if call else "",
            own[call],
            _median([other.get(call, 0.0) for other in others]),
        )
        for call, place in number.items()
    ]
    return pl.DataFrame(rows, schema=CALL_COLUMNS, orient="row")


def frames(mine: Mapping[Stack, float], peers: Sequence[Mapping[Stack, float]]) -> pl.DataFrame:
    """Return the frames, those that were innermost longest beyond the median peer first."""
    own = _innermost(mine)
    others = [_innermost(peer) for peer in peers]
    below = _below(mine)
    rows = [
        (frame, own.get(frame, 0.0), ns, _median([other.get(frame, 0.0) for other in others]))
        for frame, ns in below.items()
    ]
    table = pl.DataFrame(rows, schema=FRAME_COLUMNS, orient="row")
    beyond = pl.col("self_ns") - pl.col("peers_self_ns").fill_null(0)
    return table.sort(beyond, "frame", descending=[True, False]).head(MOST_FRAMES)


def when(samples: pl.DataFrame, frame: str, window: Window, bins: int) -> Array:
    """Return what share of each of some equal parts of a window a frame was on the stack."""
    seen = samples.filter(pl.col("frames").list.contains(frame))
    edges = np.linspace(window.start_ns, window.end_ns, bins + 1)
    begins, ends = seen["start_ns"].to_numpy(), seen["end_ns"].to_numpy()
    passed = np.array([np.clip(edge - begins, 0, ends - begins).sum() for edge in edges])
    return np.asarray(np.diff(passed) / np.diff(edges))


def _innermost(stacks: Mapping[Stack, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for stack, ns in stacks.items():
        if stack:
            found[stack[-1]] = found.get(stack[-1], 0.0) + ns
    return found


def _below(stacks: Mapping[Stack, float]) -> dict[str, float]:
    """Return each frame's time including its callees; recursion counts once."""
    found: dict[str, float] = {}
    for stack, ns in stacks.items():
        for frame in set(stack):
            found[frame] = found.get(frame, 0.0) + ns
    return found


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None

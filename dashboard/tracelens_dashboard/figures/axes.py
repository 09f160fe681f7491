"""Axes of durations, bytes and bandwidth, labelled as sentences do; of maps, and where cells lead.

Dash drops lists from what a click on a heat map reports; a text comes through, so a cell's values are
text.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from tracelens.model import fmt
from tracelens_dashboard import text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Array
    from tracelens_dashboard.theme import Theme


# A browser that has fewer pixels than cells drops some: a single straggler would be lost.
MOST_ROWS: Final = 160
MOST_COLUMNS: Final = 320
MOST_LABELS: Final = 10
MOST_TICKS: Final = 5  # as many labels as a narrow window has room for
FEW_DECADES: Final = 2.5  # within which a logarithmic axis has finer ticks than powers of ten
LONGEST_CELL: Final = 200
_ROUND_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)

Units: TypeAlias = tuple[tuple[float, str], ...]

BYTES: Final[Units] = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
TIMES: Final[Units] = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))


def scaled(values: Array, units: Units) -> tuple[str, Array]:
    """Return the unit, and the values in it."""
    largest = float(np.nanmax(values, initial=0))
    factor, unit = next((pair for pair in units if largest >= pair[0]), units[-1])
    return unit, values / factor


def log_durations(low_ns: float, high_ns: float) -> dict[str, Any]:
    """Return a logarithmic axis of nanoseconds."""
    low, high = max(low_ns, 1.0), max(high_ns, low_ns * 1.01, 1.01)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = [10.0**power for power in range(first, last + 1)]
    ticks = [
        tick
        for p in powers
        for part in _finer(high / low)
        if low / 2 <= (tick := part * p) <= 2 * high
    ]
    if len(ticks) > MOST_TICKS + 2:
        ticks = [power for power in powers if low / 2 <= power <= 2 * high]
    stride = -(-len(ticks) // (MOST_TICKS + 2))
    return {"type": "log"} | _with_ticks(ticks[::stride])


def _finer(ratio: float) -> tuple[float, ...]:
    """Choose the ticks of a decade: an axis within one would have a single power of ten, or none."""
    decades = math.log10(ratio)
    if decades > FEW_DECADES:
        return (1.0,)
    return (1.0, 2.0, 5.0) if decades > 1 else (1.0, 2.0, 3.0, 5.0, 7.0)


def durations(high_ns: float, low_ns: float = 0.0, most: int = MOST_TICKS) -> dict[str, Any]:
    """Return a linear axis of nanoseconds."""
    span = max(high_ns - low_ns, 1e-9)
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    width = next(step * power for step in _ROUND_STEPS if step * power >= rough)
    first = math.ceil(low_ns / width)
    ticks = [width * (first + index) for index in range(int(span / width) + 1)]
    return {"type": "linear"} | _with_ticks(ticks)


def _with_ticks(ticks: list[float]) -> dict[str, Any]:
    return {
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [_short_duration(tick) for tick in ticks],
        "fixedrange": True,
    }


def _short_duration(ns: float) -> str:
    """Write a round duration without the digits that say nothing: ``5 ms`` for 5.00 ms."""
    number, _, unit = text.duration(ns).partition(" ")
    return f"{float(number.replace(',', '')):g} {unit}" if ns else "0"


def log_sizes(low: float, high: float) -> dict[str, Any]:
    """Return an axis of bytes with ticks at powers of two."""
    first, last = math.floor(math.log2(max(low, 1))), math.ceil(math.log2(max(high, 2)))
    stride = max(-(-(last - first) // MOST_TICKS), 1)
    ticks = [2.0**power for power in range(first, last + 1, stride)]
    return _log_ticks(ticks, [fmt.size(tick).replace(".0", "") for tick in ticks])


def log_bandwidths(low: float, high: float) -> dict[str, Any]:
    """Return an axis of bytes per nanosecond."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    finer = _finer(high / low)
    ticks = [part * 10.0**power for power in range(first, last + 1) for part in finer]
    shown = [tick for tick in ticks if low / 1.5 <= tick <= high * 1.5]
    return _log_ticks(shown, [_short_number(fmt.bandwidth(tick)) for tick in shown])


def bandwidths(high: float) -> dict[str, Any]:
    """Return a linear axis of bytes per nanosecond."""
    axis = durations(high, most=5)
    return axis | {"ticktext": [_short_number(fmt.bandwidth(tick)) for tick in axis["tickvals"]]}


def _short_number(label: str) -> str:
    """Leave out digits that say nothing: ``10 MB/s`` for 10.0 MB/s."""
    number, _, unit = label.partition(" ")
    return f"{float(number.replace(',', '')):g} {unit}"


def _log_ticks(ticks: list[float], labels: list[str]) -> dict[str, Any]:
    return {
        "type": "log",
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": labels,
        "fixedrange": True,
    }


def cell_lead(*values: int) -> str:
    """Write what a cell leads to."""
    return json.dumps(values)


def read_cell(point: dict[str, Any]) -> dict[str, Any]:
    """Return a clicked point with its cell's values as the list that was written."""
    written = point.get("customdata")
    if not isinstance(written, str) or not written.startswith("[") or len(written) > LONGEST_CELL:
        return point
    try:
        return {**point, "customdata": json.loads(written)}
    except ValueError:
        return point


def rank_label(ranks: Sequence[int]) -> str:
    """Name the ranks of a row."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"


def first_rank(label: str) -> int:
    """Return the first rank of a row by its label."""
    return int(label.split()[1].split("-", maxsplit=1)[0])


def ranks_and_steps(
    labels: Sequence[str], theme: Theme, marked: tuple[int, int] | None
) -> dict[str, Any]:
    """Return steps to the right, rows from top to bottom, and a frame around marked steps."""
    stride = max(1, -(-len(labels) // MOST_LABELS))
    return {
        "xaxis": {"title": {"text": "step"}, "showgrid": False, "fixedrange": True},
        "yaxis": {
            "type": "category",
            "tickvals": list(labels[::stride]),
            "ticksuffix": " ",
            "range": [len(labels) - 0.5, -0.5],
            "showgrid": False,
            "fixedrange": True,
        },
        "shapes": [_marked_steps(*marked, theme)] if marked else [],
    }


def _marked_steps(first: int, last: int, theme: Theme) -> dict[str, Any]:
    return {
        "type": "rect",
        "yref": "paper",
        "x0": first - 0.5,
        "x1": last + 0.5,
        "y0": 0,
        "y1": 1,
        "line": {"color": theme.secondary, "width": 1, "dash": "dot"},
    }

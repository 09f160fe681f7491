"""Axes of durations, bytes and bandwidth, labelled as sentences do; of rows, maps and their cells.

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
LONGEST_CELL: Final = 200  # letters
ROUND_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)

Axis: TypeAlias = dict[str, Any]
Units: TypeAlias = tuple[tuple[float, str], ...]

BYTES: Final[Units] = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
TIMES: Final[Units] = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))

STEPS: Final[Axis] = {"title": {"text": "step"}, "showgrid": False, "fixedrange": True}
# Above the plot, in the order of the traces.
LEGEND: Final = {"showlegend": True, "legend": {"traceorder": "normal"}, "margin": {"t": 30}}


def scale_to_unit(values: Array, units: Units) -> tuple[str, Array]:
    """Return the largest unit in which the values' maximum is at least 1, and the values in it."""
    largest = float(np.nanmax(values, initial=0))
    factor, unit = next(((size, name) for size, name in units if largest >= size), units[-1])
    return unit, values / factor


def rows_downwards(theme: Theme) -> Axis:
    """Return an axis of rows that are named by the traces, the first on top."""
    return {"autorange": "reversed", "fixedrange": True, "tickfont": {"color": theme.text_colour}}


def rows_of(row_count: int, theme: Theme, **options: Any) -> Axis:
    """Return an axis of `row_count` rows, the first on top."""
    rows = {
        "range": [row_count - 0.5, -0.5],
        "fixedrange": True,
        "tickfont": {"color": theme.text_colour},
    }
    return rows | options


def labelled_rows(labels: Sequence[str], theme: Theme, **options: Any) -> Axis:
    """Return an axis of numbered rows with labels, the first on top."""
    ticks = {"tickvals": list(range(len(labels))), "ticktext": list(labels)}
    return rows_of(len(labels), theme) | ticks | options


def log_durations(low_ns: float, high_ns: float) -> Axis:
    """Return a logarithmic axis for durations from `low_ns` to `high_ns`."""
    least_ns, most_ns = max(low_ns, 1.0), max(high_ns, low_ns * 1.01, 1.01)
    exponents = range(math.floor(math.log10(least_ns)), math.ceil(math.log10(most_ns)) + 1)
    digits = _digits_of_decade(most_ns / least_ns)
    ticks = _ticks_between(least_ns / 2, most_ns * 2, exponents, digits)
    if len(ticks) > MOST_TICKS + 2:
        ticks = _ticks_between(least_ns / 2, most_ns * 2, exponents, digits=(1.0,))
    stride = -(-len(ticks) // (MOST_TICKS + 2))
    ticks = ticks[::stride]
    return {"type": "log"} | _ticks(ticks, list(map(_short_duration, ticks)))


def _ticks_between(
    least: float, most: float, exponents: range, digits: Sequence[float]
) -> list[float]:
    ticks = [digit * 10.0**exponent for exponent in exponents for digit in digits]
    return [tick for tick in ticks if least <= tick <= most]


def _digits_of_decade(ratio: float) -> tuple[float, ...]:
    """Choose the ticks of a decade by the ratio of the axis' ends; a short axis has more."""
    decades = math.log10(ratio)
    if decades > FEW_DECADES:
        return (1.0,)
    return (1.0, 2.0, 5.0) if decades > 1 else (1.0, 2.0, 3.0, 5.0, 7.0)


def durations(high_ns: float, low_ns: float = 0.0, most_ticks: int = MOST_TICKS) -> Axis:
    """Return a linear axis of nanoseconds with `most_ticks` labels at most."""
    ticks = _linear_ticks(high_ns, low_ns, most_ticks)
    return {"type": "linear"} | _ticks(ticks, list(map(_short_duration, ticks)))


def _linear_ticks(high: float, low: float, most_ticks: int) -> list[float]:
    """Return at most `most_ticks` round numbers from `low` to `high`, equally far apart."""
    range_width = max(high - low, 1e-9)
    min_tick_width = range_width / most_ticks
    power = 10.0 ** math.floor(math.log10(min_tick_width))
    tick_width = next(step * power for step in ROUND_STEPS if step * power >= min_tick_width)
    first_multiple = math.ceil(low / tick_width)
    tick_count = int(range_width / tick_width) + 1
    return [tick_width * (first_multiple + index) for index in range(tick_count)]


def _ticks(values: Sequence[float], labels: Sequence[str]) -> Axis:
    return {"tickmode": "array", "tickvals": values, "ticktext": labels, "fixedrange": True}


def _short_duration(ns: float) -> str:
    return _short_number(text.duration(ns)) if ns else "0"


def _short_number(label: str) -> str:
    """Leave out digits that say nothing: ``10 MB/s`` for 10.0 MB/s."""
    number, _, unit = label.partition(" ")
    return f"{float(number.replace(',', '')):g} {unit}"


def log_sizes(low_bytes: float, high_bytes: float) -> Axis:
    """Return a logarithmic axis of bytes with ticks at powers of two."""
    first_power = math.floor(math.log2(max(low_bytes, 1)))
    last_power = math.ceil(math.log2(max(high_bytes, 2)))
    stride = max(-(-(last_power - first_power) // MOST_TICKS), 1)
    ticks = [2.0**power for power in range(first_power, last_power + 1, stride)]
    return {"type": "log"} | _ticks(ticks, [fmt.size(tick).replace(".0", "") for tick in ticks])


def log_bandwidths(low: float, high: float) -> Axis:
    """Return a logarithmic axis of bytes per nanosecond, from `low` to `high`."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = _ticks_between(low / 1.5, high * 1.5, exponents, _digits_of_decade(high / low))
    return {"type": "log"} | _ticks(ticks, [_short_number(fmt.bandwidth(tick)) for tick in ticks])


def bandwidths(high: float) -> Axis:
    """Return a linear axis of bytes per nanosecond."""
    ticks = _linear_ticks(high, low=0.0, most_ticks=MOST_TICKS)
    labels = [_short_number(fmt.bandwidth(tick)) for tick in ticks]
    return {"type": "linear"} | _ticks(ticks, labels)


def write_cell_values(*values: int) -> str:
    """Write the values of a cell of a heat map, which say where a click leads, as a text."""
    return json.dumps(values)


def read_cell_values(point: dict[str, Any]) -> dict[str, Any]:
    """Return a clicked point with the values of its cell as a list again (`write_cell_values`)."""
    cell_text = point.get("customdata")
    if not isinstance(cell_text, str) or len(cell_text) > LONGEST_CELL or cell_text[:1] != "[":
        return point
    try:
        return {**point, "customdata": json.loads(cell_text)}
    except ValueError:
        return point


def rank_label(ranks: Sequence[int]) -> str:
    """Name the ranks of a row."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"


def first_rank(label: str) -> int:
    """Return the first rank of a row by its label."""
    return int(label.split()[1].split("-", maxsplit=1)[0])


def ranks_and_steps(
    labels: Sequence[str], theme: Theme, marked_steps: tuple[int, int] | None
) -> dict[str, Any]:
    """Return the layout of a map of ranks by steps; marked steps, first to last, are framed."""
    label_stride = max(1, -(-len(labels) // MOST_LABELS))
    frames = []
    if marked_steps:
        line = {"color": theme.secondary_colour, "width": 1, "dash": "dot"}
        extent = {"x0": marked_steps[0] - 0.5, "x1": marked_steps[1] + 0.5, "y0": 0, "y1": 1}
        frames = [{"type": "rect", "yref": "paper", "line": line} | extent]
    return {
        "xaxis": STEPS,
        "yaxis": {
            "type": "category",
            "tickvals": list(labels[::label_stride]),
            "ticksuffix": " ",
            "range": [len(labels) - 0.5, -0.5],
            "showgrid": False,
            "fixedrange": True,
        },
        "shapes": frames,
    }

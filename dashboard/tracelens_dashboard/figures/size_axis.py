"""Logarithmic axes of bytes and of bandwidth, labelled in words."""

from __future__ import annotations

import math
from typing import Any, Final

from tracelens import words
from tracelens_dashboard.figures import duration_axis

MOST_TICKS: Final = 5  # as many labels as a narrow window has room for
FEW_DECADES: Final = 2.5


def of_bytes(low: float, high: float) -> dict[str, Any]:
    """Return an axis of bytes with ticks at powers of two."""
    first, last = math.floor(math.log2(max(low, 1))), math.ceil(math.log2(max(high, 2)))
    stride = max(-(-(last - first) // MOST_TICKS), 1)
    ticks = [2.0**power for power in range(first, last + 1, stride)]
    return _labelled(ticks, [words.size(tick).replace(".0", "") for tick in ticks])


def of_bandwidth(low: float, high: float) -> dict[str, Any]:
    """Return an axis of bytes per nanosecond."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    finer = (1.0, 2.0, 5.0) if math.log10(high / low) <= FEW_DECADES else (1.0,)
    ticks = [part * 10.0**power for power in range(first, last + 1) for part in finer]
    shown = [tick for tick in ticks if low / 1.5 <= tick <= high * 1.5]
    return _labelled(shown, [_short(words.bandwidth(tick)) for tick in shown])


def of_bandwidth_from_zero(high: float) -> dict[str, Any]:
    """Return a linear axis of bytes per nanosecond."""
    axis = duration_axis.linear(high, most=5)
    return axis | {"ticktext": [_short(words.bandwidth(tick)) for tick in axis["tickvals"]]}


def _short(label: str) -> str:
    """Leave out digits that say nothing: ``10 MB/s`` for 10.0 MB/s."""
    number, _, unit = label.partition(" ")
    return f"{float(number.replace(',', '')):g} {unit}"


def _labelled(ticks: list[float], labels: list[str]) -> dict[str, Any]:
    return {
        "type": "log",
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": labels,
        "fixedrange": True,
    }

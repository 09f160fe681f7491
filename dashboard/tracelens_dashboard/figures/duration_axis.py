"""Axes of time in words: ticks where people expect them, labelled as sentences label durations."""

from __future__ import annotations

import math
from typing import Any, Final

from tracelens_dashboard import text

MOST_TICKS: Final = 5  # as many labels as a narrow window has room for
FEW_DECADES: Final = 2.5
_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


def logarithmic(low_ns: float, high_ns: float) -> dict[str, Any]:
    """Return a logarithmic axis of nanoseconds."""
    low, high = max(low_ns, 1.0), max(high_ns, low_ns * 1.01, 1.01)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = [10.0**power for power in range(first, last + 1)]
    finer = (1.0, 2.0, 5.0) if math.log10(high / low) <= FEW_DECADES else (1.0,)
    ticks = [tick for p in powers for part in finer if low / 2 <= (tick := part * p) <= 2 * high]
    if len(ticks) > MOST_TICKS + 2:
        ticks = [power for power in powers if low / 2 <= power <= 2 * high]
    stride = -(-len(ticks) // (MOST_TICKS + 2))
    return {"type": "log"} | _labelled(ticks[::stride])


def linear(high_ns: float, low_ns: float = 0.0, most: int = MOST_TICKS) -> dict[str, Any]:
    """Return a linear axis of nanoseconds."""
    span = max(high_ns - low_ns, 1e-9)
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    width = next(step * power for step in _STEPS if step * power >= rough)
    first = math.ceil(low_ns / width)
    ticks = [width * (first + index) for index in range(int(span / width) + 1)]
    return {"type": "linear"} | _labelled(ticks)


def _labelled(ticks: list[float]) -> dict[str, Any]:
    return {
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [_short(tick) for tick in ticks],
        "fixedrange": True,
    }


def _short(ns: float) -> str:
    """Write a round duration without the digits that say nothing: ``5 ms`` for 5.00 ms."""
    number, _, unit = text.duration(ns).partition(" ")
    return f"{float(number.replace(',', '')):g} {unit}" if ns else "0"

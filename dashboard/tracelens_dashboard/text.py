"""Numbers and names as words, for people."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final

from tracelens.reports.words import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNITS: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_SIZES: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
LONGEST_NAME: Final = 80
MOST_LISTED: Final = 6


def duration(ns: float) -> str:
    """Write a duration with three digits: ``162 ms``."""
    for size, unit in _UNITS:
        if abs(ns) >= size:
            value = ns / size
            digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
            return f"{value:,.{digits}f} {unit}"
    return "0 ms"


def size(count: float) -> str:
    """Write a number of bytes: ``24.0 MiB``."""
    for factor, unit in _SIZES:
        if abs(count) >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count:,.0f} B"


def points(share: float) -> str:
    """Write a share of the job's time as percentage points: ``12`` or ``0.4``."""
    value = 100 * share
    return f"{value:.0f}" if abs(value) >= 9.95 else f"{value:.1f}"


def percent(share: float) -> str:
    """Write a share as a percentage: ``61 %``."""
    return f"{points(share)} %"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Write a number with its noun: ``1 step``, ``400 steps``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listing(noun: str, numbers: Sequence[int]) -> str:
    """Name ranks or shards: ``rank 3``, ``ranks 3, 5 and 7``, ``ranks 0, 1, 2 and 61 more``."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    shown = [str(number) for number in numbers[:MOST_LISTED]]
    if len(numbers) > MOST_LISTED:
        shown = [*shown[:-1], f"{len(numbers) - MOST_LISTED + 1} more"]
    return f"{noun}s {', '.join(shown[:-1])} and {shown[-1]}"


def span_of(steps: tuple[int, int]) -> str:
    """Write a range of steps: ``step 4``, ``steps 200-260``."""
    first, last = steps
    return f"step {first}" if first == last else f"steps {first}-{last}"


def safe(name: str | None) -> str:
    """Make a name from a trace inert in a figure: Plotly reads a few HTML tags in its texts."""
    shown = clean(name or "")
    if len(shown) > LONGEST_NAME:
        shown = shown[: LONGEST_NAME - 1] + "…"
    return html.escape(shown, quote=False)

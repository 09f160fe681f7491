"""Numbers and names as the words of a finding's sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNITS: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_SIZES: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_PHASES: Final = {
    "data": "data loading",
    "update": "the weight update",
    "checkpoint": "checkpointing",
    "gc": "garbage collection",
    "user": "its own code",
}
MOST_LISTED: Final = 6


def duration(ns: float) -> str:
    """Write a duration with two or three digits: ``162 ms``."""
    for size, unit in _UNITS:
        if abs(ns) >= size:
            value = ns / size
            digits = 0 if abs(value) >= 10 else 1
            return f"{value:.{digits}f} {unit}"
    return "0 ms"


def size(count: float) -> str:
    """Write a number of bytes: ``24.0 MiB``."""
    for factor, unit in _SIZES:
        if abs(count) >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


def percent(share: float) -> str:
    """Write a share as a percentage: ``61 %``, ``0.4 %``."""
    value = 100 * share
    return f"{value:.0f} %" if abs(value) >= 9.95 else f"{value:.1f} %"


def listing(noun: str, numbers: Sequence[int | str]) -> str:
    """Name some: ``rank 3``, ``ranks 3, 5 and 7``, ``ranks 0, 1, 2 and 61 more``."""
    shown = [str(number) for number in numbers]
    if len(shown) == 1:
        return f"{noun} {shown[0]}"
    if len(shown) > MOST_LISTED:
        shown = [*shown[: MOST_LISTED - 1], f"{len(shown) - MOST_LISTED + 1} more"]
    return f"{noun}s {', '.join(shown[:-1])} and {shown[-1]}"


def steps(first: int, last: int) -> str:
    """Write a range of steps, inclusive: ``step 4``, ``steps 40-79``."""
    return f"step {first}" if first == last else f"steps {first}-{last}"


def phase(name: str) -> str:
    """Say a phase within a sentence: ``data loading``, ``backprop``."""
    return _PHASES.get(name, name)


def capital(text: str) -> str:
    """Begin a sentence."""
    return text[:1].upper() + text[1:]

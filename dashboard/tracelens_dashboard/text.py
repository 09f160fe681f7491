"""What the pages write: the words of the core, and names that cannot act."""

from __future__ import annotations

import html
from functools import lru_cache
from typing import Final

from tracelens.reports.words import clean
from tracelens.words import count, duration, listing, percent, points, size, steps

__all__ = [
    "count",
    "duration",
    "listing",
    "percent",
    "points",
    "safe",
    "size",
    "steps",
]

LONGEST_NAME: Final = 80


@lru_cache(1 << 14)
def safe(name: str | None) -> str:
    """Make a name from a trace inert in a figure: Plotly reads a few HTML tags in its texts."""
    shown = clean(name or "")
    if len(shown) > LONGEST_NAME:
        shown = shown[: LONGEST_NAME - 1] + "…"
    return html.escape(shown, quote=False)

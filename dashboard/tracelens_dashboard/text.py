"""What the pages write: the words of the core, and names that cannot act."""

from __future__ import annotations

import html
import re
from functools import lru_cache
from typing import Final

from tracelens.model.fmt import count, duration, listing, percent, points, size, steps
from tracelens.model.inert import clean

__all__ = [
    "count",
    "duration",
    "listing",
    "percent",
    "points",
    "safe",
    "shown",
    "size",
    "steps",
    "tied",
]

LONGEST_NAME: Final = 80
_UNIT: Final = re.compile(r"(\d) (%|[nµm]?s\b|[KMG]?i?B\b)")


def tied(sentence: str) -> str:
    """Keep numbers and their units in one line of a heading, however narrow it is."""
    return _UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", sentence)


@lru_cache(1 << 14)
def safe(name: str | None) -> str:
    """Make a name from a trace inert in a figure: Plotly reads a few HTML tags in its texts."""
    return html.escape(shown(name), quote=False)


def shown(name: str | None) -> str:
    """Make a name from a trace, or of a run, fit to be shown as a text of the page."""
    fit = clean(name or "")
    return fit[: LONGEST_NAME - 1] + "…" if len(fit) > LONGEST_NAME else fit

"""What the pages write: the words of the core, and names that cannot act."""

from __future__ import annotations

import html
import re
from functools import lru_cache
from typing import Final

from tracelens.model.fmt import count, duration, listing, percent, percent_number, size, steps
from tracelens.model.inert import clean

__all__ = [
    "clean_name",
    "count",
    "duration",
    "escape_name",
    "listing",
    "percent",
    "percent_number",
    "size",
    "steps",
    "tie_units",
]

LONGEST_NAME: Final = 80
_UNIT: Final = re.compile(r"(\d) (%|[nµm]?s\b|[KMG]?i?B\b)")


def tie_units(sentence: str) -> str:
    """Keep numbers and their units in one line of a heading, however narrow it is."""
    return _UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", sentence)


@lru_cache(1 << 14)
def escape_name(name: str | None) -> str:
    """Make a name from a trace inert in a figure: Plotly reads a few HTML tags in its texts."""
    return html.escape(clean_name(name), quote=False)


def clean_name(name: str | None) -> str:
    """Make a name from a trace, or of a run, fit to be shown as a text of the page."""
    fit = clean(name or "")
    return fit[: LONGEST_NAME - 1] + "…" if len(fit) > LONGEST_NAME else fit

"""What changed from some baseline runs to a new one: metric by metric, finding by finding, and gates.

`compare` measures, `gates.judge` decides, and the formats below write it down; the dashboard draws the
same. What the numbers mean: docs/compare.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

from tracelens.comparison.changes import Comparison, Metric, compare
from tracelens.comparison.series import Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.comparison.gates import Outcome

__all__ = [
    "COMPARISONS",
    "Comparison",
    "ComparisonFormat",
    "Metric",
    "Steps",
    "compare",
    "comparison_format",
]

# Each a module `to_NAME` beside this one; only the one asked for is imported.
COMPARISONS: Final = ("text", "json", "markdown")


class ComparisonFormat(Protocol):
    """A module that writes a comparison down."""

    def render(self, found: Comparison, outcomes: Sequence[Outcome], /) -> str:
        """Return all of it as text."""


def comparison_format(name: str) -> ComparisonFormat:
    """Import the module of a format."""
    return cast("ComparisonFormat", import_module(f"{__name__}.to_{name}"))

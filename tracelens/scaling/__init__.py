"""How runs of several sizes scale: efficiency, the factor that loses it, and a forecast.

`Point.of` measures a run, `curves` compares them, and the formats below write it down (docs/scaling.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import Final, Protocol, cast

from tracelens.scaling.curves import Curve, Row, Scaling, curves
from tracelens.scaling.points import Point

__all__ = [
    "SCALINGS",
    "Curve",
    "Point",
    "Row",
    "Scaling",
    "ScalingFormat",
    "curves",
    "scaling_format",
]

# Each a module `to_NAME` beside this one; only the one asked for is imported.
SCALINGS: Final = ("text", "json", "markdown")


class ScalingFormat(Protocol):
    """A module that writes down how runs scale."""

    def render(self, found: Scaling, /) -> str:
        """Return all of it as text."""


def scaling_format(name: str) -> ScalingFormat:
    """Import the module of a format."""
    return cast("ScalingFormat", import_module(f"{__name__}.to_{name}"))

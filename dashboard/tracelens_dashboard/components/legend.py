"""What the colours mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dash import html

from tracelens_dashboard import text
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash.development.base_component import Component

    from tracelens_dashboard.theme import Theme


def categories(labels: Sequence[str], theme: Theme) -> list[Component]:
    """Return a swatch and a name for each category."""
    return [
        html.Span(
            [_swatch(theme.categories[label]), name_of(label)],
            className="legend-item",
        )
        for label in labels
    ]


def ramp(ceiling_ns: float, theme: Theme) -> Component:
    """Return the ramp of lateness with both its ends."""
    stops = ", ".join(theme.ramp)
    bar = html.Span(className="ramp", style={"background": f"linear-gradient(90deg, {stops})"})
    return html.Span([bar, f"0 to {text.duration(ceiling_ns)} late"], className="legend-item")


def _swatch(colour: str) -> Component:
    return html.Span(className="swatch", style={"background": colour})

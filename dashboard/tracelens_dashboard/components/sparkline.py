"""A small line without axes, in the colour of its surroundings."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Final

import numpy as np
from dash import html

from tracelens_dashboard.components.aria import aria

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash.development.base_component import Component

WIDTH: Final = 120
HEIGHT: Final = 28
LEAST_SPREAD: Final = 0.25  # of the median: noise is drawn as noise, not as mountains
MOST_QUANTILE: Final = 0.98  # a first step that loads libraries would flatten all others


def line(values: Sequence[int], say: str) -> Component:
    """Draw numbers from left to right; `say` is what a screen reader tells instead."""
    if len(values) < 2:
        return html.Span(say, className="fact-name")
    mask = f"url(data:image/svg+xml;base64,{b64encode(_svg(values).encode()).decode()})"
    style = {"maskImage": mask, "WebkitMaskImage": mask, "width": WIDTH, "height": HEIGHT}
    return html.Span(className="sparkline", style=style, role="img", title=say, **aria(say))


def _svg(values: Sequence[int]) -> str:
    shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(*_places(values), strict=True))
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}'>"
        f"<polyline points='{shape}' fill='none' stroke='#000' stroke-width='1.5'/></svg>"
    )


def _places(values: Sequence[int]) -> tuple[list[float], list[float]]:
    series = np.asarray(values, float)
    top, bottom = float(np.quantile(series, MOST_QUANTILE)), float(series.min())
    spread = max(top - bottom, LEAST_SPREAD * float(np.median(series)), 1.0)
    height = np.clip((series - bottom) / spread, 0, 1)
    return (
        np.linspace(1, WIDTH - 1, len(series)).tolist(),
        (HEIGHT - 3 - (HEIGHT - 6) * height).tolist(),
    )

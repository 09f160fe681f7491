"""Colours and templates, light and dark, and the one configuration of every graph.

Culprits are strong, victims pale: a rank that waits almost melts into the background, so the eye
goes to the straggler it waits for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens.lod.colours import NAMES, PALE, STRONG, list_palette, parse_rgb
from tracelens.lod.lanes import LEVELS

if TYPE_CHECKING:
    from tracelens.lod.raster import Colour

GRAPH_CONFIG: Final[Any] = {
    "showSendToCloud": False,  # plotly.js would offer to upload the figure
    "displaylogo": False,
    "scrollZoom": True,
    "displayModeBar": False,
    "doubleClick": "reset",
}
# Two quick clicks on a span select it; Plotly would show all that is drawn, of which no address says so.
TIMELINE_CONFIG: Final[Any] = GRAPH_CONFIG | {"doubleClick": False}
TRANSPARENT: Final = "rgba(0,0,0,0)"
FONT: Final = (
    "-apple-system, BlinkMacSystemFont, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
)

# Above the plot, from its left edge on: narrow windows have no room beside it.
_ABOVE: Final[Any] = {"x": 0, "y": 1.02, "yanchor": "bottom"}
_LEGEND: Final[Any] = {"orientation": "h", "itemsizing": "constant"} | _ABOVE
_SCALE: Final[Any] = {"thickness": 10, "outlinewidth": 0, "len": 1, "xpad": 8, "ypad": 0}

_PALE_DARK: Final = {
    "wait": "#4B3A40",
    "ps_queue": "#544056",
    "idle": "#333333",
    "uninstrumented": "#3D3F42",
    "unselected": "#262728",
    "step": "#4A5563",
    "next_step": "#3B4552",
}


@dataclass(frozen=True)
class Theme:
    """One colour scheme; the ramp runs from no residual to the largest.

    A colour has one meaning on all pages: `accent_colour` is of amounts without a category,
    `loss_colour` of what a finding or a test names, `faster_colour` and `slower_colour` of a
    difference between runs, series colours of groups without an order (operations, algorithms,
    ranks).
    """

    scheme: str
    text_colour: str
    secondary_colour: str
    grid_colour: str
    surface_colour: str
    accent_colour: str
    loss_colour: str
    slower_colour: str
    faster_colour: str
    quiet_colour: str
    flame_colour: str  # of a call that takes no longer than elsewhere
    colour_by_category: dict[str, str]
    ramp_colours: tuple[str, ...]
    series_colours: tuple[str, ...]

    @property
    def colorscale(self) -> list[list[object]]:
        """Return the ramp as Plotly wants it."""
        last = len(self.ramp_colours) - 1
        return [[index / last, colour] for index, colour in enumerate(self.ramp_colours)]


LIGHT: Final = Theme(
    scheme="light",
    text_colour="#1F2328",
    secondary_colour="#5C636A",
    grid_colour="#E6E8EB",
    surface_colour="#FFFFFF",
    accent_colour="#64748B",
    loss_colour="#C4473A",
    slower_colour="#C9681A",
    faster_colour="#0F7C80",
    quiet_colour="#C9CED4",
    flame_colour="#EBE4D2",
    colour_by_category=STRONG | PALE,
    ramp_colours=("#FAF7EF", "#FAF0D4", "#F5CF79", "#EB8F35", "#C93529", "#7A0A24"),
    series_colours=("#5B3FA8", "#A0522D", "#4F6B1E", "#B0568C", "#1F2937", "#8A8420"),
)
DARK: Final = Theme(
    scheme="dark",
    text_colour="#E3E5E8",
    secondary_colour="#B5B8BD",
    grid_colour="#434343",
    surface_colour="#2E2E2E",
    accent_colour="#94A3B8",
    loss_colour="#EF7C6E",
    slower_colour="#E8923F",
    faster_colour="#3FB6B9",
    quiet_colour="#6A6E73",
    flame_colour="#4A473F",
    colour_by_category=STRONG | _PALE_DARK,
    ramp_colours=("#333130", "#443D2E", "#7F662D", "#CF8A2C", "#F0563F", "#FFC2B8"),
    series_colours=("#A893F0", "#D08A5E", "#A9C25D", "#E39AC6", "#E5E7EB", "#CFC95A"),
)


def for_scheme(scheme: str | None) -> Theme:
    """Return the theme of a colour scheme as the browser names it."""
    return DARK if scheme == "dark" else LIGHT


def name_of(label: str | None) -> str:
    """Return the name of a category or a server's operation."""
    return NAMES.get(label or "", label or "")


@cache
def template(scheme: str) -> go.layout.Template:
    """Return the template that all figures of a scheme share; plots show their card through."""
    theme = for_scheme(scheme)
    axis_style = {
        "gridcolor": theme.grid_colour,
        "linecolor": theme.grid_colour,
        "zerolinecolor": theme.grid_colour,
        "tickfont": {"color": theme.secondary_colour},
        "title": {"font": {"color": theme.secondary_colour, "size": 12}},
        "automargin": True,
        "ticks": "",
        "ticklabelstandoff": 4,
        "tickangle": 0,
    }
    figure_layout = go.Layout(
        font={"family": FONT, "size": 12, "color": theme.text_colour},
        paper_bgcolor=TRANSPARENT,
        plot_bgcolor=TRANSPARENT,
        margin={"l": 8, "r": 12, "t": 8, "b": 8},
        hoverlabel={
            "bgcolor": theme.surface_colour,
            "bordercolor": theme.grid_colour,
            "font": {"family": FONT, "color": theme.text_colour, "size": 12},
            "align": "left",
        },
        dragmode=False,
        showlegend=False,
        legend=_LEGEND | {"font": {"color": theme.secondary_colour, "size": 12}},
        xaxis=axis_style,
        yaxis=axis_style,
    )
    scale = _SCALE | {"tickfont": {"color": theme.secondary_colour, "size": 11}}
    return go.layout.Template(layout=figure_layout, data={"heatmap": [go.Heatmap(colorbar=scale)]})


def blank() -> go.Figure:
    """Return an empty figure, for the place of one that is not drawn yet."""
    hidden = {"visible": False}
    return go.Figure(layout={"template": template("light"), "xaxis": hidden, "yaxis": hidden})


@cache
def palette(scheme: str, reach: float = 1.0) -> tuple[Colour, ...]:
    """Return the colour (red, green, blue) of every palette index: categories, then residuals.

    The largest residual gets the colour at `reach`, 0 to 1, of the ramp: 1 unless a scale goes
    further.
    """
    theme = for_scheme(scheme)
    category_colours = list_palette(theme.colour_by_category, theme.surface_colour)
    stops = np.array([parse_rgb(colour) for colour in theme.ramp_colours], float)  # [stop, channel]
    positions = reach * np.linspace(0, len(stops) - 1, LEVELS)
    channels = [np.interp(positions, range(len(stops)), stops[:, c]).round() for c in range(3)]
    residual_colours = ((int(r), int(g), int(b)) for r, g, b in zip(*channels, strict=True))
    return (*category_colours, *residual_colours)


def readable(ground: Colour) -> str:
    """Choose the text that can be read on a colour, whichever it is: black or white."""
    return max(("#000000", "#FFFFFF"), key=lambda text: contrast(parse_rgb(text), ground))


def contrast(first: Colour, second: Colour) -> float:
    """Return the contrast of two colours as WCAG 2 defines it, 1 to 21."""
    low, high = sorted((_luminance(first), _luminance(second)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: Colour) -> float:
    shares = [channel / 255 for channel in colour]
    red, green, blue = (s / 12.92 if s <= 0.03928 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue

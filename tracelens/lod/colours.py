"""The colours of categories: culprits are strong, victims pale.

A rank that waits almost melts into the background, so the eye goes to the straggler it waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens.lod.lanes import FIRST_LEVEL, LABELS, SHADE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.lod.raster import Colour

_STRENGTHS: Final = (1.0, 0.72, 0.5, 0.34)  # of what took most of a pixel, by how full it is

STRONG: Final = {
    "data": "#DDAA33",
    "forward": "#4477AA",
    "backprop": "#66CCEE",
    "update": "#228833",
    "checkpoint": "#44AA99",
    "gc": "#EE6677",
    "user": "#999999",
    "transfer": "#AA3377",
    "receive": "#C58BB0",
    "aggregate": "#EE8866",
    "apply": "#228833",
    "reply": "#7B5EA7",
    "stack": "#8E9BA8",
    "next_stack": "#B3A58F",
}
PALE: Final = {
    "wait": "#E9DADD",
    "ps_queue": "#DFC9DA",
    "idle": "#F4F4F5",
    "uninstrumented": "#E4E6E9",
    "unselected": "#FAFAFB",
    "step": "#CBD5E1",
    "next_step": "#DDE4EC",
}
NAMES: Final = {
    "data": "data loading",
    "forward": "forward",
    "backprop": "backprop",
    "update": "weight update",
    "checkpoint": "checkpoint",
    "gc": "garbage collection",
    "user": "other compute",
    "wait": "wait for other ranks",
    "ps_queue": "server queue",
    "transfer": "transfer",
    "idle": "idle",
    "uninstrumented": "uninstrumented",
    "receive": "server: receive",
    "aggregate": "server: aggregate",
    "apply": "server: apply update",
    "reply": "server: reply",
    "stack": "sampled code",
    "next_stack": "sampled code",
    "unselected": "not selected",
}


def list_palette(categories: Mapping[str, str], surface: str) -> list[Colour]:
    """Return the colours of the palette indexes that are categories, on a background."""
    colours = [parse_rgb(surface)] * FIRST_LEVEL
    for shade, strength in enumerate(_STRENGTHS):
        for code, label in enumerate(LABELS, start=1):
            colours[code + shade * SHADE] = mix_colours(categories[label], surface, strength)
    return colours


def mix_colours(colour: str, background: str, strength: float) -> Colour:
    """Lay a colour thinly over another: `strength` of 1 hides what is below."""
    top, bottom = parse_rgb(colour), parse_rgb(background)
    r, g, b = (
        round(strength * top_value + (1 - strength) * bottom_value)
        for top_value, bottom_value in zip(top, bottom, strict=True)
    )
    return r, g, b


def parse_rgb(colour: str) -> Colour:
    """Read ``#RRGGBB``."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)

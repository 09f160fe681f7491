"""What stands on a page's screen, pixel by pixel: the browser decodes its own screenshot."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from support.web.browser import box_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from playwright.sync_api import FloatRect, Page

    from tracelens.lod.raster import Colour

_DECODE: Final = """async ([source, colours]) => {
  const image = new Image();
  image.src = source;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const data = context.getImageData(0, 0, image.width, image.height).data;
  const wanted = new Set(colours.map(([r, g, b]) => (r << 16) | (g << 8) | b));
  const found = [];
  for (let at = 0; at < data.length; at += 4) {
    const pixel = at / 4;
    if (wanted.has((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]))
      found.push([pixel % image.width, Math.floor(pixel / image.width)]);
  }
  return found;
}"""


def coloured(page: Page, where: FloatRect, colours: Collection[Colour]) -> list[tuple[int, int]]:
    """Return the places, in pixels from a rectangle's corner, that have one of some colours."""
    shot = page.screenshot(clip=where)
    source = "data:image/png;base64," + base64.b64encode(shot).decode()
    found = page.evaluate(_DECODE, [source, [list(colour) for colour in colours]])
    return [(x, y) for x, y in found]


def plot(page: Page) -> FloatRect:
    """Return where the timeline's plot is on the page."""
    return box_of(page.locator("#timeline .nsewdrag").first)

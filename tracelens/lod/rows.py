"""Which lane is drawn at which height: pinned ranks on top, all workers, devices' streams, shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.lod.lanes import Integers, Lanes

Section = Literal["pinned", "workers", "streams", "shards"]

PINNED_PX: Final = 24
TALLEST_PX: Final = 40
GAP_PX: Final = 2  # between rows that are tall enough to be told apart
GAP_FROM_PX: Final = 6
BETWEEN_SECTIONS_PX: Final = 14
WORKERS_PX: Final = 512
STREAMS_PX: Final = 384
SHARDS_PX: Final = 192
MAX_PINNED: Final = 12


@dataclass(frozen=True)
class Band:
    """A strip of pixels, `top` to `top + height`, and the lanes that share it."""

    section: Section
    top: int
    height: int
    lanes: tuple[int, ...]

    @property
    def middle(self) -> float:
        """Where its label stands."""
        return self.top + self.height / 2


@dataclass(frozen=True)
class Plan:
    """All bands from top to bottom."""

    bands: tuple[Band, ...]
    height: int

    def at(self, y: float) -> Band | None:
        """Return the band at a height; None between bands."""
        found = (band for band in self.bands if band.top <= y < band.top + band.height)
        return next(found, None)

    def section(self, name: Section) -> tuple[Band, ...]:
        """Return the bands of one section."""
        return tuple(band for band in self.bands if band.section == name)


def plan(lanes: Lanes, pinned: Sequence[int] = (), order: Sequence[int] | None = None) -> Plan:
    """Give every lane its place; `pinned` and `order` list lanes (order: of the workers)."""
    workers = [i for i, lane in enumerate(lanes.lanes) if lane.role == "worker"]
    streams = [i for i, lane in enumerate(lanes.lanes) if lane.role == "device"]
    shards = [i for i, lane in enumerate(lanes.lanes) if lane.role == "ps"]
    bands: list[Band] = []
    top = _stack(bands, "pinned", list(pinned)[:MAX_PINNED], 0, PINNED_PX * MAX_PINNED)
    top = _stack(bands, "workers", list(order or workers), top, WORKERS_PX)
    top = _stack(bands, "streams", streams, top, STREAMS_PX)
    top = _stack(bands, "shards", shards, top, SHARDS_PX)
    return Plan(tuple(bands), max(top, 1))


def _stack(bands: list[Band], section: Section, lanes: list[int], top: int, room: int) -> int:
    """Append one section's bands below `top`; return where it ends."""
    if not lanes:
        return top
    top += BETWEEN_SECTIONS_PX if bands else 0
    tallest = PINNED_PX if section == "pinned" else TALLEST_PX
    pitch = max(1, min(tallest, room // len(lanes)))
    gap = GAP_PX if pitch >= GAP_FROM_PX else 0
    for group in np.array_split(np.array(lanes), min(len(lanes), room)):
        bands.append(Band(section, top, pitch - gap, tuple(group.tolist())))
        top += pitch
    return top


def worst(groups: Sequence[tuple[int, ...]], badness: Integers) -> list[int]:
    """Choose the lane that stands for each group: the one with the greatest badness."""
    return [max(group, key=lambda lane: int(badness[lane])) for group in groups]

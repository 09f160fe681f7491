"""Finds spans by name: what is called so in a window, how often, how long, and where it took longest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.lod.lanes import Integers, Lanes
    from tracelens.lod.window import Window

MOST_NAMES: Final = 8
MOST_ITEMS: Final = 1 << 22  # looked through at a time


@dataclass(frozen=True)
class Match:
    """A name and the items that carry it; `longest` is one of them, in `lane`."""

    name: str
    count: int
    total_ns: int
    longest: int
    lane: int


def find(lanes: Lanes, wanted: str, seen: Window) -> list[Match]:
    """Return the names that hold some text, in any case, by the time that they take in a window."""
    text = wanted.strip().casefold()
    named = [i for i, word in enumerate(lanes.words) if text and text in word.casefold()]
    if not named:
        return []
    row = np.full(len(lanes.words), -1)
    row[named] = np.arange(len(named))
    count, total = np.zeros(len(named), np.int64), np.zeros(len(named), np.int64)
    longest, length = np.zeros(len(named), np.int64), np.zeros(len(named), np.int64)
    for part in portions(lanes, seen, range(len(lanes))):
        which = row[lanes.names[part]]
        hits = np.flatnonzero(which >= 0)
        of, lasted = which[hits], lanes.ends[part][hits] - lanes.starts[part][hits]
        count += np.bincount(of, minlength=len(named))
        np.add.at(total, of, lasted)
        order = np.argsort(lasted, kind="stable")
        best = np.zeros(len(named), np.int64)
        best[of[order]] = order  # the last one written is the longest
        better = np.isin(np.arange(len(named)), of)
        better[better] = lasted[best[better]] > length[better]
        longest[better] = part.start + hits[best[better]]
        length[better] = lasted[best[better]]
    ranked = np.argsort(-total, kind="stable")[:MOST_NAMES]
    lane = np.searchsorted(lanes.offsets, longest, side="right") - 1
    return [
        Match(lanes.words[named[i]], int(count[i]), int(total[i]), int(longest[i]), int(lane[i]))
        for i in ranked
        if count[i]
    ]


def portions(lanes: Lanes, seen: Window, chosen: Sequence[int]) -> list[slice]:
    """Return the items of some lanes in a window, in pieces that fit into memory."""
    first, last = lanes.bounds(seen.start_ns, seen.end_ns)
    merged = _merged(first[chosen], last[chosen])
    return [
        slice(begin, min(begin + MOST_ITEMS, end))
        for start, end in merged
        for begin in range(start, end, MOST_ITEMS)
    ]


def _merged(first: Integers, last: Integers) -> list[tuple[int, int]]:
    """Join stretches that touch."""
    found: list[tuple[int, int]] = []
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        if begin == end:
            continue
        if found and found[-1][1] == begin:
            found[-1] = found[-1][0], end
        else:
            found.append((begin, end))
    return found

"""Lanes as files: the columns of their items in compressed blocks, written part by part.

Pieces of a worker's time touch: where one ends, the next begins. So times are kept as lengths, as the
gap before each item, which is zero nearly everywhere, and as the times of the first item of each block.
Of steps differences are kept, as neighbours mostly are of one step. All that is exact.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tracelens.lod import packed
from tracelens.lod.lanes import Lane, Lanes, base_of
from tracelens.lod.packed import BLOCK, KEPT, Blocks, Packed, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tracelens.arrays import Array, Ints

    OnProgress = Callable[[int, int], None]

COLUMNS: Final[dict[str, np.dtype[Any]]] = {
    "lengths": np.dtype(np.int64),
    "gaps": np.dtype(np.int64),
    "codes": np.dtype(np.uint8),
    "steps": np.dtype(np.int32),
    "names": np.dtype(np.int32),
}
OFFSETS: Final = "offsets"
MARKS: Final = "marks"  # [start or end, block] of the first item of each block


class _Items(NamedTuple):
    starts: Array
    ends: Array
    codes: Array
    steps: Array
    names: Array


_NONE: Final = _Items(*(np.zeros(0, dtype) for dtype in COLUMNS.values()))


def save_lanes(
    parts: Iterable[Lanes],
    folder: Path,
    what: str,
    total: int = 0,
    on_progress: OnProgress | None = None,
) -> tuple[Ints, tuple[str, ...]]:
    """Write the columns of all parts; return the offsets of their lanes, and their words.

    Memory holds one part at a time, and less than a block of what came before it.
    """
    words: dict[tuple[str, ...], int] = {}
    counts, marks, rest = [0], [np.zeros((2, 0), np.int64)], _NONE
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(Writer(folder, f"{what}-{name}", dtype))
            for name, dtype in COLUMNS.items()
        }
        for part in parts:
            items = _joined(rest, part, base_of(words, part.words))
            full = len(items.starts) // BLOCK * BLOCK
            marks.append(_write(writers, _Items(*(values[:full] for values in items))))
            rest = _Items(*(values[full:] for values in items))
            counts += np.diff(part.offsets).tolist()
            if on_progress:
                on_progress(len(counts) - 1, total)
        marks.append(_write(writers, rest))
    offsets = np.cumsum(counts)
    np.save(folder / f"{what}-{OFFSETS}.npy", offsets)
    np.save(folder / f"{what}-{MARKS}.npy", np.concatenate(marks, axis=1))
    return offsets, tuple(word for group in words for word in group)


def _joined(rest: _Items, part: Lanes, base: np.int32) -> _Items:
    """Put what is left of the parts before in front of a part's items."""
    mine = (part.starts, part.ends, part.codes, part.steps, part.names[:] + base)
    pairs = zip(rest, mine, strict=True)
    return _Items(*(np.concatenate([before, values[:]]) for before, values in pairs))


def _write(writers: dict[str, Writer], items: _Items) -> Ints:
    """Write items from the begin of a block on; return the times of the first of each block."""
    first = slice(None, None, BLOCK)
    gaps, steps = np.zeros_like(items.starts), items.steps.copy()
    gaps[1:] = items.starts[1:] - items.ends[:-1]
    gaps[first] = 0
    steps[1:] = np.diff(items.steps)
    steps[first] = items.steps[first]
    writers["lengths"].add(items.ends - items.starts)
    writers["gaps"].add(gaps)
    writers["codes"].add(items.codes)
    writers["steps"].add(steps)
    writers["names"].add(items.names)
    return np.stack([items.starts[first], items.ends[first]])


@dataclass(frozen=True, eq=False)
class _Times:
    """Decodes the starts and the ends of a block's items, both at once."""

    lengths: Packed
    gaps: Packed
    starts: Ints  # of the first item of each block

    def decode(self, blocks: Ints) -> list[Array]:
        """Return of each block the edges of items that touch, else times as [start or end, item]."""
        touch = self.gaps.is_zero(blocks)
        lengths, first = self.lengths.padded(blocks), self.starts[blocks][:, np.newaxis]
        apart = lengths if touch.all() else lengths + self.gaps.padded(blocks)
        edges = np.hstack([first, apart]).cumsum(axis=1)
        found = []
        for row, (count, touches) in enumerate(
            zip(self.lengths.counts(blocks), touch, strict=True)
        ):
            mine = edges[row, : count + 1]
            ends = mine[1:]
            found.append(mine.copy() if touches else np.stack([ends - lengths[row, :count], ends]))
        return found


def load_lanes(folder: Path, what: str, lanes: Sequence[Lane], words: Sequence[str]) -> Lanes:
    """Open what `save_lanes` wrote; nothing is decoded yet.

    Raises:
        OSError: a file is not there.
        ValueError: a file is not whole.
    """
    marks = packed.mapped(folder / f"{what}-{MARKS}.npy")
    lengths, gaps, differences = (
        Packed(folder, f"{what}-{name}") for name in ("lengths", "gaps", "steps")
    )
    edges = KEPT.of(_Times(lengths, gaps, marks[0]).decode)

    def starts_of(blocks: Ints) -> list[Array]:
        return [found[:-1] if found.ndim == 1 else found[0] for found in edges(blocks)]

    def ends_of(blocks: Ints) -> list[Array]:
        return [found[1:] if found.ndim == 1 else found[1] for found in edges(blocks)]

    def steps_of(blocks: Ints) -> list[Array]:
        return [np.cumsum(found, dtype=found.dtype) for found in differences.decode(blocks)]

    count, times = differences.count, lengths.dtype
    return Lanes(
        lanes=tuple(lanes),
        offsets=packed.mapped(folder / f"{what}-{OFFSETS}.npy"),
        starts=Blocks(count, times, starts_of, marks[0]),
        ends=Blocks(count, times, ends_of, marks[1]),
        codes=packed.column(folder, f"{what}-codes"),
        steps=Blocks(count, differences.dtype, KEPT.of(steps_of)),
        names=packed.column(folder, f"{what}-names"),
        words=tuple(words),
    )

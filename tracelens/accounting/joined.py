"""Several small processes as one, whose time is cut into pieces at once.

What is done with arrays of some hundred rows costs by the call. So the columns of several processes are
put one after the other, each process's time right behind that of the one before: what was true of each
alone stays true, as nothing reaches from one into the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.partition import Intervals, Pieces
from tracelens.model.columns import Columns, Words
from tracelens.schema.rules import LATEST_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeVar

    from tracelens.arrays import Array, Flags, Ints

    _Thing = TypeVar("_Thing")

__all__ = ["Joined", "grouped"]

MAX_JOINED_ROWS: Final = 1 << 16  # rows: processes are joined into groups of no more [policy]


def grouped(
    things: Iterable[_Thing], rows: Callable[[_Thing], int], least: int = 1
) -> Iterator[list[_Thing]]:
    """Yield things in order, as many at a time as have no more rows than are joined, or `least`."""
    group: list[_Thing] = []
    total = 0
    for thing in things:
        count = rows(thing)
        if len(group) >= least and total + count > MAX_JOINED_ROWS:
            yield group
            group, total = [], 0
        group.append(thing)
        total += count
    if group:
        yield group


@dataclass(frozen=True, eq=False)
class Joined:
    """Where the time and the rows of each process are, when they are one after the other.

    Args:
        first_ns: When the time of each process begins that is cut into pieces.
        last_ns: When it ends.
        begins: Where it begins among all, and after the last one where that ends.
        rows: Where the rows of each begin, and after the last one their number.
    """

    first_ns: Ints
    last_ns: Ints
    begins: Ints
    rows: Ints

    @staticmethod
    def fits(windows: Sequence[Ints]) -> bool:
        """Return True if 64 bits hold the time of all processes, one after the other."""
        return sum(int(bounds[-1]) - int(bounds[0]) for bounds in windows) <= LATEST_NS

    @classmethod
    def of(cls, windows: Sequence[Ints], columns: Sequence[Columns]) -> Joined:
        """Put processes one after the other, given by the bounds of their steps and by their rows."""
        first, last = (np.array([bounds[at] for bounds in windows]) for at in (0, -1))
        rows = np.cumsum([0, *(one.height for one in columns)])
        return cls(first, last, np.cumsum([0, *(last - first)]), rows)

    def times(self, times: Sequence[Ints]) -> Ints:
        """Cut times to those of their processes, and put them one after the other."""
        counts = [*map(len, times)]
        later = self.begins[:-1] - self.first_ns
        first, last, by = (np.repeat(part, counts) for part in (self.first_ns, self.last_ns, later))
        return np.asarray(np.clip(np.concatenate(times), first, last) + by)

    def windows(self, windows: Sequence[Ints]) -> Ints:
        """Put the bounds of steps one after the other: the last of a process is the next one's first."""
        return self.times([*(bounds[:-1] for bounds in windows[:-1]), windows[-1]])

    def intervals(self, found: Sequence[Intervals]) -> Intervals:
        """Put intervals of each process one after the other."""
        start, end = ([getattr(one, name) for one in found] for name in ("start", "end"))
        return Intervals(self.times(start), self.times(end))

    def columns(self, columns: Sequence[Columns]) -> Columns:
        """Put the columns of all processes one after the other; fractions and uids are left out."""
        numbers = {
            name: np.concatenate([one.number(name) for one in columns])
            for name in dict.fromkeys(name for one in columns for name in one.numbers)
            if name not in {"start_ns", "end_ns"}
        }
        for name in ("start_ns", "end_ns"):
            numbers[name] = self.times([one.number(name) for one in columns])
        words = {
            name: _joined([one.word(name) for one in columns])
            for name in dict.fromkeys(name for one in columns for name in one.words)
        }
        return Columns(int(self.rows[-1]), numbers, words, {})

    def apart(self, found: Pieces, counts: Sequence[int]) -> Iterator[Pieces]:
        """Yield the pieces of each process, on its own time; `counts` are how many steps each has."""
        steps = np.cumsum([0, *counts])
        edges = np.searchsorted(found.step, steps)
        for place, first in enumerate(self.first_ns.tolist()):
            begin, after = int(edges[place]), int(edges[place + 1])
            of_steps = slice(int(steps[place]), int(steps[place + 1]))
            yield Pieces(
                bounds=found.bounds[begin : after + 1] + (first - int(self.begins[place])),
                step=found.step[begin:after] - np.int32(steps[place]),
                category=found.category[begin:after].copy(),
                name=found.name[begin:after],
                spent=found.spent[of_steps].copy(),
                hidden=found.hidden[of_steps].copy(),
            )

    def counts(self, flags: Flags) -> list[int]:
        """Return how many flags each process has."""
        before = np.append(0, np.cumsum(flags))[self.rows]
        return [int(count) for count in np.diff(before)]

    def rows_of(self, place: int, rows: Array) -> Array:
        """Return those of ascending rows that are of one process, counted from its own first."""
        begin, after = np.searchsorted(rows, self.rows[place : place + 2]).tolist()
        return np.asarray(rows[begin:after] - self.rows[place])


def _joined(words: Sequence[Words]) -> Words:
    known = words[0].known
    if all(one.known == known for one in words):
        return Words(np.concatenate([one.codes for one in words]), known)
    numbers = {
        word: code for code, word in enumerate(dict.fromkeys(w for one in words for w in one.known))
    }
    codes = [one.translated(numbers, -1) for one in words]
    return Words(np.concatenate(codes), tuple(numbers))

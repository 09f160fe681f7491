"""Spans of one file as they are read: numbers in arrays, and each word once."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

__all__ = ["MOST_NS", "Gathered", "What", "chosen"]

MOST_NS: Final = 2**61  # begin and length add up to what 64 bits hold
Key = TypeVar("Key", bound="Hashable")
Place = TypeVar("Place", bound="Hashable")
_NO_BYTES: Final = -1


class What(NamedTuple):
    """What a span is, in our words."""

    kind: str
    op: str | None
    name: str


@dataclass(eq=False)
class Gathered(Generic[Key, Place]):
    """Spans of a file; a `Key` is what they are in its words, a `Place` the thread that they ran on."""

    start_ns: array[int] = field(default_factory=lambda: array("q"))
    end_ns: array[int] = field(default_factory=lambda: array("q"))
    nbytes: array[int] = field(default_factory=lambda: array("q"))
    keyed: array[int] = field(default_factory=lambda: array("L"))
    placed: array[int] = field(default_factory=lambda: array("L"))
    keys: dict[Key, int] = field(default_factory=dict)
    places: dict[Place, int] = field(default_factory=dict)

    def add(
        self, start_ns: int, end_ns: int, key: Key, place: Place, nbytes: int | None = None
    ) -> None:
        """Add a span, within the times that there can be."""
        self.start_ns.append(start_ns)
        self.end_ns.append(end_ns)
        self.nbytes.append(_NO_BYTES if nbytes is None else nbytes)
        self.keyed.append(self.keys.setdefault(key, len(self.keys)))
        self.placed.append(self.places.setdefault(place, len(self.places)))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.start_ns)

    def frame(self, what: Callable[[Key], What], thread: Callable[[Place], str]) -> pl.DataFrame:
        """Return rows in words of `spans.build`; each key and each place is translated once."""
        known = [what(key) for key in self.keys]
        moved = pl.Series(self.nbytes, dtype=pl.Int64)
        return pl.DataFrame(
            {
                "start_ns": pl.Series(self.start_ns, dtype=pl.Int64),
                "end_ns": pl.Series(self.end_ns, dtype=pl.Int64),
                "kind": chosen([each.kind for each in known], self.keyed),
                "op": chosen([each.op for each in known], self.keyed),
                "name": chosen([each.name for each in known], self.keyed),
                "thread": chosen([thread(place) for place in self.places], self.placed),
                "bytes": moved,
            }
        ).with_columns(bytes=pl.when(pl.col("bytes") >= 0).then("bytes"))


def chosen(words: Sequence[str | None], numbers: array[int]) -> pl.Series:
    """Return words by their numbers."""
    known = pl.Series(words, dtype=pl.String).cast(pl.Categorical())
    return known.gather(pl.Series(numbers, dtype=pl.UInt32))

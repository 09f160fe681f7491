"""How much of a shard's link gets through, by how many messages share it: what incast collapses.

Messages on a link at once get equal parts of it, so a message's bytes are the sum, over the numbers n of
messages that it met, of the time with n / n x goodput(n). Each message is one such equation; goodputs
are their least-squares solution without negative values. A fair link has the same goodput for any n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Goodput", "measure"]

Floats = npt.NDArray[np.float64]

FEWEST: Final = 64  # messages
ENOUGH: Final = 0.02  # of the time on the link, for a number of messages to have a goodput
_ROUNDS: Final = 500


@dataclass(frozen=True)
class Goodput:
    """Bytes per nanosecond by the least number of messages in a class: 1, 2, 4, 8 ...

    `usual` is what got through on average, `best` the highest of `rates`, `crowd` how many messages were
    on the link on average.
    """

    counts: tuple[int, ...]
    rates: tuple[float, ...]
    usual: float
    crowd: float

    @property
    def best(self) -> float:
        """The link's own best."""
        return max(self.rates)

    @property
    def collapse(self) -> float:
        """How many times less gets through than at best."""
        return self.best / self.usual if self.usual > 0 else 1.0

    @property
    def falls(self) -> bool:
        """Whether the best is reached by fewer messages than there usually are."""
        return self.counts[int(np.argmax(self.rates))] < self.crowd


def measure(served: pl.DataFrame) -> dict[int, Goodput]:
    """Measure the incoming link of every shard that received enough."""
    incoming = served.filter(pl.col("op") == "receive", pl.col("bytes") > 0)
    found = {}
    for (shard,), part in incoming.partition_by("shard", as_dict=True).items():
        goodput = _of_link(part) if part.height >= FEWEST else None
        if goodput:
            found[int(shard)] = goodput
    return found


def _of_link(part: pl.DataFrame) -> Goodput | None:
    begin, end = part["start_ns"].to_numpy(), part["end_ns"].to_numpy()
    nbytes = part["bytes"].to_numpy().astype(np.float64)
    shares, lasted = _shares(begin, end)
    together = lasted @ np.exp2(np.arange(len(lasted)))
    whole = lasted.sum()
    known = np.flatnonzero(lasted >= ENOUGH * whole)
    if whole <= 0 or not len(known):
        return None
    rates = _positive(shares[:, known], nbytes)
    counts = tuple(int(1 << power) for power in known)
    crowd = float(together / whole)
    return Goodput(counts, tuple(rates.tolist()), float(nbytes.sum() / whole), crowd)


def _shares(begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return each message's part of the link's time, and that time, by class of how many share it."""
    edges = np.unique(np.concatenate([begin, end]))
    first, last = np.searchsorted(edges, begin), np.searchsorted(edges, end)
    change = np.bincount(first, minlength=len(edges)) - np.bincount(last, minlength=len(edges))
    there = np.cumsum(change)[:-1]
    length = np.diff(edges).astype(np.float64)
    classes = np.floor(np.log2(np.maximum(there, 1))).astype(np.int64)
    columns, lasted = [], []
    for one in range(int(classes.max(initial=0)) + 1):
        inside = (classes == one) & (there > 0)
        part = np.concatenate(
            [[0.0], np.cumsum(np.where(inside, length / np.maximum(there, 1), 0))]
        )
        columns.append(part[last] - part[first])
        lasted.append(float(length[inside].sum()))
    return np.stack(columns, axis=1), np.array(lasted)


def _positive(parts: Floats, nbytes: Floats) -> Floats:
    """Solve parts @ rates = nbytes without negative rates, by coordinate descent."""
    scale = 1 / np.maximum(nbytes, 1)  # relative errors: large messages do not decide alone
    left = parts * scale[:, None]
    normal, right = left.T @ left, left.T @ (nbytes * scale)
    rates = np.full(len(right), float(nbytes.sum() / parts.sum()))
    for _ in range(_ROUNDS):
        for row in _rows(normal):
            rest = right[row] - normal[row] @ rates + normal[row, row] * rates[row]
            rates[row] = max(rest / normal[row, row], 0.0)
    return rates


def _rows(normal: Floats) -> Iterator[int]:
    return (row for row in range(len(normal)) if normal[row, row] > 0)

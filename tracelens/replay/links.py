"""Links between moments: what follows what, after which lag, and what the lag is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from tracelens.arrays import Array, Flags, Floats, Ints

__all__ = ["KEPT", "Bond", "Carrier", "Line", "LinkTable", "Links"]

# What carries transfers: a communicator its collectives, or a sender and a receiver their messages.
Carrier: TypeAlias = str | tuple[int, int]


class Bond(IntEnum):
    """Why something follows something else, if another way of training would not have that before it.

    `TURN`: a server does one thing after the other, or answers after an update. `BARRIER`: a worker goes
    on after an update. `QUEUE`: both need the same resource (`resources.py`).
    """

    NONE = 0
    TURN = 1
    BARRIER = 2
    QUEUE = 3


class Line(NamedTuple):
    """What takes latency + bytes / bandwidth alike; `network` is false for a server's own work."""

    what: str
    ranks: int
    network: bool


KEPT: Final = Line(
    "kept as recorded", 0, network=False
)  # no partner is known, so nothing changes it


@dataclass(frozen=True, eq=False)
class LinkTable:
    """Links as columns: `target` comes no earlier than `lag` ns after `source`.

    `line` is a place in `lines`, -1 for none; `nbytes` are those that the lag is for, -1 unknown; `step`
    is the step's number, -1 for none; `shard` the server's, -1 for none; `bond` is a `Bond`;
    `communicator` is an index in `communicators`, `pair` the number of a message's sender and receiver,
    -1 for none.
    """

    source: Ints
    target: Ints
    lag: Floats
    line: Ints
    nbytes: Floats
    step: Ints
    shard: Ints
    bond: Ints
    communicator: Ints
    pair: Ints
    lines: tuple[Line, ...]
    communicators: tuple[str, ...]


@dataclass(eq=False)
class Links:
    """Collects links; those of which an end is no moment (-1), or both are one, are left out."""

    lines: list[Line] = field(default_factory=list)
    communicators: list[str] = field(default_factory=list)
    _parts: list[tuple[Array, ...]] = field(default_factory=list)

    def add(
        self,
        source: Ints,
        target: Ints,
        lag: Ints | Floats,
        there: Flags | None = None,
        *,
        line: Line | None = None,
        nbytes: Ints | None = None,
        step: Ints | None = None,
        shard: Ints | None = None,
        pair: Ints | None = None,
        bond: Bond = Bond.NONE,
        communicator: str | None = None,
    ) -> None:
        """Add some links; `there` says which of them there are."""
        kept = (source >= 0) & (target >= 0) & (source != target)
        rows = np.flatnonzero(kept if there is None else kept & there)
        none = np.full(len(rows), -1, np.int64)
        number = -1 if line is None else _index_in(self.lines, line)
        group = -1 if communicator is None else _index_in(self.communicators, communicator)
        sizes, steps, shards, pairs = (
            none if values is None else values[rows] for values in (nbytes, step, shard, pair)
        )
        ends = (source[rows], target[rows], np.asarray(lag[rows], np.float64))
        lines, bonds, groups = (np.full(len(rows), value) for value in (number, bond, group))
        sizes = sizes.astype(np.float64)
        self._parts.append((*ends, lines, sizes, steps, shards, bonds, groups, pairs))

    def add_first(self, source: Ints, target: Ints, lag: Ints) -> None:
        """Add links, all of them, before all others."""
        others, self._parts = self._parts, []
        self.add(source, target, lag)
        self._parts += others

    @property
    def targets(self) -> Ints:
        """Return the moments that follow others."""
        parts = [part[1] for part in self._parts]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *parts]))

    def settle(self, first: int, recorded: Floats) -> None:
        """Make the targets of all parts since the `first` come when they did.

        What a target came later than the last of what it follows is added to all lags to it; where it
        came earlier, it is taken off.
        """
        parts = self._parts[first:]
        if not parts:
            return
        source, target, lag = (np.concatenate([part[at] for part in parts]) for at in range(3))
        latest = np.full(len(recorded), -np.inf)
        np.maximum.at(latest, target, recorded[source] + lag)
        more = (recorded - np.where(np.isfinite(latest), latest, recorded))[target]
        after = np.cumsum([len(part[0]) for part in parts])[:-1]
        for at, extra in enumerate(np.split(more, after), first):
            part = self._parts[at]
            self._parts[at] = (*part[:2], part[2] + extra, *part[3:])

    def __len__(self) -> int:
        return len(self._parts)

    def table(self, recorded: Ints) -> LinkTable:
        """Return all of them, in the order in which they were added.

        What came before what it would follow, by clocks that are not sure, does not follow it.
        """
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
        forward = recorded[columns[0]] <= recorded[columns[1]]
        of_links = (column[forward] for column in columns)
        fields: list[Any] = [*of_links, tuple(self.lines), tuple(self.communicators)]
        return LinkTable(*fields)


def _index_in(known: list[Any], value: Any) -> int:
    """Return the index of a value, which is added if it is new."""
    if value not in known:
        known.append(value)
    return known.index(value)

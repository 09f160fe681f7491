"""The pieces that the partition cut all workers' time into: packed, and unpacked one worker at a time.

Most questions are answered by sums. What asks for single pieces (the critical path, the timeline) looks
at one worker after the other; rows of a frame, ten times as large, are made of few. Of long runs they
take more memory than all else: those that are more than may be held are in a file (`PieceStore`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, Self, overload
from weakref import finalize

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES
from tracelens.caching import cached_property

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from tracelens.accounting.partition import Pieces
    from tracelens.arrays import Array, Flags, Floats, Indices, Int8s, Int32s, Ints

__all__ = [
    "SEGMENT_COLUMNS",
    "JoinedPieces",
    "PackedPieces",
    "PieceStore",
    "Segments",
    "WorkerPieces",
    "categories",
    "spent_before",
]

# pieces of workers: no more are joined, so that they stay in a processor's cache [policy]
MAX_JOINED_PIECES: Final = 1 << 16
# The training thread's time, cut into touching, non-overlapping pieces.
SEGMENT_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "category": pl.Enum(CATEGORIES),
    "name": pl.Categorical(),  # innermost recorded span, null where none
}


@dataclass(frozen=True, eq=False)
class PackedPieces:
    """`Pieces` in little memory: lengths instead of boundaries, and where each step's pieces begin."""

    first_ns: int
    lengths: Array  # in the smallest type that holds them
    of_step: Int32s  # [step window + 1]
    category: Int8s
    name: Array

    @classmethod
    def of(cls, pieces: Pieces, names: Int32s) -> Self:
        """Pack the pieces of a worker, with names that all workers share."""
        lengths, windows = np.diff(pieces.bounds), len(pieces.hidden)
        small = np.uint32 if lengths.max(initial=0) < 1 << 32 else np.int64
        short = np.int16 if names.max(initial=0) < 1 << 15 else np.int32
        of_step = np.searchsorted(pieces.step, np.arange(windows + 1, dtype=np.int32))
        return cls(
            int(pieces.bounds[0]),
            lengths.astype(small),
            of_step.astype(np.int32),
            pieces.category,
            names.astype(short),
        )

    @property
    def end_ns(self) -> int:
        """Return where the last piece ends."""
        return self.first_ns + int(self.lengths.sum(dtype=np.int64))

    @property
    def bounds(self) -> Ints:
        """Return the boundaries, one more than pieces."""
        bounds = np.empty(len(self.lengths) + 1, np.int64)
        bounds[0] = self.first_ns
        bounds[1:] = self.lengths
        return np.cumsum(bounds, out=bounds)

    @property
    def step(self) -> Int32s:
        """Return the index of each piece's step window."""
        count = np.diff(self.of_step)
        return np.repeat(np.arange(len(count), dtype=np.int32), count)

    def between(self, first: int, stop: int) -> PackedPieces:
        """Return the pieces of the step windows from `first` to before `stop`."""
        begin, end = int(self.of_step[first]), int(self.of_step[stop])
        before_ns = int(self.lengths[:begin].sum(dtype=np.int64))
        return PackedPieces(
            self.first_ns + before_ns,
            self.lengths[begin:end],
            self.of_step[first : stop + 1] - begin,
            self.category[begin:end],
            self.name[begin:end],
        )


class _Stored(NamedTuple):
    """Where in a file the arrays of a worker are, one after the other."""

    file: IO[bytes]
    offset: int
    sizes: tuple[int, ...]  # bytes
    kinds: tuple[np.dtype[Any], ...]
    first_ns: int

    def read(self) -> PackedPieces:
        content = os.pread(self.file.fileno(), sum(self.sizes), self.offset)
        bounds = pairwise(accumulate(self.sizes, initial=0))
        parts: Iterable[Any] = (
            np.frombuffer(content[begin:end], kind)
            for (begin, end), kind in zip(bounds, self.kinds, strict=True)
        )
        return PackedPieces(self.first_ns, *parts)


class PieceStore(Sequence[PackedPieces]):
    """The packed pieces of all workers: in memory up to so many bytes, the others in a file.

    The file has no name, so that it is gone with the process; it is where temporary files are (TMPDIR).

    Args:
        room: How many bytes may be held in memory; None = all.
    """

    def __init__(self, room: int | None = None) -> None:
        self._room = room
        self._entries: list[PackedPieces | _Stored] = []

    def append(self, pieces: PackedPieces) -> None:
        """Add those of one more worker.

        Raises:
            OSError: the file cannot be written.
        """
        arrays = (pieces.lengths, pieces.of_step, pieces.category, pieces.name)
        sizes = tuple(array.nbytes for array in arrays)
        if self._room is None or sum(sizes) <= self._room:
            self._room = None if self._room is None else self._room - sum(sizes)
            self._entries.append(pieces)
            return
        offset = self._file.seek(0, os.SEEK_END)
        for array in arrays:
            self._file.write(array.tobytes())
        self._file.flush()
        kinds = tuple(array.dtype for array in arrays)
        self._entries.append(_Stored(self._file, offset, sizes, kinds, pieces.first_ns))

    @cached_property
    def _file(self) -> IO[bytes]:
        file = TemporaryFile()  # noqa: SIM115 - as long as this store is there
        finalize(self, file.close)
        return file

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, place: int) -> PackedPieces: ...
    @overload
    def __getitem__(self, place: slice) -> list[PackedPieces]: ...
    def __getitem__(self, place: int | slice) -> PackedPieces | list[PackedPieces]:
        if isinstance(place, slice):
            return [self[one] for one in range(len(self))[place]]
        entry = self._entries[place]
        return entry.read() if isinstance(entry, _Stored) else entry


@dataclass(frozen=True, eq=False)
class WorkerPieces:
    """The pieces of one worker: boundaries (one more than pieces), and what each piece is.

    `step` is a row of `Segments.steps` less `offset`, `name` a place in `Segments.words`, or below 0.
    """

    process: int
    offset: int
    packed: PackedPieces

    def between(self, first: int, stop: int) -> WorkerPieces:
        """Return those of its step windows from `first` to before `stop`."""
        return WorkerPieces(self.process, self.offset + first, self.packed.between(first, stop))

    @cached_property
    def bounds(self) -> Ints:
        """The boundaries, one more than pieces."""
        return self.packed.bounds

    @cached_property
    def step(self) -> Int32s:
        """The step window of each piece."""
        return self.packed.step

    @property
    def category(self) -> Int8s:
        """What each piece is."""
        return self.packed.category

    @property
    def name(self) -> Array:
        """What each piece is called."""
        return self.packed.name

    def spent_before(self, counts: Flags, moments: Ints) -> Floats:
        """Return how much of some categories (flags) had passed at each moment."""
        return _passed_before(self.bounds, counts[self.category], moments)


@dataclass(frozen=True, eq=False)
class JoinedPieces:
    """The pieces of several workers on one line of time, each right behind those of the one before.

    What is asked of arrays of some hundred pieces costs by the call, so it is asked of many at once.

    Args:
        processes: Of each worker.
        first_ns: When the pieces of each begin.
        begins: Where they begin on the line, and after the last one where those end, nanoseconds.
        bounds: The boundaries of all pieces on the line, one more than pieces.
        category: What each piece is.
    """

    processes: tuple[int, ...]
    first_ns: Ints
    begins: Ints
    bounds: Ints
    category: Int8s

    @classmethod
    def of(cls, workers: Sequence[WorkerPieces]) -> Self:
        """Join those of some workers, of which there is at least one."""
        packed = [one.packed for one in workers]
        places = np.cumsum([0, *(len(one.lengths) for one in packed)])
        bounds = np.zeros(places[-1] + 1, np.int64)
        np.cumsum(np.concatenate([one.lengths for one in packed]), out=bounds[1:])
        return cls(
            tuple(one.process for one in workers),
            np.array([one.first_ns for one in packed]),
            bounds[places],
            bounds,
            np.concatenate([one.category for one in packed]),
        )

    def moved(self, moments: Ints, owner: Ints) -> Ints:
        """Return where moments are on the line, those beyond a worker's time at its ends.

        `owner` is the place of the worker of each; broadcast against each other.
        """
        since = moments - self.first_ns[owner]
        return np.asarray(
            np.clip(since + self.begins[owner], self.begins[owner], self.begins[owner + 1])
        )

    def spent_before(self, counts: Flags, moments: Ints) -> Floats:
        """Return how much of some categories (flags) had passed at each moment on the line."""
        return _passed_before(self.bounds, counts[self.category], moments)


@dataclass(frozen=True, eq=False)
class Segments:
    """Pieces worker by worker, each with the row of `steps` at which it begins.

    `steps` holds process, rank and step of every window; `words` the names that pieces may have.
    """

    packed: Sequence[PackedPieces]
    begins: tuple[int, ...]
    steps: pl.DataFrame
    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.packed)

    def __iter__(self) -> Iterator[WorkerPieces]:
        return map(self.of_worker, range(len(self.packed)))

    @cached_property
    def processes(self) -> list[int]:
        """Return the process of each worker, in order."""
        return self._owners("process")

    @cached_property
    def ranks(self) -> list[int]:
        """Return the rank of each worker, in order."""
        return self._owners("rank")

    def _owners(self, name: str) -> list[int]:
        return self.steps[name].gather(list(self.begins[: len(self.packed)])).to_list()

    def joined(
        self, places: Iterable[int], most_pieces: int = MAX_JOINED_PIECES
    ) -> Iterator[JoinedPieces]:
        """Yield the pieces of workers, by their places, in that order, up to `most_pieces` at a time."""
        group: list[WorkerPieces] = []
        count = 0
        for one in map(self.of_worker, places):
            if group and count + len(one.category) > most_pieces:
                yield JoinedPieces.of(group)
                group, count = [], 0
            group.append(one)
            count += len(one.category)
        if group:
            yield JoinedPieces.of(group)

    def of_worker(self, place: int) -> WorkerPieces:
        """Unpack the pieces of a worker, by its place in order."""
        return WorkerPieces(self.processes[place], self.begins[place], self.packed[place])

    def frame(self) -> pl.DataFrame:
        """Return all pieces, by process and time, in `SEGMENT_COLUMNS`."""
        return self._frame((one, np.arange(len(one.category))) for one in self)

    def of(self, category: str, steps: Ints, ranks: Collection[int]) -> pl.DataFrame:
        """Return the pieces of one category in some steps, of some ranks."""
        wanted, code = self._of_steps(steps), CATEGORIES.index(category)
        chosen = (self.of_worker(at) for at, rank in enumerate(self.ranks) if rank in ranks)
        rows = ((one, np.flatnonzero(one.category == code)) for one in chosen)
        return self._frame((one, mine[wanted[one.step[mine] + one.offset]]) for one, mine in rows)

    def by_name(self, category: str, steps: Ints) -> pl.DataFrame:
        """Return how long each rank was in a category in some steps, by name: `rank`, `name`, `ns`."""
        wanted, code = self._of_steps(steps), CATEGORIES.index(category)
        found = [(np.zeros(0, np.int32), *np.zeros((2, 0), np.int64))]
        for rank, packed, begin in zip(self.ranks, self.packed, self.begins, strict=False):
            count = np.diff(packed.of_step)
            inside = np.repeat(wanted[begin : begin + len(count)], count)
            rows = np.flatnonzero(inside & (packed.category == code))
            name = np.maximum(packed.name[rows], -1) + 1
            there = np.flatnonzero(np.bincount(name))
            ns = np.bincount(name, packed.lengths[rows]).astype(np.int64)[there]
            found.append((np.full(len(there), rank, np.int32), there - 1, ns))
        ranks, names, lasted = map(np.concatenate, zip(*found, strict=True))
        return pl.DataFrame({"rank": ranks, "name": self.names(names), "ns": lasted})

    def _of_steps(self, steps: Ints) -> Flags:
        return self.steps["step"].is_in(steps.tolist()).to_numpy()

    def _frame(self, picked: Iterable[tuple[WorkerPieces, Indices]]) -> pl.DataFrame:
        parts = [
            (
                one.step[rows] + one.offset,
                one.bounds[rows],
                one.bounds[rows + 1],
                one.category[rows],
                one.name[rows],
            )
            for one, rows in picked
        ]
        if not parts:
            return pl.DataFrame(schema=SEGMENT_COLUMNS)
        row, start, end, category, name = map(np.concatenate, zip(*parts, strict=True))
        return (
            self.steps.select("process", "rank", "step")[row]
            .with_columns(
                start_ns=start, end_ns=end, category=categories(category), name=self.names(name)
            )
            .select(*SEGMENT_COLUMNS)
        )

    def names(self, codes: Array) -> pl.Series:
        """Turn name numbers back into words; below zero into null."""
        words = pl.Series([*self.words, None], dtype=pl.Categorical)
        return words.gather(np.where(codes < 0, len(self.words), codes))


def categories(codes: Array) -> pl.Series:
    """Turn numbers of `CATEGORIES` into words."""
    return pl.Series(CATEGORIES, dtype=pl.Enum(CATEGORIES)).gather(codes)


def spent_before(inside: pl.DataFrame, moments: Ints) -> Floats:
    """Return how much of some pieces' time is before each moment; pieces are sorted and disjoint."""
    return covered_before(inside["start_ns"].to_numpy(), inside["end_ns"].to_numpy(), moments)


def _passed_before(bounds: Ints, counted: Flags, moments: Ints) -> Floats:
    """Return how much of touching pieces, of which some are counted, had passed at each moment."""
    inside = np.concatenate([[False], counted, [False]])
    edges = bounds[np.flatnonzero(inside[1:] != inside[:-1])]  # begins and ends in turn
    return covered_before(edges[::2], edges[1::2], moments)


def covered_before(begins: Ints, ends: Ints, moments: Ints) -> Floats:
    """Return how much of some stretches of time is before each moment."""
    if not len(begins):
        return np.zeros(moments.shape)
    edges, heights = np.empty((2, 2 * len(begins)))
    edges[::2], edges[1::2] = begins - begins[0], ends - begins[0]
    heights[0], heights[1::2] = 0, np.cumsum(ends - begins)
    heights[2::2] = heights[1:-1:2]
    return np.asarray(np.interp(moments - begins[0], edges, heights))

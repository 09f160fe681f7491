"""The pieces that the partition cut all workers' time into: packed, and unpacked one worker at a time.

Most questions are answered by sums. What asks for single pieces (the critical path, the timeline) looks
at one worker after the other; rows of a frame, ten times as large, are made of few. Of long runs they
take more memory than all else: those that are more than may be held are in a file (`PieceStore`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, Self
from weakref import finalize

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES
from tracelens.caching import cached_property
from tracelens.model.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from tracelens.accounting.spans import Pieces
    from tracelens.arrays import Array, Flags, Floats, Indices, Int8s, Int32s, Ints

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
    """The pieces of one worker in little memory, [piece]: lengths instead of boundaries.

    `of_step` is where each step's pieces begin, [step window + 1].
    """

    first_ns: int
    lengths: Array  # ns, in the smallest type that holds them
    of_step: Int32s
    category: Int8s
    name: Array

    @classmethod
    def from_pieces(cls, pieces: Pieces, names: Int32s) -> Self:
        """Pack the pieces of a worker, with names that all workers share."""
        lengths, window_count = np.diff(pieces.bounds), len(pieces.hidden)
        small = np.uint32 if lengths.max(initial=0) < 1 << 32 else np.int64
        short = np.int16 if names.max(initial=0) < 1 << 15 else np.int32
        of_step = np.searchsorted(pieces.step, np.arange(window_count + 1, dtype=np.int32))
        return cls(
            int(pieces.bounds[0]),
            lengths.astype(small),
            of_step.astype(np.int32),
            pieces.category,
            names.astype(short),
        )

    @property
    def end_ns(self) -> int:
        """When the last piece ends."""
        return self.first_ns + int(self.lengths.sum(dtype=np.int64))

    @cached_property
    def bounds(self) -> Ints:
        """The boundaries, one more than pieces, ns."""
        bounds = np.empty(len(self.lengths) + 1, np.int64)
        bounds[0] = self.first_ns
        bounds[1:] = self.lengths
        return np.cumsum(bounds, out=bounds)

    @cached_property
    def step(self) -> Int32s:
        """The index of each piece's step window."""
        count = np.diff(self.of_step)
        return np.repeat(np.arange(len(count), dtype=np.int32), count)


@dataclass(frozen=True, eq=False)
class WorkerPieces(PackedPieces):
    """The pieces of one worker, unpacked when they are asked for; not kept longer than that.

    `step` is a row of `Segments.steps` less `offset`, `name` an index of `Segments.words`, or below 0.
    """

    process: int
    offset: int

    def select_windows(self, first_window: int, stop_window: int) -> WorkerPieces:
        """Return those of its step windows from `first_window` to before `stop_window`."""
        begin_piece, end_piece = int(self.of_step[first_window]), int(self.of_step[stop_window])
        return replace(
            self,
            first_ns=self.first_ns + int(self.lengths[:begin_piece].sum(dtype=np.int64)),
            lengths=self.lengths[begin_piece:end_piece],
            of_step=self.of_step[first_window : stop_window + 1] - begin_piece,
            category=self.category[begin_piece:end_piece],
            name=self.name[begin_piece:end_piece],
            offset=self.offset + first_window,
        )

    def spent_before(self, is_counted: Flags, moments: Ints) -> Floats:
        """Measure how much of some categories (flags) had passed at each moment, ns."""
        return _passed_before(self.bounds, is_counted[self.category], moments)


class _Stored(NamedTuple):
    """Where in a file the arrays of a worker are, one after the other."""

    file: IO[bytes]
    offset: int  # bytes
    sizes: tuple[int, ...]  # bytes
    types: tuple[np.dtype[Any], ...]
    first_ns: int

    def read(self) -> PackedPieces:
        content = os.pread(self.file.fileno(), sum(self.sizes), self.offset)
        bounds = pairwise(accumulate(self.sizes, initial=0))
        arrays: Iterable[Any] = (
            np.frombuffer(content[begin:end], type_)
            for (begin, end), type_ in zip(bounds, self.types, strict=True)
        )
        return PackedPieces(self.first_ns, *arrays)


class PieceStore:
    """The packed pieces of all workers: in memory up to a limit in bytes, the others in a file.

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
        types = tuple(array.dtype for array in arrays)
        self._entries.append(_Stored(self._file, offset, sizes, types, pieces.first_ns))

    @cached_property
    def _file(self) -> IO[bytes]:
        file = TemporaryFile()  # noqa: SIM115 - as long as this store is there
        finalize(self, file.close)
        return file

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[PackedPieces]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> PackedPieces:
        entry = self._entries[index]
        return entry.read() if isinstance(entry, _Stored) else entry


@dataclass(frozen=True, eq=False)
class JoinedPieces:
    """The pieces of several workers on one line of time, each right behind those of the one before.

    Each numpy call costs time even for few pieces, so pieces of several steps are handled together.

    Args:
        processes: Of each worker.
        first_ns: When the pieces of each begin, [worker].
        begins: Where they begin on the line, and after the last one where those end, [worker + 1], ns.
        bounds: The boundaries of all pieces on the line, one more than pieces, ns.
        category: What each piece is.
    """

    processes: tuple[int, ...]
    first_ns: Ints
    begins: Ints
    bounds: Ints
    category: Int8s

    @classmethod
    def from_workers(cls, workers: Sequence[WorkerPieces]) -> Self:
        """Join those of some workers; there is at least one."""
        edges = np.cumsum([0, *(len(worker.lengths) for worker in workers)])
        bounds = np.zeros(edges[-1] + 1, np.int64)
        np.cumsum(np.concatenate([worker.lengths for worker in workers]), out=bounds[1:])
        return cls(
            tuple(worker.process for worker in workers),
            np.array([worker.first_ns for worker in workers]),
            bounds[edges],
            bounds,
            np.concatenate([worker.category for worker in workers]),
        )

    def to_line(self, moments: Ints, owner: Ints) -> Ints:
        """Find where moments are on the line, those beyond a worker's time at its ends, ns.

        `owner` is the index of each one's worker; both are broadcast against each other.
        """
        position = moments - self.first_ns[owner] + self.begins[owner]
        return np.asarray(np.clip(position, self.begins[owner], self.begins[owner + 1]))

    def spent_before(self, is_counted: Flags, moments: Ints) -> Floats:
        """Measure how much of some categories (flags) had passed at each moment on the line, ns."""
        return _passed_before(self.bounds, is_counted[self.category], moments)


@dataclass(frozen=True, eq=False)
class Segments:
    """Pieces worker by worker, each with the row of `steps` at which it begins.

    `steps` holds process, rank and step of every window; `words` the names that pieces may have.
    """

    packed: PieceStore
    begins: tuple[int, ...]
    steps: pl.DataFrame
    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.packed)

    def __iter__(self) -> Iterator[WorkerPieces]:
        return map(self.of_worker, range(len(self.packed)))

    @cached_property
    def processes(self) -> list[int]:
        """The process of each worker, in order."""
        return self._owners("process")

    @cached_property
    def ranks(self) -> list[int]:
        """The rank of each worker, in order."""
        return self._owners("rank")

    def _owners(self, name: str) -> list[int]:
        return self.steps[name].gather(list(self.begins[: len(self.packed)])).to_list()

    def of_worker(self, index: int) -> WorkerPieces:
        """Return the pieces of a worker, by its index in order."""
        packed = self.packed[index]
        arrays = packed.first_ns, packed.lengths, packed.of_step, packed.category, packed.name
        return WorkerPieces(*arrays, process=self.processes[index], offset=self.begins[index])

    def join(
        self, workers: Iterable[int], most_pieces: int = MAX_JOINED_PIECES
    ) -> Iterator[JoinedPieces]:
        """Yield the pieces of workers, by index, in that order, up to `most_pieces` at a time."""
        group: list[WorkerPieces] = []
        count = 0
        for pieces in map(self.of_worker, workers):
            if group and count + len(pieces.category) > most_pieces:
                yield JoinedPieces.from_workers(group)
                group, count = [], 0
            group.append(pieces)
            count += len(pieces.category)
        if group:
            yield JoinedPieces.from_workers(group)

    def to_frame(self) -> pl.DataFrame:
        """Return all pieces, by process and time, in `SEGMENT_COLUMNS`."""
        return self._to_frame((one, np.arange(len(one.category))) for one in self)

    def select(self, category: str, steps: Ints, ranks: Collection[int]) -> pl.DataFrame:
        """Return the pieces of one category in some steps, of some ranks, in `SEGMENT_COLUMNS`."""
        is_wanted, code = self._are_windows_of(steps), CATEGORIES.index(category)
        workers = (self.of_worker(index) for index, rank in enumerate(self.ranks) if rank in ranks)
        rows = ((one, np.flatnonzero(one.category == code)) for one in workers)
        return self._to_frame(
            (one, selected[is_wanted[one.step[selected] + one.offset]]) for one, selected in rows
        )

    def sum_by_name(self, category: str, steps: Ints) -> pl.DataFrame:
        """Measure how long each rank was in a category in some steps, by name: `rank`, `name`, `ns`."""
        is_wanted, code = self._are_windows_of(steps), CATEGORIES.index(category)
        sums = [(np.zeros(0, np.int32), *np.zeros((2, 0), np.int64))]
        for rank, packed, begin in zip(self.ranks, self.packed, self.begins, strict=False):
            count = np.diff(packed.of_step)
            in_steps = np.repeat(is_wanted[begin : begin + len(count)], count)
            rows = np.flatnonzero(in_steps & (packed.category == code))
            name = np.maximum(packed.name[rows], -1) + 1
            occurring = np.flatnonzero(np.bincount(name))
            ns = np.bincount(name, packed.lengths[rows]).astype(np.int64)[occurring]
            sums.append((np.full(len(occurring), rank, np.int32), occurring - 1, ns))
        ranks, names, ns = map(np.concatenate, zip(*sums, strict=True))
        return pl.DataFrame({"rank": ranks, "name": self.to_words(names), "ns": ns})

    def _are_windows_of(self, steps: Ints) -> Flags:
        return self.steps["step"].is_in(steps.tolist()).to_numpy()

    def _to_frame(self, rows_of: Iterable[tuple[WorkerPieces, Indices]]) -> pl.DataFrame:
        columns_of_workers = [
            (
                worker.step[piece_rows] + worker.offset,
                worker.bounds[piece_rows],
                worker.bounds[piece_rows + 1],
                worker.category[piece_rows],
                worker.name[piece_rows],
            )
            for worker, piece_rows in rows_of
        ]
        if not columns_of_workers:
            return pl.DataFrame(schema=SEGMENT_COLUMNS)
        window, start, end, category, name = map(
            np.concatenate, zip(*columns_of_workers, strict=True)
        )
        return (
            self.steps.select("process", "rank", "step")[window]
            .with_columns(
                start_ns=start,
                end_ns=end,
                category=to_category_names(category),
                name=self.to_words(name),
            )
            .select(*SEGMENT_COLUMNS)
        )

    def to_words(self, codes: Array) -> pl.Series:
        """Turn name numbers back into words; below zero into null."""
        words = pl.Series([*self.words, None], dtype=pl.Categorical)
        return words.gather(np.where(codes < 0, len(self.words), codes))


def to_category_names(codes: Array) -> pl.Series:
    """Turn numbers of `CATEGORIES` into words."""
    return pl.Series(CATEGORIES, dtype=pl.Enum(CATEGORIES)).gather(codes)


def _passed_before(bounds: Ints, is_counted: Flags, moments: Ints) -> Floats:
    """Measure how much of the counted pieces had passed at each moment, ns; pieces touch."""
    inside = np.concatenate([[False], is_counted, [False]])
    edges = bounds[np.flatnonzero(inside[1:] != inside[:-1])]  # begins and ends in turn
    return covered_before(edges[::2], edges[1::2], moments)


def covered_before(begins: Ints, ends: Ints, moments: Ints) -> Floats:
    """Measure how much of disjoint intervals, in order, is before each moment, ns."""
    return Intervals(begins, ends).passed_before(moments).astype(np.float64)

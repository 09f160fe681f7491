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
        """Pack the pieces of a worker; `names` is each piece's index of a name that workers share."""
        lengths_ns, window_count = np.diff(pieces.bounds), len(pieces.hidden)
        length_type = np.uint32 if lengths_ns.max(initial=0) < 1 << 32 else np.int64
        name_type = np.int16 if names.max(initial=0) < 1 << 15 else np.int32
        first_pieces = np.searchsorted(pieces.step, np.arange(window_count + 1, dtype=np.int32))
        return cls(
            int(pieces.bounds[0]),
            lengths_ns.astype(length_type),
            first_pieces.astype(np.int32),
            pieces.category,
            names.astype(name_type),
        )

    @property
    def end_ns(self) -> int:
        """When the last piece ends."""
        return self.first_ns + int(self.lengths.sum(dtype=np.int64))

    @cached_property
    def bounds(self) -> Ints:
        """The boundaries, one more than pieces, ns."""
        bounds_ns = np.empty(len(self.lengths) + 1, np.int64)
        bounds_ns[0] = self.first_ns
        bounds_ns[1:] = self.lengths
        return np.cumsum(bounds_ns, out=bounds_ns)

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
        """Return the pieces of the step windows from `first_window` to before `stop_window`."""
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

    def spent_before(self, is_counted: Flags, moments_ns: Ints) -> Floats:
        """Measure how much of some categories (flags) had passed at each moment, ns."""
        return _passed_before(self.bounds, is_counted[self.category], moments_ns)


class _Stored(NamedTuple):
    """Where in a file the arrays of a worker are, one after the other."""

    file: IO[bytes]
    offset: int  # bytes
    sizes: tuple[int, ...]  # bytes
    types: tuple[np.dtype[Any], ...]
    first_ns: int

    def read(self) -> PackedPieces:
        """Read the arrays of the worker back."""
        content = os.pread(self.file.fileno(), sum(self.sizes), self.offset)
        byte_ranges = pairwise(accumulate(self.sizes, initial=0))
        arrays: Iterable[Any] = (
            np.frombuffer(content[begin:end], type_)
            for (begin, end), type_ in zip(byte_ranges, self.types, strict=True)
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
        sizes_bytes = tuple(array.nbytes for array in arrays)
        if self._room is None or sum(sizes_bytes) <= self._room:
            self._room = None if self._room is None else self._room - sum(sizes_bytes)
            self._entries.append(pieces)
            return
        offset_bytes = self._file.seek(0, os.SEEK_END)
        for array in arrays:
            self._file.write(array.tobytes())
        self._file.flush()
        types = tuple(array.dtype for array in arrays)
        self._entries.append(_Stored(self._file, offset_bytes, sizes_bytes, types, pieces.first_ns))

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
        first_pieces = np.cumsum([0, *(len(worker.lengths) for worker in workers)])
        bounds_ns = np.zeros(first_pieces[-1] + 1, np.int64)
        np.cumsum(np.concatenate([worker.lengths for worker in workers]), out=bounds_ns[1:])
        return cls(
            tuple(worker.process for worker in workers),
            np.array([worker.first_ns for worker in workers]),
            bounds_ns[first_pieces],
            bounds_ns,
            np.concatenate([worker.category for worker in workers]),
        )

    def to_line(self, moments_ns: Ints, worker: Ints) -> Ints:
        """Find where moments are on the line, those beyond a worker's time at its ends, ns.

        `worker` is the index of each one's worker; both are broadcast against each other.
        """
        line_ns = moments_ns - self.first_ns[worker] + self.begins[worker]
        return np.asarray(np.clip(line_ns, self.begins[worker], self.begins[worker + 1]))

    def spent_before(self, is_counted: Flags, moments_ns: Ints) -> Floats:
        """Measure how much of some categories (flags) had passed at each moment on the line, ns."""
        return _passed_before(self.bounds, is_counted[self.category], moments_ns)


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
        self, workers: Iterable[int], max_pieces: int = MAX_JOINED_PIECES
    ) -> Iterator[JoinedPieces]:
        """Yield the pieces of workers, by index, in that order, up to `max_pieces` at a time."""
        joined: list[WorkerPieces] = []
        piece_count = 0
        for pieces in map(self.of_worker, workers):
            if joined and piece_count + len(pieces.category) > max_pieces:
                yield JoinedPieces.from_workers(joined)
                joined, piece_count = [], 0
            joined.append(pieces)
            piece_count += len(pieces.category)
        if joined:
            yield JoinedPieces.from_workers(joined)

    def to_frame(self) -> pl.DataFrame:
        """Return all pieces, by process and time, in `SEGMENT_COLUMNS`."""
        return self._to_frame((worker, np.arange(len(worker.category))) for worker in self)

    def select(self, category: str, steps: Ints, ranks: Collection[int]) -> pl.DataFrame:
        """Return the pieces of one category in some steps, of some ranks, in `SEGMENT_COLUMNS`."""
        is_wanted, code = self._are_windows_of(steps), CATEGORIES.index(category)
        workers = (self.of_worker(index) for index, rank in enumerate(self.ranks) if rank in ranks)
        matching = ((worker, np.flatnonzero(worker.category == code)) for worker in workers)
        return self._to_frame(
            (worker, piece_rows[is_wanted[worker.step[piece_rows] + worker.offset]])
            for worker, piece_rows in matching
        )

    def sum_by_name(self, category: str, steps: Ints) -> pl.DataFrame:
        """Measure how long each rank was in a category in some steps, by name: `rank`, `name`, `ns`."""
        is_wanted, code = self._are_windows_of(steps), CATEGORIES.index(category)
        sums = [(np.zeros(0, np.int32), *np.zeros((2, 0), np.int64))]
        for rank, packed, first_window in zip(self.ranks, self.packed, self.begins, strict=False):
            piece_counts = np.diff(packed.of_step)
            is_in_steps = np.repeat(
                is_wanted[first_window : first_window + len(piece_counts)], piece_counts
            )
            piece_rows = np.flatnonzero(is_in_steps & (packed.category == code))
            numbers = np.maximum(packed.name[piece_rows], -1) + 1  # 0: no name
            occurring = np.flatnonzero(np.bincount(numbers))
            ns = np.bincount(numbers, packed.lengths[piece_rows]).astype(np.int64)[occurring]
            sums.append((np.full(len(occurring), rank, np.int32), occurring - 1, ns))
        ranks, name_codes, ns = map(np.concatenate, zip(*sums, strict=True))
        return pl.DataFrame({"rank": ranks, "name": self.to_words(name_codes), "ns": ns})

    def _are_windows_of(self, steps: Ints) -> Flags:
        return self.steps["step"].is_in(steps.tolist()).to_numpy()

    def _to_frame(self, selections: Iterable[tuple[WorkerPieces, Indices]]) -> pl.DataFrame:
        """Return some pieces of workers, by their indices, as rows of `SEGMENT_COLUMNS`."""
        columns_of_workers = [
            (
                worker.step[piece_rows] + worker.offset,
                worker.bounds[piece_rows],
                worker.bounds[piece_rows + 1],
                worker.category[piece_rows],
                worker.name[piece_rows],
            )
            for worker, piece_rows in selections
        ]
        if not columns_of_workers:
            return pl.DataFrame(schema=SEGMENT_COLUMNS)
        window_rows, start_ns, end_ns, categories, name_codes = map(
            np.concatenate, zip(*columns_of_workers, strict=True)
        )
        return (
            self.steps.select("process", "rank", "step")[window_rows]
            .with_columns(
                start_ns=start_ns,
                end_ns=end_ns,
                category=to_category_names(categories),
                name=self.to_words(name_codes),
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


def _passed_before(bounds_ns: Ints, is_counted: Flags, moments_ns: Ints) -> Floats:
    """Measure how much of the counted pieces had passed at each moment, ns; pieces touch."""
    is_inside = np.concatenate([[False], is_counted, [False]])
    edges_ns = bounds_ns[np.flatnonzero(is_inside[1:] != is_inside[:-1])]  # begins and ends in turn
    return covered_before(edges_ns[::2], edges_ns[1::2], moments_ns)


def covered_before(begins_ns: Ints, ends_ns: Ints, moments_ns: Ints) -> Floats:
    """Measure how much of disjoint intervals, in order, is before each moment, ns."""
    return Intervals(begins_ns, ends_ns).passed_before(moments_ns).astype(np.float64)

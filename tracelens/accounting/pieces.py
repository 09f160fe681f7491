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

    `category_codes` are indices of `CATEGORIES`, `name_codes` of `Segments.span_names`, or below 0.
    `first_piece_of_window` is where the pieces of each step window begin, [window + 1].
    """

    first_ns: int
    lengths_ns: Array  # in the smallest type that holds them
    first_piece_of_window: Int32s
    category_codes: Int8s
    name_codes: Array

    @property
    def arrays(self) -> tuple[Array, Int32s, Int8s, Array]:
        """All arrays, in the order of the fields."""
        return self.lengths_ns, self.first_piece_of_window, self.category_codes, self.name_codes

    @classmethod
    def from_pieces(cls, pieces: Pieces, name_codes: Int32s) -> Self:
        """Pack the pieces of a worker; `name_codes`, [piece], are indices of shared names."""
        lengths_ns, window_count = np.diff(pieces.bounds_ns), len(pieces.hidden_ns)
        length_type = np.uint32 if lengths_ns.max(initial=0) < 1 << 32 else np.int64
        name_type = np.int16 if name_codes.max(initial=0) < 1 << 15 else np.int32
        first_pieces = np.searchsorted(
            pieces.window_indices, np.arange(window_count + 1, dtype=np.int32)
        )
        return cls(
            first_ns=int(pieces.bounds_ns[0]),
            lengths_ns=lengths_ns.astype(length_type),
            first_piece_of_window=first_pieces.astype(np.int32),
            category_codes=pieces.category_codes,
            name_codes=name_codes.astype(name_type),
        )

    @property
    def end_ns(self) -> int:
        """When the last piece ends."""
        return self.first_ns + int(self.lengths_ns.sum(dtype=np.int64))

    @cached_property
    def bounds_ns(self) -> Ints:
        """The boundaries, one more than pieces."""
        bounds_ns = np.empty(len(self.lengths_ns) + 1, np.int64)
        bounds_ns[0] = self.first_ns
        bounds_ns[1:] = self.lengths_ns
        return np.cumsum(bounds_ns, out=bounds_ns)

    @cached_property
    def window_indices(self) -> Int32s:
        """The index of each piece's step window, among those of the worker."""
        piece_counts = np.diff(self.first_piece_of_window)
        return np.repeat(np.arange(len(piece_counts), dtype=np.int32), piece_counts)


@dataclass(frozen=True, eq=False)
class WorkerPieces(PackedPieces):
    """The pieces of one worker, unpacked when they are asked for; not kept longer than that.

    `first_window` is the row of `Segments.step_windows` with the worker's first window.
    """

    process: int
    first_window: int

    def select_windows(self, first_window: int, stop_window: int) -> WorkerPieces:
        """Return the pieces of the step windows from `first_window` to before `stop_window`."""
        first_pieces = self.first_piece_of_window[first_window : stop_window + 1]
        begin_piece, end_piece = int(first_pieces[0]), int(first_pieces[-1])
        return replace(
            self,
            first_ns=self.first_ns + int(self.lengths_ns[:begin_piece].sum(dtype=np.int64)),
            lengths_ns=self.lengths_ns[begin_piece:end_piece],
            first_piece_of_window=first_pieces - begin_piece,
            category_codes=self.category_codes[begin_piece:end_piece],
            name_codes=self.name_codes[begin_piece:end_piece],
            first_window=self.first_window + first_window,
        )

    def sum_ns_before(self, is_counted: Flags, moments_ns: Ints) -> Floats:
        """Measure how much of some categories (flags) had passed at each moment, ns."""
        return _sum_counted_ns_before(self.bounds_ns, is_counted[self.category_codes], moments_ns)


class _Stored(NamedTuple):
    """Where in a file the arrays of a worker are, one after the other."""

    file: IO[bytes]
    offset_bytes: int
    sizes_bytes: tuple[int, ...]  # of each array
    dtypes: tuple[np.dtype[Any], ...]
    first_ns: int

    def read(self) -> PackedPieces:
        """Read the arrays of the worker back."""
        content = os.pread(self.file.fileno(), sum(self.sizes_bytes), self.offset_bytes)
        byte_ranges = pairwise(accumulate(self.sizes_bytes, initial=0))
        arrays: Iterable[Any] = (
            np.frombuffer(content[begin:end], dtype)
            for (begin, end), dtype in zip(byte_ranges, self.dtypes, strict=True)
        )
        return PackedPieces(self.first_ns, *arrays)


class PieceStore:
    """The packed pieces of all workers: in memory up to a limit in bytes, the others in a file.

    The file has no name, so that it is gone with the process; it is where temporary files are (TMPDIR).

    Args:
        max_bytes: How many bytes may be held in memory; None = all.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        self._free_bytes = max_bytes
        self._entries: list[PackedPieces | _Stored] = []

    def append(self, pieces: PackedPieces) -> None:
        """Add the pieces of one more worker.

        Raises:
            OSError: the file cannot be written.
        """
        arrays = pieces.arrays
        sizes_bytes = tuple(array.nbytes for array in arrays)
        if self._free_bytes is None or sum(sizes_bytes) <= self._free_bytes:
            if self._free_bytes is not None:
                self._free_bytes -= sum(sizes_bytes)
            self._entries.append(pieces)
            return
        offset_bytes = self._file.seek(0, os.SEEK_END)
        for array in arrays:
            self._file.write(array.tobytes())
        self._file.flush()
        types = tuple(array.dtype for array in arrays)
        self._entries.append(
            _Stored(
                file=self._file,
                offset_bytes=offset_bytes,
                sizes_bytes=sizes_bytes,
                dtypes=types,
                first_ns=pieces.first_ns,
            )
        )

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
        begins_on_line_ns: Where they begin on the line, and at last where the line ends, [worker + 1].
        bounds_ns: The boundaries of all pieces on the line, one more than pieces.
        category_code: What each piece is, an index of `CATEGORIES`.
    """

    processes: tuple[int, ...]
    first_ns: Ints
    begins_on_line_ns: Ints
    bounds_ns: Ints
    category_codes: Int8s

    @classmethod
    def from_workers(cls, workers: Sequence[WorkerPieces]) -> Self:
        """Join the pieces of some workers (at least one) on one line, one worker after the other."""
        first_pieces = np.cumsum([0, *(len(worker.lengths_ns) for worker in workers)])
        bounds_ns = np.zeros(first_pieces[-1] + 1, np.int64)
        np.cumsum(np.concatenate([worker.lengths_ns for worker in workers]), out=bounds_ns[1:])
        return cls(
            processes=tuple(worker.process for worker in workers),
            first_ns=np.array([worker.first_ns for worker in workers]),
            begins_on_line_ns=bounds_ns[first_pieces],
            bounds_ns=bounds_ns,
            category_codes=np.concatenate([worker.category_codes for worker in workers]),
        )

    def to_line_ns(self, moments_ns: Ints, workers: Ints) -> Ints:
        """Find where moments are on the line, those beyond a worker's time at its ends, ns.

        `workers` is the index of each one's worker; both are broadcast against each other.
        """
        begin_ns, end_ns = self.begins_on_line_ns[workers], self.begins_on_line_ns[workers + 1]
        return np.asarray(np.clip(moments_ns - self.first_ns[workers] + begin_ns, begin_ns, end_ns))

    def sum_ns_before(self, is_counted: Flags, moments_ns: Ints) -> Floats:
        """Measure how much of some categories (flags) had passed at each moment on the line, ns."""
        return _sum_counted_ns_before(self.bounds_ns, is_counted[self.category_codes], moments_ns)


@dataclass(frozen=True, eq=False)
class Segments:
    """Pieces worker by worker.

    `step_windows` has a row per step window of all workers: `process`, `rank`, `step`. Those of a worker
    begin in the row `first_window_of_worker`, [worker + 1]. Pieces may have the names `span_names`.
    """

    store: PieceStore
    first_window_of_worker: tuple[int, ...]
    step_windows: pl.DataFrame
    span_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.store)

    def __iter__(self) -> Iterator[WorkerPieces]:
        return map(self.unpack_worker, range(len(self.store)))

    @cached_property
    def processes(self) -> list[int]:
        """The process of each worker, in order."""
        return self._list_by_worker("process")

    @cached_property
    def ranks(self) -> list[int]:
        """The rank of each worker, in order."""
        return self._list_by_worker("rank")

    def _list_by_worker(self, column: str) -> list[int]:
        return (
            self.step_windows[column]
            .gather(list(self.first_window_of_worker[: len(self.store)]))
            .to_list()
        )

    def unpack_worker(self, index: int) -> WorkerPieces:
        """Return the pieces of a worker, by its index in order."""
        packed = self.store[index]
        process, first_window = self.processes[index], self.first_window_of_worker[index]
        return WorkerPieces(
            packed.first_ns, *packed.arrays, process=process, first_window=first_window
        )

    def join_workers(
        self, workers: Iterable[int], max_pieces: int = MAX_JOINED_PIECES
    ) -> Iterator[JoinedPieces]:
        """Yield the pieces of workers, by index, in that order, up to `max_pieces` at a time."""
        joined: list[WorkerPieces] = []
        piece_count = 0
        for pieces in map(self.unpack_worker, workers):
            if joined and piece_count + len(pieces.category_codes) > max_pieces:
                yield JoinedPieces.from_workers(joined)
                joined, piece_count = [], 0
            joined.append(pieces)
            piece_count += len(pieces.category_codes)
        if joined:
            yield JoinedPieces.from_workers(joined)

    def to_frame(self) -> pl.DataFrame:
        """Return all pieces, by process and time, in `SEGMENT_COLUMNS`."""
        return self._to_frame((worker, np.arange(len(worker.category_codes))) for worker in self)

    def select(self, category: str, step_numbers: Ints, ranks: Collection[int]) -> pl.DataFrame:
        """Return the pieces of one category in some steps, of some ranks, in `SEGMENT_COLUMNS`."""
        is_in_steps = self._flag_windows(step_numbers)  # [window]: one step of one worker
        code = CATEGORIES.index(category)
        workers = (self.unpack_worker(row) for row, rank in enumerate(self.ranks) if rank in ranks)
        matching = ((worker, np.flatnonzero(worker.category_codes == code)) for worker in workers)
        return self._to_frame(
            (
                worker,
                piece_rows[is_in_steps[worker.window_indices[piece_rows] + worker.first_window]],
            )
            for worker, piece_rows in matching
        )

    def sum_ns_by_span_name(self, category: str, step_numbers: Ints) -> pl.DataFrame:
        """Measure how long each rank was in a category in some steps, by name: `rank`, `name`, `ns`."""
        is_window_in_steps, code = self._flag_windows(step_numbers), CATEGORIES.index(category)
        sums = [(np.zeros(0, np.int32), *np.zeros((2, 0), np.int64))]  # ranks, name codes, ns
        for rank, packed, first_window in zip(
            self.ranks, self.store, self.first_window_of_worker, strict=False
        ):
            piece_counts = np.diff(packed.first_piece_of_window)  # [window]
            is_in_steps = np.repeat(
                is_window_in_steps[first_window : first_window + len(piece_counts)], piece_counts
            )
            piece_rows = np.flatnonzero(is_in_steps & (packed.category_codes == code))
            name_numbers = np.maximum(packed.name_codes[piece_rows], -1) + 1  # 0: no name
            occurring = np.flatnonzero(np.bincount(name_numbers))
            ns_by_number = np.bincount(name_numbers, packed.lengths_ns[piece_rows])
            ns = ns_by_number.astype(np.int64)[occurring]
            sums.append((np.full(len(occurring), rank, np.int32), occurring - 1, ns))
        ranks, name_codes, ns = map(np.concatenate, zip(*sums, strict=True))
        return pl.DataFrame({"rank": ranks, "name": self.to_span_names(name_codes), "ns": ns})

    def _flag_windows(self, step_numbers: Ints) -> Flags:
        """Flag the windows that are of some steps (numbers), [window]."""
        return self.step_windows["step"].is_in(step_numbers.tolist()).to_numpy()

    def _to_frame(self, selections: Iterable[tuple[WorkerPieces, Indices]]) -> pl.DataFrame:
        """Return some pieces of workers, by their indices, as rows of `SEGMENT_COLUMNS`."""
        columns_by_worker = [
            (
                worker.window_indices[piece_rows] + worker.first_window,
                worker.bounds_ns[piece_rows],
                worker.bounds_ns[piece_rows + 1],
                worker.category_codes[piece_rows],
                worker.name_codes[piece_rows],
            )
            for worker, piece_rows in selections
        ]
        if not columns_by_worker:
            return pl.DataFrame(schema=SEGMENT_COLUMNS)
        window_rows, start_ns, end_ns, category_codes, name_codes = map(
            np.concatenate, zip(*columns_by_worker, strict=True)
        )
        return (
            self.step_windows.select("process", "rank", "step")[window_rows]
            .with_columns(
                start_ns=start_ns,
                end_ns=end_ns,
                category=to_category_names(category_codes),
                name=self.to_span_names(name_codes),
            )
            .select(*SEGMENT_COLUMNS)
        )

    def to_span_names(self, name_codes: Array) -> pl.Series:
        """Turn indices of names back into names; below zero into null."""
        names = pl.Series([*self.span_names, None], dtype=pl.Categorical)
        return names.gather(np.where(name_codes < 0, len(self.span_names), name_codes))


def to_category_names(category_codes: Array) -> pl.Series:
    """Turn indices of `CATEGORIES` into names."""
    return pl.Series(CATEGORIES, dtype=pl.Enum(CATEGORIES)).gather(category_codes)


def _sum_counted_ns_before(bounds_ns: Ints, is_counted: Flags, moments_ns: Ints) -> Floats:
    """Measure how much of the counted pieces (flags) had passed at each moment, ns; pieces touch."""
    is_inside = np.concatenate([[False], is_counted, [False]])
    edges_ns = bounds_ns[np.flatnonzero(is_inside[1:] != is_inside[:-1])]  # begins and ends in turn
    return sum_covered_ns_before(edges_ns[::2], edges_ns[1::2], moments_ns)


def sum_covered_ns_before(begins_ns: Ints, ends_ns: Ints, moments_ns: Ints) -> Floats:
    """Measure how much of disjoint intervals, in order, is before each moment, ns."""
    return Intervals(begins_ns, ends_ns).covered_ns_before(moments_ns).astype(np.float64)

"""Collective calls as matrices: of a communicator, a row for each call and a column for each process.

Ranks of one program call alike, so most facts of a call are the same in all its columns: these are kept
once (`join_columns`), and only begins and ends differ. A frame of all calls and ranks (`to_frame`) takes
ten times the memory; it is for questions about few of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.caching import cached_property
from tracelens.model.columns import FOREVER, NULL
from tracelens.schema.vocabulary import COLLECTIVES, FULL_COLLECTIVES, STATUSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracelens.arrays import Array, Flags, Indices, Int32s, Ints

NEVER: Final = -(1 << 62)  # ns: the begin of a call that a process did not make [definition]
FROM_ROOT: Final = tuple(map(COLLECTIVES.index, ("broadcast", "scatter")))
TO_ROOT: Final = tuple(map(COLLECTIVES.index, ("reduce", "gather")))
FULL: Final = tuple(map(COLLECTIVES.index, FULL_COLLECTIVES))
COMPLETED_STATUSES: Final = tuple(map(STATUSES.index, ("closed", "estimated")))

# One row per rank and collective call, matched by communicator and seq (never guessed).
ARRIVAL_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "rank": pl.Int32(),
    "communicator": pl.Categorical(),
    "seq": pl.UInt32(),
    "op": pl.Categorical(),
    "step": pl.Int32(),
    "bucket": pl.Int32(),
    "bytes": pl.Int64(),
    "thread": pl.UInt16(),
    "start_ns": pl.Int64(),  # this rank's arrival
    "end_ns": pl.Int64(),  # this rank's exit; null = still inside when the recording ended
    "last_arrival_ns": pl.Int64(),  # null where an expected rank never arrived
    "last_rank": pl.Int32(),
    "arrived": pl.Int32(),  # ranks seen
    "expected": pl.Int32(),  # ranks in the communicator
    "wait_ns": pl.Int64(),  # last_arrival - start, within [0, duration]
    "transfer_ns": pl.Int64(),  # duration - wait
}
TIME_COLUMNS: Final = {
    name: ARRIVAL_COLUMNS[name]
    for name in ("communicator", "seq", "rank", "op", "start_ns", "end_ns")
}
_CELL_FACTS: Final = ("op", "step", "bucket", "nbytes", "thread", "peer", "status")
_CALL_FACTS: Final = ("last_arrival_ns", "last_rank_of_call", "expected_rank_count")
# cells of calls and processes: no more are in memory at once [policy]
MAX_CELLS_AT_ONCE: Final = 1 << 18


@dataclass(frozen=True, kw_only=True, eq=False)
class CallFacts:
    """What is known of calls: their numbers, when they began and ended, and what they were."""

    seq: Ints
    start_ns: Ints
    end_ns: Ints
    op: Array
    step: Int32s
    bucket: Int32s
    nbytes: Ints
    thread: Int32s
    peer: Int32s
    status: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class CallGrid(CallFacts):
    """The calls of one communicator, in order of their numbers; times in nanoseconds.

    Those of a process lie together, as most is asked of one process after the other.

    [call, process]: `start_ns` and `end_ns` (`NEVER` where the process made no such call; an end is
    `FOREVER` where it was still open), and the facts of a cell, most of them broadcast: `op` (place in
    `COLLECTIVES`), `step`, `bucket`, `nbytes`, `thread`, `peer` (negative = none), `status` (place in
    `STATUSES`).
    [call], once matched: `last_arrival_ns` (`NEVER` where it is not known), `last_rank_of_call` (the one
    that arrived last, or never; `NULL` where not known), `expected_rank_count` (of the communicator).
    """

    communicator_uid: str
    processes: Ints
    ranks: Ints
    is_whole: bool  # every process made every call
    last_arrival_ns: Ints
    last_rank_of_call: Int32s
    expected_rank_count: Int32s

    @property
    def call_count(self) -> int:
        """How many calls there are."""
        return len(self.seq)

    def find_varying(self, name: str, *, missing: int) -> Flags:
        """Return True for each call whose ranks differ in the fact `name`, [call].

        Cells with the value `missing` do not count.
        """
        cells: Array = getattr(self, name)
        if repeats_one_column(cells):
            return np.zeros(self.call_count, np.bool_)
        is_given = self.is_made & (cells != missing)
        high, low = np.iinfo(cells.dtype).max, np.iinfo(cells.dtype).min
        highest = np.where(is_given, cells, low).max(axis=1)
        lowest = np.where(is_given, cells, high).min(axis=1)
        return np.asarray(is_given.any(axis=1) & (highest != lowest))

    @property
    def follows_mismatch(self) -> Flags:
        """Whether ranks make different operations in a call, or did so in one before it, [call]."""
        return np.asarray(np.logical_or.accumulate(self.find_varying("op", missing=-1)))

    @cached_property
    def is_made(self) -> Flags:
        """Return True where a process made a call, [call, process]."""
        if self.is_whole:
            return np.broadcast_to(np.True_, self.start_ns.shape)
        return np.asarray(self.start_ns != NEVER)

    @property
    def is_completed(self) -> Flags:
        """Return True where a process made a call and completed it, [call, process].

        Time in a call that was still open, or that ended with an error, says nothing of transfers.
        """
        is_over = np.isin(distinct_columns(self.status), COMPLETED_STATUSES)
        return np.asarray(self.is_made & (self.end_ns != FOREVER) & is_over)

    @cached_property
    def arrival_counts(self) -> Int32s:
        """Return the number of ranks that made each call, [call]."""
        return np.asarray(self.is_made.sum(axis=1, dtype=np.int32))

    @cached_property
    def last_gap_ns(self) -> Ints:
        """Return the time between the last two arrivals, ns, [call]; 0 for a single rank."""
        gaps_ns = np.zeros(self.call_count, np.int64)
        for rows, some_calls in self.split_into_blocks():
            gaps_ns[rows] = measure_last_gap_ns(some_calls.start_ns)
        return gaps_ns

    @cached_property
    def is_closed(self) -> bool:
        """Whether no call of any process was still open when its recording ended."""
        return not self.call_count or int(self.end_ns.max()) < FOREVER

    @cached_property
    def is_synchronised(self) -> Flags:
        """Return True for each call that no rank leaves before the last arrival, [call]."""
        return np.asarray(np.isin(self.first_value_of_calls("op"), FULL))

    def first_value_of_calls(self, name: str) -> Array:
        """Return a fact of each call as the first process that made it tells it, [call]."""
        cells: Array = getattr(self, name)
        if self.is_whole or repeats_one_column(cells):
            return np.asarray(cells[:, 0])
        return np.asarray(cells[np.arange(self.call_count), self.is_made.argmax(axis=1)])

    def take_calls(self, call_indices: Indices | slice) -> CallGrid:
        """Return some calls, by their rows in the grid; no copy of those that follow each other."""
        rows = call_indices if isinstance(call_indices, slice) else to_slice(call_indices)
        shape = (len(self.seq[rows]), len(self.processes))
        call_facts: dict[str, Any] = {
            name: getattr(self, name)[rows] for name in ("seq", *_CALL_FACTS)
        }
        time_columns: dict[str, Any] = {
            name: take_rows(getattr(self, name), rows) for name in ("start_ns", "end_ns")
        }
        cell_facts: dict[str, Any] = {
            name: np.broadcast_to(take_rows(distinct_columns(getattr(self, name)), rows), shape)
            for name in _CELL_FACTS
        }
        return replace(self, **call_facts, **time_columns, **cell_facts)

    def split_into_blocks(self) -> Iterator[tuple[slice, CallGrid]]:
        """Yield all calls, some at a time, each with their range: what is made of them stays small."""
        size = max(MAX_CELLS_AT_ONCE // max(len(self.processes), 1), 1)
        for first_row in range(0, self.call_count, size):
            yield (rows := slice(first_row, first_row + size)), self.take_calls(rows)

    def times_by_process(self) -> Iterator[tuple[int, Ints, Ints]]:
        """Yield each process, its begins and its ends."""
        yield from zip(self.processes.tolist(), self.start_ns.T, self.end_ns.T, strict=True)

    def select_same_members(self) -> CallGrid:
        """Return the calls that the same processes made as the first one, and only their columns."""
        if self.is_whole or not self.call_count:
            return self
        columns = np.flatnonzero(self.is_made[0])
        call_rows = np.flatnonzero((self.is_made == self.is_made[0]).all(axis=1))
        same_calls = self.take_calls(call_rows)
        cells = ("start_ns", "end_ns", *_CELL_FACTS)
        return replace(
            same_calls,
            processes=same_calls.processes[columns],
            ranks=same_calls.ranks[columns],
            is_whole=True,
            **{name: getattr(same_calls, name)[:, columns] for name in cells},
        )

    def wait_ns(self) -> Ints:
        """Return the wait of each rank in each call, ns, [call, process].

        That is until the last arrival, or as the operation's root requires, and no longer than the
        call. Undefined where `last_arrival_ns` is not known.
        """
        return self._measure_waits_ns(slice(None), self.last_arrival_ns[:, None])

    def waits_by_process(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield begins and waits of each process, [call]."""
        for column, start_ns in enumerate(self.start_ns.T):
            yield start_ns, self.wait_ns_of(column)

    def wait_ns_of(self, column: int) -> Ints:
        """Return the wait of one process (column) in each call, ns, [call], as `wait_ns` does."""
        return np.asarray(
            self._measure_waits_ns(slice(column, column + 1), self.last_arrival_ns[:, None])[:, 0]
        )

    def _measure_waits_ns(self, columns: slice, last_ns: Ints) -> Ints:
        """Return the waits of some processes (columns), [call, process], ns; `last_ns` is [call, 1]."""
        start_ns, end_ns = self.start_ns[:, columns], self.end_ns[:, columns]
        waits_ns: Ints = np.maximum(last_ns, NEVER // 2) - np.maximum(start_ns, NEVER // 2)
        if len(self._rooted_calls):
            waits_ns[self._rooted_calls] = (
                self._find_proceed_ns(columns) - start_ns[self._rooted_calls]
            )
        np.maximum(waits_ns, 0, out=waits_ns)
        np.minimum(waits_ns, end_ns - start_ns, out=waits_ns)
        return waits_ns

    @cached_property
    def _rooted_calls(self) -> Indices:
        """Return the calls in which some wait for the root only, or only the root waits."""
        return np.flatnonzero(
            np.isin(distinct_columns(self.op), (*FROM_ROOT, *TO_ROOT)).any(axis=1)
        )

    @cached_property
    def _root_arrival_ns(self) -> Ints:
        """When the root arrived at each of these calls, [call, 1]; `FOREVER` where that is not known."""
        start_ns = take_rows(self.start_ns, self._rooted_calls)
        arrival_ns = np.where(self._find_roots(slice(None)), start_ns, FOREVER)
        return np.asarray(arrival_ns.min(axis=1, keepdims=True))

    def _find_roots(self, columns: slice) -> Flags:
        """Return True where a rank is the root of a rooted call, [rooted call, process]."""
        peer = self.peer[:, columns][self._rooted_calls]
        is_made = self.is_made[:, columns][self._rooted_calls]
        return np.asarray((peer == self.ranks[columns]) & is_made)

    def _find_proceed_ns(self, columns: slice) -> Ints:
        """Return when some processes could proceed in calls with a root, [rooted call, process], ns.

        From a root, the others wait for the root only. To a root, only the root waits: for the last.
        """
        rooted_calls, root_arrival_ns = self._rooted_calls, self._root_arrival_ns
        start_ns, op = self.start_ns[:, columns][rooted_calls], self.op[:, columns][rooted_calls]
        is_root, is_root_known = self._find_roots(columns), root_arrival_ns < FOREVER
        last_ns = self.last_arrival_ns[rooted_calls, None]
        return np.where(
            np.isin(op, FROM_ROOT) & is_root_known,
            np.where(is_root, start_ns, root_arrival_ns),
            np.where(np.isin(op, TO_ROOT) & is_root_known & ~is_root, start_ns, last_ns),
        )

    def to_time_table(self) -> pl.DataFrame:
        """Return a row for each call and rank that made it, in `TIME_COLUMNS`, by call and rank."""
        flatten = self._make_flattener(self.ranks)
        end_ns = flatten(self.end_ns)
        columns = {
            "communicator": self._make_uid_column(len(end_ns)),
            "seq": flatten(self.seq[:, None]),
            "rank": flatten(self.ranks),
            "op": _to_op_names(flatten(self.op)),
            "start_ns": flatten(self.start_ns),
            "end_ns": _null_unless(end_ns != FOREVER, end_ns),
        }
        return _table(columns, TIME_COLUMNS)

    def to_frame(self) -> pl.DataFrame:
        """Return a row for each call and rank that made it, in `ARRIVAL_COLUMNS`, by call."""
        flatten = self._make_flattener(self.processes)

        def flatten_calls(values: Array) -> Array:
            return flatten(values[:, None])

        is_matched = flatten_calls(self.last_arrival_ns != NEVER)
        is_closed = flatten(self.end_ns != FOREVER)
        wait_ns = flatten(self.wait_ns())
        start_ns, end_ns = flatten(self.start_ns), flatten(self.end_ns)
        last_rank = flatten_calls(self.last_rank_of_call)
        bucket = flatten(self.bucket)
        nbytes = flatten(self.nbytes)
        columns = {
            "process": flatten(self.processes),
            "rank": flatten(self.ranks),
            "communicator": self._make_uid_column(len(start_ns)),
            "seq": flatten_calls(self.seq),
            "op": _to_op_names(flatten(self.op)),
            "step": flatten(self.step),
            "bucket": _null_unless(bucket != NULL, bucket),
            "bytes": _null_unless(nbytes >= 0, nbytes),
            "thread": flatten(self.thread),
            "start_ns": start_ns,
            "end_ns": _null_unless(is_closed, end_ns),
            "last_arrival_ns": _null_unless(is_matched, flatten_calls(self.last_arrival_ns)),
            "last_rank": _null_unless(last_rank != NULL, last_rank),
            "arrived": flatten_calls(self.arrival_counts),
            "expected": flatten_calls(self.expected_rank_count),
            "wait_ns": _null_unless(is_matched, wait_ns),
            "transfer_ns": _null_unless(is_matched & is_closed, end_ns - start_ns - wait_ns),
        }
        return _table(columns, ARRIVAL_COLUMNS)

    def _make_flattener(self, keys: Ints) -> Callable[[Array], Array]:
        """Return a function that flattens [call, process] by call, then by `keys` of the processes.

        It leaves out calls that a process did not make, and broadcasts [call, 1] or [process] before.
        """
        by_key = np.argsort(keys, kind="stable")
        order = slice(None) if np.all(np.diff(by_key) == 1) else by_key
        made = slice(None) if self.is_whole else np.flatnonzero(self.is_made[:, order])
        shape = self.start_ns.shape
        return lambda values: np.broadcast_to(values, shape)[:, order].reshape(-1)[made]

    def _make_uid_column(self, height: int) -> pl.Series:
        return pl.Series([self.communicator_uid], dtype=pl.Categorical).new_from_index(0, height)


def _table(columns: dict[str, Any], schema: dict[str, pl.DataType]) -> pl.DataFrame:
    return pl.DataFrame([pl.Series(name, columns[name]).cast(schema[name]) for name in schema])


def measure_last_gap_ns(start_ns: Ints) -> Ints:
    """Return the time between the last two arrivals, [call], ns; 0 for a single arrival.

    `start_ns` is [call, process].
    """
    if start_ns.shape[1] < 2:
        return np.zeros(len(start_ns), np.int64)
    other_starts_ns = start_ns.copy()
    row_indices = np.arange(len(start_ns))
    latest_columns = start_ns.argmax(axis=1)
    other_starts_ns[row_indices, latest_columns] = NEVER
    previous_ns = other_starts_ns.max(axis=1)
    return np.where(previous_ns == NEVER, 0, start_ns[row_indices, latest_columns] - previous_ns)


def repeats_one_column(cells: Array) -> bool:
    """Return True if a matrix repeats a single column."""
    return cells.strides[1] == 0 if cells.ndim == 2 and cells.shape[1] > 1 else True


def distinct_columns(cells: Array) -> Array:
    """Return a matrix, or its first column alone, [row, 1], where all columns are that one."""
    return cells[:, :1] if repeats_one_column(cells) else cells


def to_slice(indices: Indices) -> slice | Indices:
    """Return ascending indices as a slice, if they follow each other: it selects without a copy."""
    if len(indices) and indices[-1] - indices[0] == len(indices) - 1:
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return indices


def take_rows(cells: Array, rows: Indices | slice) -> Array:
    """Return some rows of a matrix, keeping each column contiguous in memory."""
    return cells[rows] if isinstance(rows, slice) else np.take(cells.T, rows, axis=1).T


def join_columns(columns: Sequence[Array]) -> Array:
    """Join columns to [row, column]; equal columns take the memory of one."""
    first_column = columns[0]
    if all(one is first_column or np.array_equal(one, first_column) for one in columns):
        return np.broadcast_to(first_column[:, None], (len(first_column), len(columns)))
    number_type = np.result_type(*{one.dtype for one in columns})
    return np.stack([column.astype(number_type, copy=False) for column in columns]).T


def _to_op_names(codes: Array) -> pl.Series:
    return pl.Series(COLLECTIVES, dtype=pl.Categorical).gather(codes)


def _null_unless(flags: Flags, values: Array) -> pl.Series:
    """Return values, null where flags are not set."""
    series = pl.Series("values", values)
    if flags.all():
        return series
    return pl.select(pl.when(pl.Series(flags)).then(series)).to_series()


def list_arrivals(grids: Sequence[CallGrid]) -> pl.DataFrame:
    """Return all calls of all ranks as a frame, by communicator, call and process."""
    return pl.concat([pl.DataFrame(schema=ARRIVAL_COLUMNS), *(grid.to_frame() for grid in grids)])


def make_grids(arrivals: pl.DataFrame) -> tuple[CallGrid, ...]:
    """Take calls from a frame in `ARRIVAL_COLUMNS`; `peer` and `status` may be missing."""
    communicators = arrivals.partition_by("communicator", maintain_order=True)
    ordered = sorted(communicators, key=lambda part: str(part["communicator"][0]))
    return tuple(_make_grid(rows) for rows in ordered)


def _make_grid(arrivals: pl.DataFrame) -> CallGrid:
    """Make the grid of one communicator from rows of `ARRIVAL_COLUMNS`."""
    members = arrivals.select("process", "rank").unique().sort("process")
    numbers = arrivals["seq"].unique().sort()
    call = numbers.search_sorted(arrivals["seq"]).to_numpy()
    process = members["process"].search_sorted(arrivals["process"]).to_numpy()
    shape = (len(numbers), members.height)

    def to_matrix(name: str, missing: int, not_made: int | None = None) -> Array:
        """Return a column as [call, process]: `missing` for null, `not_made` without such a call."""
        matrix = np.full(shape, missing if not_made is None else not_made, np.int64)
        if name in arrivals.columns:
            matrix[call, process] = arrivals[name].cast(pl.Int64).fill_null(missing).to_numpy()
        return matrix

    ops = arrivals.with_columns(op=_number_words(arrivals["op"], COLLECTIVES))["op"]
    op_codes = np.zeros(shape, np.int8)
    op_codes[call, process] = ops.to_numpy()
    first_arrivals = arrivals.unique("seq", keep="first", maintain_order=True).sort("seq")
    return CallGrid(
        communicator_uid=str(arrivals["communicator"][0]),
        processes=members["process"].to_numpy().astype(np.int64),
        ranks=members["rank"].to_numpy().astype(np.int64),
        seq=numbers.to_numpy().astype(np.int64),
        start_ns=to_matrix("start_ns", missing=NEVER),
        end_ns=to_matrix("end_ns", missing=FOREVER, not_made=NEVER),
        op=op_codes,
        step=to_matrix("step", missing=-1).astype(np.int32),
        bucket=to_matrix("bucket", missing=NULL).astype(np.int32),
        nbytes=to_matrix("bytes", missing=-1),
        thread=to_matrix("thread", missing=-1).astype(np.int32),
        peer=to_matrix("peer", missing=NULL).astype(np.int32),
        status=np.broadcast_to(np.int8(STATUSES.index("closed")), shape),
        is_whole=arrivals.height == shape[0] * shape[1],
        last_arrival_ns=first_arrivals["last_arrival_ns"].fill_null(NEVER).to_numpy(),
        last_rank_of_call=first_arrivals["last_rank"].fill_null(NULL).to_numpy(),
        expected_rank_count=first_arrivals["expected"].to_numpy(),
    )


def _number_words(words: pl.Series, known: tuple[str, ...]) -> pl.Series:
    return words.cast(pl.String).replace_strict(known, range(len(known)), return_dtype=pl.Int8)

"""Counts what batches of events hold, for the summary at a file's end; with numpy, batch by batch.

Steps are counted as `tracelens.align.steps` divides a worker's time: on the training thread, which is
the one with the most steps, else with the most spans; a step within another does not count.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from tracelens.schema.side import Summary
from tracelens.schema.vocabulary import CHOSEN_LOSSES

if TYPE_CHECKING:
    import pyarrow as pa

    from tracelens.arrays import Array, Bytes, Flags, Ints
    from tracelens.schema.side import SideTables

TALLIED: Final = ("start_ns", "duration_ns", "type", "kind", "thread", "step")
_FOREVER: Final = np.iinfo(np.int64).max
_SPAN, _STEP = "span", "step"
_THREAD_BITS: Final = 32  # of a thread and a step number in one integer, the step


class Tally:
    """What the batches hold that it was given, which have at least the columns `TALLIED`."""

    def __init__(self) -> None:
        self._row_count = self._span_count = 0
        self._first_ns: int | None = None
        self._last_ns: int | None = None
        self._kinds: set[str] = set()
        self._step_counts: Counter[int] = Counter()  # by thread, as the two that follow
        self._step_ends_ns: dict[int, int] = {}
        # While there is no step span:
        self._span_counts: Counter[int] = Counter()
        self._step_keys: set[int] = set()  # thread << _THREAD_BITS | step number

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Count the events of one more batch, in the schema's types."""
        if not batch.num_rows:
            return
        start_ns = read_values(batch.column("start_ns"), np.int64)
        end_ns = start_ns + read_values(batch.column("duration_ns"), np.int64)
        open_rows = np.flatnonzero(~flag_valid_rows(batch.column("duration_ns")))
        end_ns[open_rows] = start_ns[open_rows]
        is_span = _is_word(batch.column("type"), _SPAN)
        thread = read_values(batch.column("thread"), np.uint16)
        self._row_count += batch.num_rows
        self._span_count += int(np.count_nonzero(is_span))
        self._widen(int(start_ns.min()), int(end_ns.max()))
        self._note_kinds(batch.column("kind"))
        step_rows = np.flatnonzero(is_span & _is_word(batch.column("kind"), _STEP))
        if len(step_rows):
            end_ns[open_rows] = _FOREVER
            self._count_steps(thread[step_rows], start_ns[step_rows], end_ns[step_rows])
        elif not self._step_counts:
            step = read_values(batch.column("step"), np.int32)
            self._note_step_numbers(thread[is_span], step[is_span])

    def make_summary(self, side: SideTables) -> Summary:
        """Return the summary of a file with these side tables."""
        losses = [n for reason, n in side.dropped.items() if reason not in CHOSEN_LOSSES]
        flight_threads = {thread.index for thread in side.threads if thread.in_flight}
        return Summary(
            rows=self._row_count,
            spans=self._span_count,
            steps=self._count_worker_steps(flight_threads),
            first_ns=self._first_ns,
            last_ns=self._last_ns,
            dropped=sum(losses),
            kinds=sorted(self._kinds),
        )

    def _widen(self, first_ns: int, last_ns: int) -> None:
        self._first_ns = first_ns if self._first_ns is None else min(self._first_ns, first_ns)
        self._last_ns = last_ns if self._last_ns is None else max(self._last_ns, last_ns)

    def _note_kinds(self, column: pa.Array[Any]) -> None:
        """Look for the words that were not seen before, which after the first batch are few."""
        codes, words = _split_codes(column)
        for code, word in enumerate(words):
            if word is not None and word not in self._kinds and (codes == code).any():
                self._kinds.add(word)

    def _count_steps(self, threads: Array, starts_ns: Ints, ends_ns: Ints) -> None:
        """Count, by thread, the step spans that begin after all earlier ones on it have ended.

        Thread numbers and times, ns, are [step span].
        """
        self._step_keys.clear()
        self._span_counts.clear()
        for thread in np.unique(threads).tolist():
            is_own = threads == thread
            previous_end_ns = self._step_ends_ns.get(thread, -_FOREVER)
            latest_ends_ns = np.maximum.accumulate(np.append(previous_end_ns, ends_ns[is_own]))
            is_outermost = starts_ns[is_own] >= latest_ends_ns[:-1]
            self._step_counts[thread] += int(np.count_nonzero(is_outermost))
            self._step_ends_ns[thread] = int(latest_ends_ns[-1])

    def _note_step_numbers(self, threads: Array, steps: Array) -> None:
        """Count each thread's spans, and note its step numbers; both arrays of numbers are [span]."""
        counts = np.bincount(threads)
        self._span_counts.update({t: int(counts[t]) for t in np.flatnonzero(counts).tolist()})
        keys = (threads.astype(np.int64) << _THREAD_BITS) + np.maximum(steps, 0)
        change_rows = np.flatnonzero(np.diff(keys, prepend=-1))
        self._step_keys.update(np.unique(keys[change_rows]).tolist())

    def _count_worker_steps(self, flight_threads: set[int]) -> int:
        """Return the steps of the training thread, with most steps or spans; no operations in flight."""
        step_counts = {t: n for t, n in self._step_counts.items() if t not in flight_threads}
        if step_counts:
            return max(step_counts.values())
        span_counts = {t: n for t, n in self._span_counts.items() if t not in flight_threads}
        if not span_counts:
            return 0
        training_thread = min(span_counts, key=lambda t: (-span_counts[t], t))
        return sum(key >> _THREAD_BITS == training_thread for key in self._step_keys)


def read_values(column: pa.Array[Any], dtype: type[np.generic]) -> Array:
    """Return the values of a column of numbers, [row]; those of its nulls are arbitrary."""
    end = column.offset + len(column)
    values: Array = np.frombuffer(cast("Any", column.buffers()[1]), dtype)[column.offset : end]
    return values


def flag_valid_rows(column: pa.Array[Any]) -> Flags:
    """Return True for each row of the column that is not null."""
    validity_bits = column.buffers()[0]
    if not column.null_count or validity_bits is None:
        return np.ones(len(column), np.bool_)
    end = column.offset + len(column)
    packed_bits: Bytes = np.frombuffer(cast("Any", validity_bits), np.uint8)
    is_valid: Flags = np.unpackbits(packed_bits, count=end, bitorder="little").view(np.bool_)
    return is_valid[column.offset :]


def _split_codes(column: pa.Array[Any]) -> tuple[Array, list[str | None]]:
    """Return the codes of a column of words, and the words."""
    coded = cast("pa.DictionaryArray[Any, Any]", column)
    return read_values(coded.indices, np.int8), coded.dictionary.to_pylist()


def _is_word(column: pa.Array[Any], word: str) -> Flags:
    codes, dictionary_words = _split_codes(column)
    if word not in dictionary_words:
        return np.zeros(len(codes), np.bool_)
    return np.asarray(codes == dictionary_words.index(word))

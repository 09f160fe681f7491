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

__all__ = ["TALLIED", "Tally", "valid_of", "values_of"]

TALLIED: Final = ("start_ns", "duration_ns", "type", "kind", "thread", "step")
_FOREVER: Final = np.iinfo(np.int64).max
_SPAN, _STEP = "span", "step"
_THREAD_BITS: Final = 32  # of a thread and a step number in one integer, the step


class Tally:
    """What the batches hold that it was given, which have at least the columns `TALLIED`."""

    def __init__(self) -> None:
        self._rows = self._spans = 0
        self._first: int | None = None
        self._last: int | None = None
        self._kinds: set[str] = set()
        self._steps_of: Counter[int] = Counter()  # by thread, as all that follows
        self._step_ends: dict[int, int] = {}
        # While there is no step span:
        self._spans_of: Counter[int] = Counter()
        self._numbered: set[int] = set()  # threads with step numbers

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the events of one more batch, in the schema's types."""
        if not batch.num_rows:
            return
        start = values_of(batch.column("start_ns"), np.int64)
        end = start + values_of(batch.column("duration_ns"), np.int64)
        open_ = np.flatnonzero(~valid_of(batch.column("duration_ns")))
        end[open_] = start[open_]
        spans = _is_word(batch.column("type"), _SPAN)
        thread = values_of(batch.column("thread"), np.uint16)
        self._rows += batch.num_rows
        self._spans += int(np.count_nonzero(spans))
        self._widen(int(start.min()), int(end.max()))
        self._note_kinds(batch.column("kind"))
        steps = np.flatnonzero(spans & _is_word(batch.column("kind"), _STEP))
        if len(steps):
            end[open_] = _FOREVER
            self._count_steps(thread[steps], start[steps], end[steps])
        elif not self._steps_of:
            self._note_numbers(thread[spans], values_of(batch.column("step"), np.int32)[spans])

    def summary(self, side: SideTables) -> Summary:
        """Return the summary of a file with these side tables."""
        dropped = [n for reason, n in side.dropped.items() if reason not in CHOSEN_LOSSES]
        flying = {row.index for row in side.threads if row.in_flight}
        return Summary(
            rows=self._rows,
            spans=self._spans,
            steps=self._steps(flying),
            first_ns=self._first,
            last_ns=self._last,
            dropped=sum(dropped),
            kinds=sorted(self._kinds),
        )

    def _widen(self, first: int, last: int) -> None:
        self._first = first if self._first is None else min(self._first, first)
        self._last = last if self._last is None else max(self._last, last)

    def _note_kinds(self, column: pa.Array[Any]) -> None:
        """Look for the words that were not seen before, which after the first batch are few."""
        codes, words = _indices(column)
        for code, word in enumerate(words):
            if word is not None and word not in self._kinds and (codes == code).any():
                self._kinds.add(word)

    def _count_steps(self, thread: Array, start: Ints, end: Ints) -> None:
        """Count the step spans that begin after all before them on their thread have ended."""
        self._numbered.clear()
        self._spans_of.clear()
        for number in np.unique(thread).tolist():
            of_thread = thread == number
            end_before = self._step_ends.get(number, -_FOREVER)
            latest_ends = np.maximum.accumulate(np.append(end_before, end[of_thread]))
            self._steps_of[number] += int(np.count_nonzero(start[of_thread] >= latest_ends[:-1]))
            self._step_ends[number] = int(latest_ends[-1])

    def _note_numbers(self, thread: Array, step: Array) -> None:
        """Count each thread's spans, and note its step numbers: mostly many rows in a row have one."""
        counts = np.bincount(thread)
        self._spans_of.update({t: int(counts[t]) for t in np.flatnonzero(counts).tolist()})
        keys = (thread.astype(np.int64) << _THREAD_BITS) + np.maximum(step, 0)
        change_rows = np.flatnonzero(np.diff(keys, prepend=-1))
        self._numbered.update(np.unique(keys[change_rows]).tolist())

    def _steps(self, flying: set[int]) -> int:
        stepped = {t: count for t, count in self._steps_of.items() if t not in flying}
        if stepped:
            return max(stepped.values())
        busy = {t: count for t, count in self._spans_of.items() if t not in flying}
        if not busy:
            return 0
        training = min(busy, key=lambda t: (-busy[t], t))
        return sum(key >> _THREAD_BITS == training for key in self._numbered)


def values_of(column: pa.Array[Any], dtype: type[np.generic]) -> Array:
    """Return the memory of a column of numbers of this type, also of its nulls."""
    end = column.offset + len(column)
    found: Array = np.frombuffer(cast("Any", column.buffers()[1]), dtype)[column.offset : end]
    return found


def valid_of(column: pa.Array[Any]) -> Flags:
    """Return True for each row that is not null."""
    bits = column.buffers()[0]
    if not column.null_count or bits is None:
        return np.ones(len(column), np.bool_)
    end = column.offset + len(column)
    packed: Bytes = np.frombuffer(cast("Any", bits), np.uint8)
    flags: Flags = np.unpackbits(packed, count=end, bitorder="little").view(np.bool_)
    return flags[column.offset :]


def _indices(column: pa.Array[Any]) -> tuple[Array, list[str | None]]:
    """Return the codes of a column of words, and the words."""
    coded = cast("pa.DictionaryArray[Any, Any]", column)
    return values_of(coded.indices, np.int8), coded.dictionary.to_pylist()


def _is_word(column: pa.Array[Any], word: str) -> Flags:
    codes, dictionary_words = _indices(column)
    if word not in dictionary_words:
        return np.zeros(len(codes), np.bool_)
    return np.asarray(codes == dictionary_words.index(word))

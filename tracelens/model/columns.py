"""Events of one process as plain arrays: what is computed per process needs no frame.

Frames serve questions; the passes over a whole run (docs/scale.md) ask the same few things of every
file, where each expression of a frame would cost more than the answer. What is missing in a row has a
number of its own, so that columns are whole numbers throughout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from tracelens.arrays import Array, Flags, Floats, Ints

__all__ = ["FOREVER", "MISSING", "NULL", "WORDS", "Columns", "Words", "fill_invalid"]

NULL: Final = -(1 << 31)  # number: in place of one that is missing [definition]
# ns: the end of a span that was open when the recording ended; no time is later [definition]
FOREVER: Final = 1 << 62
WORDS: Final = ("type", "kind", "op", "name", "status", "algorithm")
# What stands for a missing value, where that is not `NULL`: these are never negative.
MISSING: Final[dict[str, int]] = {
    "end_ns": FOREVER,
    "communicator": -1,
    "seq": -1,
    "bytes": -1,
    "stream": -1,
    "thread": -1,
    "depth": 0,
    "step": -1,
    "device_duration_ns": -1,
}


ESTIMATED: Final = "estimated"
_OF_PROCESS: Final = ("process", "rank", "role", "request")
MAX_EMPTY_COLUMNS_KEPT: Final = 64  # columns: as many without a value are kept for reuse [policy]
_SIGNED: Final = {"UInt16": pl.Int32, "UInt32": pl.Int64}


@dataclass(frozen=True, eq=False)
class Words:
    """A column of words: the index of each row's word in `vocabulary`, [row]; -1 = none."""

    codes: Array
    vocabulary: tuple[str, ...]

    def codes_of(self, words: Iterable[str]) -> list[int]:
        """Return the codes of some words; those that do not occur are left out."""
        wanted = set(words)
        return [code for code, word in enumerate(self.vocabulary) if word in wanted]

    def is_in(self, words: Iterable[str]) -> Array:
        """Return True for each row with one of some words."""
        has_word = np.zeros(len(self.codes), np.bool_)
        for code in self.codes_of(words):  # comparing small numbers is quicker than looking them up
            has_word |= self.codes == code
        return has_word

    def translate(self, numbers: Mapping[str, int], otherwise: int) -> Array:
        """Return a number for each row's word."""
        number_by_code = [*(numbers.get(word, otherwise) for word in self.vocabulary), otherwise]
        return cast("Array", np.array(number_by_code, np.int32)[self.codes])

    def take(self, rows: Any) -> Words:
        """Return some rows."""
        return Words(self.codes[rows], self.vocabulary)


@dataclass(frozen=True, eq=False)
class Columns:
    """Some columns of one process's events, in order of their begins, outer spans first.

    Columns of words, of whole numbers (``communicator`` is an index of `communicator_uids`) and of
    fractions (`value_columns`), by name. One in which no row has a value is in none of them.
    """

    row_count: int
    number_columns: Mapping[str, Array]
    word_columns: Mapping[str, Words]
    value_columns: Mapping[str, Floats]
    communicator_uids: tuple[str, ...] = ()

    def __contains__(self, name: str) -> bool:
        return (
            name in self.number_columns or name in self.word_columns or name in self.value_columns
        )

    def number_column(self, name: str) -> Array:
        """Return a column of numbers, [row]; missing values are as `MISSING` says."""
        column = self.number_columns.get(name)
        if column is not None:
            return column
        return _missing_column(
            missing=MISSING.get(name, NULL), dtype=np.int64, height=self.row_count
        )

    def word_column(self, name: str) -> Words:
        """Return a column of words."""
        column = self.word_columns.get(name)
        if column is not None:
            return column
        return Words(
            _missing_column(missing=-1, dtype=np.int8, height=self.row_count), vocabulary=()
        )

    @property
    def is_span(self) -> Array:
        """Return True for each row that is a span."""
        return self.word_column("type").is_in(("span",))

    def take(self, rows: Any) -> Columns:
        """Return some rows, by a slice, flags or indices."""
        numbers = {name: column[rows] for name, column in self.number_columns.items()}
        return Columns(
            row_count=len(next(iter(numbers.values()))) if numbers else 0,
            number_columns=numbers,
            word_columns={name: column.take(rows) for name, column in self.word_columns.items()},
            value_columns={name: column[rows] for name, column in self.value_columns.items()},
            communicator_uids=self.communicator_uids,
        )

    def with_numbers(self, **numbers: Array) -> Columns:
        """Return them with other numbers in some columns."""
        return replace(self, number_columns={**self.number_columns, **numbers})

    def mark_estimated(self, rows: Array) -> Columns:
        """Return the columns with the status of some rows (indices) set to estimated."""
        if not len(rows):
            return self
        status = self.word_column("status")
        status_words = (
            status.vocabulary if ESTIMATED in status.vocabulary else (*status.vocabulary, ESTIMATED)
        )
        codes = status.codes.astype(np.int32)
        codes[rows] = status_words.index(ESTIMATED)
        words = {**self.word_columns, "status": Words(codes, status_words)}
        return replace(self, word_columns=words)

    def sort_by_begin(self) -> Columns:
        """Sort by begin, outer spans first; as recordings are in order already, look first."""
        start_ns, depth = self.number_column("start_ns"), self.number_column("depth")
        unsorted_rows = np.flatnonzero(start_ns[1:] <= start_ns[:-1])
        if np.all(
            (start_ns[unsorted_rows] == start_ns[unsorted_rows + 1])
            & (depth[unsorted_rows] <= depth[unsorted_rows + 1])
        ):
            return self
        return self.take(np.lexsort((depth, start_ns)))

    @classmethod
    def from_table(cls, table: pa.Table, uids: tuple[str, ...] = ()) -> Columns:
        """Take events of a file (`tracelens.schema.arrow`); `uids` by the file's numbers."""
        numbers_by_name: dict[str, Array] = {}
        words_by_name: dict[str, Words] = {}
        values_by_name: dict[str, Floats] = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            if name == "duration_ns":
                numbers_by_name["end_ns"] = _find_ends_ns(table["start_ns"], column)
            elif name in WORDS:
                words_by_name[name] = _to_words(column)
            elif name == "value":
                values_by_name[name] = _to_array(column, np.nan)
            elif column.null_count < len(column):
                numbers_by_name[name] = _to_array(column, MISSING.get(name, NULL))
        return cls(
            row_count=table.num_rows,
            number_columns=numbers_by_name,
            word_columns=words_by_name,
            value_columns=values_by_name,
            communicator_uids=uids,
        )

    @classmethod
    def from_frame(cls, frame: pl.DataFrame) -> Columns:
        """Take events in the columns of `tracelens.model.trace`, all of one process or of several."""
        numbers_by_name: dict[str, Array] = {}
        words_by_name: dict[str, Words] = {}
        values_by_name: dict[str, Floats] = {}
        uids: tuple[str, ...] = ()
        for name in frame.columns:
            column = frame[name]
            if name in _OF_PROCESS or (column.null_count() == len(column) and name != "end_ns"):
                continue
            if name in WORDS:
                words_by_name[name] = _number_words_of(column)
            elif name == "communicator":
                uid_words = _number_words_of(column)
                numbers_by_name[name], uids = uid_words.codes, uid_words.vocabulary
            elif name == "value":
                values_by_name[name] = column.fill_null(np.nan).to_numpy()
            else:
                signed_column = column.cast(_SIGNED.get(str(column.dtype), column.dtype))
                numbers_by_name[name] = signed_column.fill_null(MISSING.get(name, NULL)).to_numpy()
        return cls(
            row_count=frame.height,
            number_columns=numbers_by_name,
            word_columns=words_by_name,
            value_columns=values_by_name,
            communicator_uids=uids,
        )


def fill_invalid(values: Array, valid: Flags | None, missing: float) -> Array:
    """Return a copy of numbers, [row], with `missing` where they are not valid; None = all are.

    Unsigned numbers become signed if `missing` is negative.
    """
    if valid is None:
        return values.copy()
    needs_sign = values.dtype.kind == "u" and missing < 0
    copy = values.astype(np.int64 if needs_sign else values.dtype)
    np.copyto(copy, missing, where=~valid)
    return copy


@lru_cache(MAX_EMPTY_COLUMNS_KEPT)
def _missing_column(*, missing: int, dtype: type[np.signedinteger[Any]], height: int) -> Array:
    """Return a column in which no row has a value; the same one for processes of as many rows."""
    return np.broadcast_to(dtype(missing), height)


def _to_array(column: pa.ChunkedArray[Any], missing: float) -> Array:
    """Return a column with a number where nothing is; pyarrow's own way imports all of its functions."""
    if not column.null_count:
        return column.to_numpy()
    return _join_chunks(column.chunks, column.type, missing)


@cache
def to_dtype(arrow_type: pa.DataType) -> np.dtype[Any]:
    """Return the numpy type of numbers; `to_pandas_dtype` of pyarrow 17 to 22 needs pandas."""
    import pyarrow as pa  # noqa: PLC0415 - who has a type has imported it

    return pa.array([], arrow_type).to_numpy(zero_copy_only=False).dtype


def _join_chunks(chunks: Sequence[Any], arrow_type: pa.DataType, missing: float) -> Array:
    """Join chunks of numbers to one array, with `missing` in place of nulls."""
    dtype = to_dtype(arrow_type)
    values = np.concatenate([np.zeros(0, dtype), *(_read_stored(chunk, dtype) for chunk in chunks)])
    if not any(chunk.null_count for chunk in chunks):
        return values
    return fill_invalid(values, np.concatenate([_find_valid(chunk) for chunk in chunks]), missing)


def _read_stored(chunk: Any, stored: np.dtype[Any]) -> Array:
    if chunk.null_count == len(chunk):
        return np.zeros(len(chunk), stored)
    return np.frombuffer(chunk.buffers()[1], stored)[chunk.offset : chunk.offset + len(chunk)]


def _find_valid(chunk: Any) -> Flags:
    if chunk.null_count in {0, len(chunk)}:
        return np.full(len(chunk), not chunk.null_count, np.bool_)
    bits = np.frombuffer(chunk.buffers()[0], np.uint8)
    valid = np.unpackbits(bits, count=chunk.offset + len(chunk), bitorder="little")
    return valid[chunk.offset :].view(np.bool_)


def _find_ends_ns(start: pa.ChunkedArray[Any], duration: pa.ChunkedArray[Any]) -> Ints:
    """Return when spans end; `FOREVER` for those that were still open."""
    ends = start.to_numpy() + _to_array(duration, missing=0)
    if duration.null_count:
        ends[duration.is_null().to_numpy()] = FOREVER
    return cast("Ints", ends)


def _to_words(column: pa.ChunkedArray[Any]) -> Words:
    """Take a dictionary column in chunks; each chunk's dictionary extends the one before."""
    if not column.num_chunks:
        return Words(np.zeros(0, np.int8), vocabulary=())
    chunks: list[Any] = column.chunks
    codes = _join_chunks([chunk.indices for chunk in chunks], column.type.index_type, missing=-1)
    return Words(codes, tuple(chunks[-1].dictionary.to_pylist()))


def _number_words_of(column: pl.Series) -> Words:
    """Number the words of a column of a frame from 0 on.

    Frames of processes often have some hundred rows: of columns with codes, only the few
    words that there are become text, in place of a search and a sort of the whole column.
    """
    if column.dtype.is_(pl.String):
        distinct_words = column.drop_nulls().unique().sort()
        codes = column.replace_strict(
            distinct_words, range(len(distinct_words)), default=-1, return_dtype=pl.Int32
        )
        return Words(codes.to_numpy(), tuple(distinct_words))
    physical_codes = column.to_physical()
    row_codes = physical_codes.to_numpy() if not physical_codes.null_count() else None
    if row_codes is None:  # nulls get a number of their own, the last one
        highest_code = physical_codes.max()
        assert highest_code is None or isinstance(highest_code, int)
        null_code = 0 if highest_code is None else highest_code + 1
        row_codes = physical_codes.cast(pl.Int64).fill_null(null_code).to_numpy()
    first_rows = np.full(int(row_codes.max(initial=0)) + 1, -1)
    first_rows[row_codes[::-1]] = np.arange(len(row_codes) - 1, -1, -1)
    codes_in_use = np.flatnonzero(first_rows >= 0)
    words_in_use = column.gather(first_rows[codes_in_use]).cast(pl.String).to_list()
    is_sorted_by_word = not isinstance(column.dtype, pl.Enum)  # an enumeration has its own order
    order = sorted(
        (code for code, word in enumerate(words_in_use) if word is not None),
        key=lambda code: words_in_use[code] if is_sorted_by_word else code,
    )
    code_by_row_code = np.full(len(first_rows), -1, np.int32)
    code_by_row_code[codes_in_use[order]] = np.arange(len(order), dtype=np.int32)
    return Words(code_by_row_code[row_codes], tuple(words_in_use[code] for code in order))

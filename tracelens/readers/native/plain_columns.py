"""Reads columns of a recorded file as plain arrays.

Arrow's reader takes two and a half times as long for a file of some kilobytes. Here all buffers of a
batch are decompressed in one call, as frames of zstd may stand one after the other, and columns and
words whose bytes were decoded for another file are shared with it. Every length, offset and code is
checked before it is followed. Any other layout than that of recorders is left to `arrow_file`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tracelens.conversion.layout import (
    STORED,
    ZSTD,
    read_dictionary_id,
    read_dictionary_ids,
    read_layout,
)
from tracelens.conversion.messages import slice_header
from tracelens.model.columns import (
    FOREVER,
    MISSING,
    NULL,
    WORDS,
    Columns,
    Words,
    fill_invalid,
    to_dtype,
)
from tracelens.readers.native.arrow_file import (
    read_arrow,
    read_checked_footer,
    read_content,
    read_last_schema,
)
from tracelens.readers.native.checks import hold_to_range, repair_columns, select_usable_columns
from tracelens.readers.native.side_checks import check_side
from tracelens.readers.native.soundness import ALWAYS_SET, KNOWN_WORDS, are_sane
from tracelens.schema.arrow import EVENT_SCHEMA, FILE_SCHEMA
from tracelens.schema.side import SideTables

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Sequence
    from pathlib import Path

    from tracelens.arrays import Array, Flags
    from tracelens.conversion.layout import Layout
    from tracelens.conversion.messages import Footer
    from tracelens.memory import BoundedCache
    from tracelens.readers.native.arrow_file import Recording

    _Bodies = Sequence[tuple[Layout, memoryview]]

MAX_DICTIONARIES_CACHED: Final = 256  # dictionaries that files have in common [policy]
# bytes of a dictionary: larger ones are hardly shared [policy]
MAX_BYTES_OF_CACHED: Final = 1 << 14
_SIZE: Final = struct.Struct("<q")  # before each compressed buffer: its size in bytes
_ZSTD: Final = pa.Codec("zstd")
_TIMES: Final = ("start_ns", "duration_ns")  # no two processes share these
_COLUMN_COUNT: Final = len(FILE_SCHEMA)
_CACHE: Final = "decoded columns"
_INDEX_OF: Final = {name: index for index, name in enumerate(EVENT_SCHEMA.names)}
_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    field.name: to_dtype(
        field.type.index_type if isinstance(field.type, pa.DictionaryType) else field.type
    )
    for field in EVENT_SCHEMA
}
_NULL_OF: Final[dict[str, float]] = {**MISSING, "duration_ns": 0, "value": np.nan}


class UsableEvents(NamedTuple):
    """The usable events of one process, and its side tables."""

    columns: Columns
    side_tables: SideTables
    lost_by_reason: dict[str, int]  # numbers of events that were left out
    is_cut: bool = False  # the end of the file is missing, or a part of it is damaged


class _Column(NamedTuple):
    """A column; nulls have numbers of their own in `values`."""

    values: Array  # [row]; of words, their codes
    is_valid: Flags | None  # [row]: not null; None = all
    max_code: int = -1  # the highest code of a word


def read_usable(
    path: Path,
    names: Collection[str],
    cache: BoundedCache,
    window_ns: tuple[int, int] | None = None,
    side: SideTables | None = None,
) -> UsableEvents:
    """Read columns of one file.

    Args:
        path: The file.
        names: Columns of `EVENT_SCHEMA`, all of `ALWAYS_READ` among them.
        cache: Of the pass over all files: a column that an earlier file has, too, is not decoded again.
        window_ns: A time on the clock of the file: events that are outside need not be there.
        side: The file's side tables, if it was read before.

    Raises:
        UnusableInput: it is not a trace file, or not one that this version can read.
        OSError: the file system refused.
        ValueError: the contents contradict themselves (also `pyarrow.ArrowInvalid`).
    """
    plain = _read_plain(path, names, cache, side) if window_ns is None else None
    return select_usable(read_arrow(path, names, window_ns)) if plain is None else plain


def select_usable(recording: Recording) -> UsableEvents:
    """Return the usable events of a recording, which has at least the columns `ALWAYS_READ`.

    Raises:
        NotATrace: its side tables have impossible values.
    """
    check_side(recording.side_tables)
    columns, lost = select_usable_columns(recording)
    return UsableEvents(columns, recording.side_tables, lost, recording.is_cut)


def _read_plain(
    path: Path, names: Collection[str], cache: BoundedCache, side: SideTables | None
) -> UsableEvents | None:
    """Read a file that is whole, as recorders write it, and all of whose rows are usable; else None."""
    content = read_content(path)
    schema = read_last_schema(content)
    if schema is None or not schema.equals(FILE_SCHEMA):
        return None
    footer = read_checked_footer(content)
    if footer is None:
        return None
    try:
        columns = _read_columns(memoryview(content), footer, names, cache)
    except (struct.error, ValueError, OSError):
        return None
    if columns is None:
        return None
    if side is None:
        side = SideTables.from_metadata(schema.metadata, is_checked=True)
        check_side(side)
    uid_by_index = {group.index: group.uid for group in side.communicators}
    usable_columns = repair_columns(columns, uid_by_index, cache).sort_by_begin()
    return UsableEvents(usable_columns, side, lost_by_reason={})


def _read_columns(
    view: memoryview, footer: Footer, names: Collection[str], cache: BoundedCache
) -> Columns | None:
    """Decode columns, but for those that are null in all rows; None if a row is not usable.

    Raises:
        struct.error: it is not laid out as recorders do it.
        ValueError: as before, or its content is damaged; `OSError` if that cannot be decompressed.
    """
    layouts = [read_layout(batch.read_header(view)) for batch in footer.batch_messages]
    _check_layouts(layouts)
    null_columns_of_batches = [
        {
            index
            for index, (_, null_count) in enumerate(layout.row_and_null_counts)
            if null_count == layout.row_count
        }
        for layout in layouts
    ]
    null_indices = set.intersection(*null_columns_of_batches)
    wanted_indices = {name: index for name, index in _INDEX_OF.items() if name in names}
    index_by_name = {name: i for name, i in wanted_indices.items() if i not in null_indices}
    if not index_by_name.keys() >= {*ALWAYS_SET}:
        return None
    bodies = [(layouts[i], batch.read_body(view)) for i, batch in enumerate(footer.batch_messages)]
    columns = _decode_columns(bodies, index_by_name, cache)
    if any(columns[name].is_valid is not None for name in ALWAYS_SET):
        return None
    start_ns = columns.pop("start_ns").values
    zeros = np.zeros(len(start_ns), np.int64)
    no_durations = _Column(values=zeros, is_valid=zeros.astype(np.bool_))
    duration_ns, has_duration, _ = columns.pop("duration_ns", no_durations)
    end_ns = start_ns + duration_ns
    if has_duration is not None:  # spans without a duration are open
        end_ns[~has_duration] = FOREVER
    code_columns: dict[str, _Column] = {n: columns.pop(n) for n in WORDS if n in columns}
    word_columns = _build_word_columns(view, footer, code_columns)
    are_known = all(
        {*word_columns[name].vocabulary} <= {*known} for name, known in KNOWN_WORDS.items()
    )
    if not are_known or not are_sane(start_ns, duration_ns):
        return None
    fractions = {name: columns.pop(name).values for name in ("value",) if name in columns}
    numbers = {name: column.values for name, column in columns.items()}
    times = {"start_ns": start_ns, "end_ns": end_ns}
    return Columns(len(start_ns), {**times, **numbers}, word_columns, fractions)


def _check_layouts(layouts: Sequence[Layout]) -> None:
    """Refuse batches that are not laid out as recorders do it."""
    if not layouts:
        raise ValueError("there is no batch")
    for row_count, nodes, buffers, codec in layouts:
        # Each column has a node, its numbers of rows and nulls, and two buffers, its nulls and values.
        has_all_columns = (len(nodes), len(buffers)) == (_COLUMN_COUNT, 2 * _COLUMN_COUNT)
        has_offsets = all(offset >= 0 for offset, _ in buffers)
        has_all_rows = all(rows == row_count and 0 <= nulls <= rows for rows, nulls in nodes)
        is_sound = has_all_columns and has_offsets and has_all_rows
        if codec != ZSTD or row_count < 1 or not is_sound:
            raise ValueError("a batch is not as recorders write it")


def _decode_columns(
    bodies: _Bodies, index_by_name: dict[str, int], cache: BoundedCache
) -> dict[str, _Column]:
    """Return columns of all batches by name; those in the cache are not decoded.

    Ranks of one program have most columns in common, but for times. `bodies` are the layout and the
    bytes of each batch.

    Raises:
        ValueError: a buffer is outside of its batch, or not as long as its rows need.
        OSError: compressed content is damaged.
    """
    key_by_name = {n: _cache_key(bodies, i) for n, i in index_by_name.items() if n not in _TIMES}
    cached = {name: cache.get(_CACHE, key) for name, key in key_by_name.items()}
    columns: dict[str, _Column] = {n: column for n, column in cached.items() if column is not None}
    uncached_indices = {name: i for name, i in index_by_name.items() if name not in columns}
    batches = [_decode_batch(layout, body, uncached_indices) for layout, body in bodies]
    for name in uncached_indices:
        column = columns[name] = _concatenate([batch[name] for batch in batches])
        if name in key_by_name:
            column.values.setflags(write=False)
            cache.put(_CACHE, key_by_name[name], column, len(column.values))
    return columns


def _cache_key(bodies: _Bodies, index: int) -> Hashable:
    """Return all that a column follows from: of each batch its rows, its nulls, its compressed bytes."""
    key: list[Hashable] = [index]
    for layout, body in bodies:
        buffers = layout.buffer_ranges_bytes[2 * index : 2 * index + 2]
        stored_buffers = (bytes(body[offset : offset + size]) for offset, size in buffers)
        key += (layout.row_and_null_counts[index], *stored_buffers)
    return tuple(key)


def _decode_batch(
    layout: Layout, body: memoryview, index_by_name: dict[str, int]
) -> dict[str, _Column]:
    """Decode columns of one batch, given by their indices, and return them by name.

    A column has two buffers: the bits that mark nulls (2 * index), and its numbers (2 * index + 1).
    """
    row_count = layout.row_count
    null_counts = {
        name: layout.row_and_null_counts[index][1] for name, index in index_by_name.items()
    }
    # The largest numbers first, then the bits that mark nulls: so all are aligned.
    present_names = [name for name in index_by_name if null_counts[name] < row_count]
    names = sorted(present_names, key=lambda name: -_DTYPES[name].itemsize)
    nullable_names = [name for name in names if null_counts[name]]
    needed = [(2 * index_by_name[name] + 1, row_count * _DTYPES[name].itemsize) for name in names]
    needed += [(2 * index_by_name[name], -(-row_count // 8)) for name in nullable_names]
    buffers = [(*layout.buffer_ranges_bytes[index], needed_bytes) for index, needed_bytes in needed]
    contents = iter(_decompress(body, buffers))
    values = {name: np.frombuffer(next(contents), _DTYPES[name]) for name in names}
    is_valid = {n: _unpack_valid(next(contents), row_count, null_counts[n]) for n in nullable_names}
    for name in index_by_name.keys() - values.keys():  # all rows are null
        values[name] = np.zeros(row_count, _DTYPES[name])
        is_valid[name] = np.zeros(row_count, np.bool_)
    return {name: _fill_nulls(name, values[name], is_valid.get(name)) for name in index_by_name}


def _decompress(body: memoryview, buffers: Sequence[tuple[int, int, int]]) -> list[memoryview]:
    """Decompress buffers in one call, each given by its offset, its length and the bytes needed of it.

    `offsets` are those of the decompressed buffers in `joined`. Buffers that were stored as they are
    have no part in it: `copies` holds them by their index.
    """
    frames, offsets, copies, total_bytes = [], [], {}, 0
    for index, (offset, stored_bytes, needed_bytes) in enumerate(buffers):
        if offset < 0 or stored_bytes <= _SIZE.size or offset + stored_bytes > len(body):
            raise ValueError("a buffer is outside of its batch")
        content = body[offset + _SIZE.size : offset + stored_bytes]
        (content_bytes,) = _SIZE.unpack_from(body, offset)
        offsets.append(total_bytes)
        if content_bytes == STORED and len(content) >= needed_bytes:
            copies[index] = bytes(content[:needed_bytes])  # as the file may be mapped
        elif content_bytes >= needed_bytes:
            frames.append(content)
            total_bytes += content_bytes
        else:
            raise ValueError("a buffer is not as long as its rows")
    pool = pa.system_memory_pool()  # Arrow's own keeps what it is given back
    joined = memoryview(_ZSTD.decompress(b"".join(frames), total_bytes, memory_pool=pool))
    return [
        memoryview(copies[index]) if index in copies else joined[offset : offset + needed_bytes]
        for index, (offset, (_, _, needed_bytes)) in enumerate(zip(offsets, buffers, strict=True))
    ]


def _unpack_valid(packed_bits: memoryview, row_count: int, null_count: int) -> Flags:
    flags = np.unpackbits(np.frombuffer(packed_bits, np.uint8), count=row_count, bitorder="little")
    is_valid = flags.view(np.bool_)
    if np.count_nonzero(is_valid) != row_count - null_count:
        raise ValueError("a column has other nulls than it says")
    return is_valid


def _fill_nulls(name: str, values: Array, is_valid: Flags | None) -> _Column:
    """Fill nulls of a column, [row]: codes of words with -1, others with what means missing."""
    if name in WORDS:
        codes = fill_invalid(values, is_valid, missing=0)
        if codes.min() < 0:
            raise ValueError("a code stands for no word")
        return _Column(
            fill_invalid(values, is_valid, missing=-1), is_valid, max_code=int(codes.max())
        )
    if is_valid is None and name in _TIMES:
        return _Column(values, is_valid=None)
    null_number = _NULL_OF.get(name, NULL)
    numbers = values.copy() if is_valid is None else fill_invalid(values, is_valid, null_number)
    return _Column(hold_to_range(name, numbers), is_valid)


def _concatenate(columns: Sequence[_Column]) -> _Column:
    """Return one column of those of all batches; `is_valid` stays None if it is so in each."""
    if len(columns) == 1:
        return columns[0]
    is_valid = None
    if any(column.is_valid is not None for column in columns):
        flags = (
            np.ones(len(c.values), np.bool_) if c.is_valid is None else c.is_valid for c in columns
        )
        is_valid = np.concatenate([*flags])
    values = np.concatenate([column.values for column in columns])
    return _Column(values, is_valid, max(column.max_code for column in columns))


def _build_word_columns(
    view: memoryview, footer: Footer, columns: dict[str, _Column]
) -> dict[str, Words]:
    """Return columns of words, all of whose codes are those of words; `columns` are the codes.

    Raises:
        ValueError: a code is not, or there are no words.
        struct.error: a dictionary is damaged.
    """
    ids_of_columns = read_dictionary_ids(view, [_INDEX_OF[name] for name in columns])
    words_by_id: dict[int, tuple[str, ...]] = {}
    for message in footer.dictionary_messages:
        dictionary_id = _read_dictionary_id(bytes(message.read_header(view)))
        if dictionary_id is None or dictionary_id in words_by_id:
            raise ValueError("words are added to others")
        words_by_id[dictionary_id] = ()  # words of columns that are not read
        if dictionary_id in ids_of_columns:
            content = bytes(view[message.offset_bytes : message.end_bytes])
            is_small = len(content) <= MAX_BYTES_OF_CACHED
            read_words = _read_words if is_small else _read_words.__wrapped__
            words_by_id[dictionary_id] = read_words(content, message.header_bytes)
    word_columns = {}
    for (name, column), dictionary_id in zip(columns.items(), ids_of_columns, strict=True):
        vocabulary = words_by_id.get(dictionary_id)
        if vocabulary is None or column.max_code >= len(vocabulary):
            raise ValueError("a code stands for no word")
        word_columns[name] = Words(column.values, vocabulary)
    return word_columns


@lru_cache(MAX_DICTIONARIES_CACHED)
def _read_dictionary_id(header: bytes) -> int | None:
    return read_dictionary_id(memoryview(header))


@lru_cache(MAX_DICTIONARIES_CACHED)
def _read_words(message: bytes, header_bytes: int) -> tuple[str, ...]:
    """Decode the words of a dictionary: the bounds of each, then the text of all.

    Raises:
        struct.error: the header is damaged.
        ValueError: they are no words, or some are null.
        OSError: compressed content is damaged.
    """
    view = memoryview(message)
    layout, body = read_layout(slice_header(view, header_bytes)), view[header_bytes:]
    if (
        layout.row_and_null_counts != [(layout.row_count, 0)]
        or len(layout.buffer_ranges_bytes) != 3
        or layout.codec != ZSTD
    ):
        raise ValueError("it does not hold words alone")
    bounds_buffer, (offset, stored_bytes) = layout.buffer_ranges_bytes[1:]
    if offset < 0:
        raise ValueError("a buffer begins before its message")
    if not stored_bytes:
        return ()
    (content_bytes,) = _SIZE.unpack_from(body, offset)
    content_bytes = stored_bytes - _SIZE.size if content_bytes == STORED else content_bytes
    packed_bounds, text = _decompress(
        body, [(*bounds_buffer, 4 * (layout.row_count + 1)), (offset, stored_bytes, content_bytes)]
    )
    word_bounds = np.frombuffer(packed_bounds, np.int32).tolist()
    if word_bounds[0] != 0 or word_bounds != sorted(word_bounds) or word_bounds[-1] > len(text):
        raise ValueError("words are not where they can be")
    return tuple(str(text[start:end], "utf-8") for start, end in pairwise(word_bounds))

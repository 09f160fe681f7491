"""Reads columns of a recorded file as plain arrays.

For a file of some kilobytes Arrow's reader takes many times as long as what is in it: it makes a
decompressor for each buffer, and reads the dictionaries of all columns. Here all buffers of a batch are
decompressed at once, as frames of zstd that stand one after the other may be, and words are those that
the same bytes stood for in another file.

Only what is laid out as recorders do it is read so, and every length, place and code is looked at
before it is followed. Anything else is left to Arrow's reader (`arrow_file`), which says what is wrong.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tracelens.conversion.layout import STORED, ZSTD, dictionary_ids, dictionary_of, layout_of
from tracelens.conversion.messages import header_in
from tracelens.model.columns import FOREVER, MISSING, NULL, WORDS, Columns, Words
from tracelens.readers.native.arrow_file import checked_footer, content_of, end_of, read_arrow
from tracelens.readers.native.checks import (
    ALWAYS_SET,
    KNOWN_WORDS,
    are_sane,
    repaired_columns,
    usable_columns,
)
from tracelens.readers.native.side_checks import check_side
from tracelens.schema.arrow import EVENT_SCHEMA, FILE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from tracelens.arrays import Array, Flags
    from tracelens.conversion.layout import Layout
    from tracelens.conversion.messages import Footer
    from tracelens.readers.native.arrow_file import Recording
    from tracelens.schema.side import SideTables

__all__ = ["Usable", "read_usable", "usable"]

_SIZE: Final = struct.Struct("<q")  # before each compressed buffer: how long it was
_UNPACKER: Final = pa.Codec("zstd")
_FEW: Final = 256  # dictionaries that are known
_SMALL: Final = 1 << 14  # bytes of one
_COLUMNS: Final = len(FILE_SCHEMA)


class Usable(NamedTuple):
    """The usable events of one process, its side tables, and how many events were left out.

    `cut`: the end of the file is missing, or a part of it is damaged.
    """

    columns: Columns
    side: SideTables
    unusable: int = 0
    cut: bool = False


class _Column(NamedTuple):
    """A column as it is stored, and which rows of it are not null; None = all."""

    values: Array
    valid: Flags | None


def read_usable(
    path: Path, names: Collection[str], window: tuple[int, int] | None = None
) -> Usable:
    """Read columns of one file.

    Args:
        path: The file.
        names: Columns of `EVENT_SCHEMA`, all of `ALWAYS_READ` among them.
        window: A time on the clock of the file: events that are outside need not be there.

    Raises:
        UnusableInput: it is not a trace file, or not one that this version can read.
        OSError: the file system refused.
        ValueError: the contents contradict themselves (`pyarrow.ArrowInvalid` is one).
    """
    if window is None:
        found = _read(path, names)
        if found is not None:
            return found
    return usable(read_arrow(path, names, window))


def usable(recording: Recording) -> Usable:
    """Return the usable events of a recording, which has at least the columns `ALWAYS_READ`.

    Raises:
        NotATrace: its side tables hold what cannot be.
    """
    check_side(recording.side)
    columns, unusable = usable_columns(recording)
    return Usable(columns, recording.side, unusable, recording.cut)


def _read(path: Path, names: Collection[str]) -> Usable | None:
    """Read a file that is whole, as recorders write it, and all of whose rows are usable; else None."""
    content = content_of(path)
    end = end_of(content)
    if end is None or not end.schema.equals(FILE_SCHEMA):
        return None
    footer = checked_footer(content)
    if footer is None:
        return None
    try:
        columns = _columns(memoryview(content), footer, names)
    except (struct.error, ValueError, OSError):
        return None
    if columns is None:
        return None
    check_side(end.side)
    uids = {group.index: group.uid for group in end.side.communicators}
    return Usable(repaired_columns(columns, uids).in_order(), end.side)


def _columns(view: memoryview, footer: Footer, names: Collection[str]) -> Columns | None:
    """Decode columns, of which those that hold nothing are left out; None if a row is not usable.

    Raises:
        struct.error: it is not laid out as recorders do it.
        ValueError: as before, or what is in it is damaged; `OSError` if that cannot be decompressed.
    """
    layouts = [layout_of(batch.header(view)) for batch in footer.batches]
    _check(layouts)
    held = {
        name: place
        for place, name in enumerate(EVENT_SCHEMA.names)
        if name in names and any(layout.nodes[place][1] < layout.rows for layout in layouts)
    }
    stored = {name: _KINDS[name] for name in held}
    parts = [
        _decoded(layout, batch.body(view), {held[name]: kind for name, kind in stored.items()})
        for layout, batch in zip(layouts, footer.batches, strict=True)
    ]
    found = {name: _joined([part[place] for part in parts]) for name, place in held.items()}
    if any(found[name].valid is not None for name in ALWAYS_SET if name in found):
        return None
    start, lengths = found.pop("start_ns").values, np.zeros(1, np.int64)
    ends = np.full(len(start), FOREVER)
    if "duration_ns" in found:
        duration = found.pop("duration_ns")
        lengths = _filled(duration, 0)
        ends = start + lengths
        if duration.valid is not None:
            ends[~duration.valid] = FOREVER
    words = _words(view, footer, {name: found[name] for name in WORDS if name in found}, held)
    told = (name in words and {*words[name].known} <= {*KNOWN_WORDS[name]} for name in KNOWN_WORDS)
    if not all(told) or not are_sane(start, lengths):
        return None
    numbers = {"start_ns": start, "end_ns": ends}
    for name in found.keys() - {*WORDS, "value"}:
        numbers[name] = _filled(found[name], MISSING.get(name, NULL))
    values = {"value": _filled(found["value"], np.nan)} if "value" in found else {}
    return Columns(len(start), numbers, words, values)


_KINDS: Final[dict[str, np.dtype[Any]]] = {
    field.name: np.dtype(
        (
            field.type.index_type if isinstance(field.type, pa.DictionaryType) else field.type
        ).to_pandas_dtype()
    )
    for field in EVENT_SCHEMA
}


def _check(layouts: Sequence[Layout]) -> None:
    """Refuse batches that are not laid out as recorders do it.

    Raises:
        ValueError: one is not, or there is none.
    """
    if not layouts:
        raise ValueError("there is no batch")
    for rows, nodes, buffers, codec in layouts:
        whole = all(length == rows and 0 <= nulls <= rows for length, nulls in nodes)
        counts = (len(nodes), len(buffers))
        if codec != ZSTD or rows < 1 or counts != (_COLUMNS, 2 * _COLUMNS) or not whole:
            raise ValueError("a batch is not as recorders write it")


def _decoded(
    layout: Layout, body: memoryview, kinds: dict[int, np.dtype[Any]]
) -> dict[int, _Column]:
    """Decompress some columns of a batch, by their places.

    Raises:
        ValueError: a buffer is not where it can be, or not as long as its rows need.
        OSError: what is compressed is damaged.
    """
    rows = layout.rows
    bits = -(-rows // 8)
    some = {place: layout.nodes[place][1] for place in kinds}
    # The largest numbers first, then the bits that tell nulls: so all are where they can be used.
    order = sorted(
        (place for place, nulls in some.items() if nulls < rows), key=lambda p: -kinds[p].itemsize
    )
    nullable = [place for place in order if some[place]]
    wanted = [(2 * place + 1, rows * kinds[place].itemsize) for place in order]
    wanted += [(2 * place, bits) for place in nullable]
    buffers = iter(_unpacked(body, [(*layout.buffers[place], size) for place, size in wanted]))
    values = {place: np.frombuffer(next(buffers), kinds[place]) for place in order}
    valid = {place: _valid(next(buffers), rows, some[place]) for place in nullable}
    return {
        place: _Column(values[place], valid.get(place))
        if place in values
        else _Column(np.zeros(rows, kind), np.zeros(rows, np.bool_))
        for place, kind in kinds.items()
    }


def _unpacked(body: memoryview, wanted: Sequence[tuple[int, int, int]]) -> list[memoryview]:
    """Decompress buffers at once, each given by its begin, length and how long it is then."""
    frames, stored, total = [], {}, 0
    for place, (offset, length, size) in enumerate(wanted):
        if offset < 0 or length <= _SIZE.size or offset + length > len(body):
            raise ValueError("a buffer is outside of its batch")
        content = body[offset + _SIZE.size : offset + length]
        (full,) = _SIZE.unpack_from(body, offset)
        if full == STORED and len(content) == size:
            stored[place] = memoryview(bytes(content))  # no longer of the file, which may be mapped
        elif full == size:
            frames.append(content)
            total += size
        else:
            raise ValueError("a buffer is not as long as its rows")
    pool = pa.system_memory_pool()  # Arrow's own keeps what it is given back
    whole = memoryview(_UNPACKER.decompress(b"".join(frames), total, memory_pool=pool))
    found, begin = [], 0
    for place, (_, _, size) in enumerate(wanted):
        if place in stored:
            found.append(stored[place])
        else:
            found.append(whole[begin : begin + size])
            begin += size
    return found


def _valid(packed: memoryview, rows: int, nulls: int) -> Flags:
    flags = np.unpackbits(np.frombuffer(packed, np.uint8), count=rows, bitorder="little")
    valid = flags.view(np.bool_)
    if np.count_nonzero(valid) != rows - nulls:
        raise ValueError("a column has other nulls than it says")
    return valid


def _joined(parts: Sequence[_Column]) -> _Column:
    if len(parts) == 1:
        return parts[0]
    values = np.concatenate([part.values for part in parts])
    if all(part.valid is None for part in parts):
        return _Column(values, None)
    valid = [
        np.ones(len(part.values), np.bool_) if part.valid is None else part.valid for part in parts
    ]
    return _Column(values, np.concatenate(valid))


def _filled(column: _Column, missing: float) -> Array:
    """Return a column of numbers with one where nothing is."""
    values, valid = column
    if valid is None:
        return values
    kind = np.dtype(np.int64) if values.dtype.kind == "u" and missing < 0 else values.dtype
    filled = values.astype(kind)
    np.copyto(filled, missing, where=~valid)
    return filled


def _words(
    view: memoryview, footer: Footer, columns: dict[str, _Column], places: dict[str, int]
) -> dict[str, Words]:
    """Return columns of words, whose codes are sure to be those of words.

    Raises:
        ValueError: one is not, or there are no words.
        struct.error: a dictionary is damaged.
    """
    ids = dictionary_ids(view, [places[name] for name in columns])
    known = {}
    for message in footer.dictionaries:
        content = bytes(view[message.offset : message.end])
        read = _dictionary if len(content) <= _SMALL else _dictionary.__wrapped__
        number, words = read(content, message.header_bytes)
        if number is None or number in known:
            raise ValueError("words are added to others")
        known[number] = words
    found = {}
    for (name, column), number in zip(columns.items(), ids, strict=True):
        words = known.get(number)
        codes = _filled(column, 0) if column.valid is not None else column.values.copy()
        if words is None or codes.min() < 0 or codes.max() >= len(words):
            raise ValueError("a code stands for no word")
        if column.valid is not None:
            np.copyto(codes, -1, where=~column.valid)
        found[name] = Words(codes, words)
    return found


@lru_cache(_FEW)
def _dictionary(content: bytes, header_bytes: int) -> tuple[int | None, tuple[str, ...] | None]:
    """Return the number of a dictionary, and its words; None if these are none, or not only words."""
    view = memoryview(content)
    header = header_in(view, header_bytes)
    try:
        return dictionary_of(header), _texts(header, view[header_bytes:])
    except (struct.error, ValueError, OSError):
        return dictionary_of(header), None


def _texts(header: memoryview, body: memoryview) -> tuple[str, ...]:
    """Decode the words of a dictionary.

    Raises:
        struct.error: the header is damaged.
        ValueError: they are no words, or some are null.
        OSError: what is compressed is damaged.
    """
    layout = layout_of(header)
    if layout.nodes != [(layout.rows, 0)] or len(layout.buffers) != 3 or layout.codec != ZSTD:
        raise ValueError("it does not hold words alone")
    places, (begin, length) = layout.buffers[1:]
    if begin < 0:
        raise ValueError("a buffer begins before its message")
    if not length:
        return ()
    (size,) = _SIZE.unpack_from(body, begin)
    size = length - _SIZE.size if size == STORED else size
    bounds, words = _unpacked(body, [(*places, 4 * (layout.rows + 1)), (begin, length, size)])
    found = np.frombuffer(bounds, np.int32).tolist()
    if found[0] != 0 or found != sorted(found) or found[-1] > len(words):
        raise ValueError("words are not where they can be")
    return tuple(str(words[begin:end], "utf-8") for begin, end in pairwise(found))

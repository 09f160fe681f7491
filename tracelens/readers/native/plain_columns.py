"""Reads columns of a recorded file as plain arrays.

For a file of some kilobytes Arrow's reader takes many times as long as what is in it: it makes a
decompressor for each buffer, and reads the dictionaries of all columns. Here all buffers of a batch are
decompressed at once, as frames of zstd that stand one after the other may be, and columns and words are
those that the same bytes stood for in another file.

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
from tracelens.model.columns import FOREVER, MISSING, NULL, WORDS, Columns, Words, filled
from tracelens.readers.native.arrow_file import checked_footer, content_of, last_schema, read_arrow
from tracelens.readers.native.checks import held_to_range, repaired_columns, usable_columns
from tracelens.readers.native.side_checks import check_side
from tracelens.readers.native.soundness import ALWAYS_SET, KNOWN_WORDS, are_sane
from tracelens.schema.arrow import EVENT_SCHEMA, FILE_SCHEMA
from tracelens.schema.side import SideTables

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Sequence
    from pathlib import Path

    from tracelens.arrays import Array, Flags, Ints
    from tracelens.conversion.layout import Layout
    from tracelens.conversion.messages import Footer
    from tracelens.memory import BoundedCache
    from tracelens.readers.native.arrow_file import Recording

__all__ = ["Usable", "read_usable", "usable"]

_SIZE: Final = struct.Struct("<q")  # before each compressed buffer: how long it was
_UNPACKER: Final = pa.Codec("zstd")
_FEW: Final = 256  # dictionaries that are known
_SMALL: Final = 1 << 14  # bytes of one
_OWN: Final = ("start_ns", "duration_ns")  # which no two processes share
_COLUMNS: Final = len(FILE_SCHEMA)
_DECODED: Final = "decoded columns"  # in the cache


class Usable(NamedTuple):
    """The usable events of one process, its side tables, and how many events were left out, by reason.

    `cut`: the end of the file is missing, or a part of it is damaged.
    """

    columns: Columns
    side: SideTables
    lost: dict[str, int]
    cut: bool = False


class _Column(NamedTuple):
    """A column, with numbers for what is missing; `valid` says which rows are not null, None = all.

    Of words, `most` is the highest code.
    """

    values: Array
    valid: Flags | None
    most: int = -1


def read_usable(
    path: Path,
    names: Collection[str],
    cache: BoundedCache,
    window: tuple[int, int] | None = None,
    side: SideTables | None = None,
) -> Usable:
    """Read columns of one file.

    Args:
        path: The file.
        names: Columns of `EVENT_SCHEMA`, all of `ALWAYS_READ` among them.
        cache: Of the pass over all files: a column that an earlier file has, too, is not decoded again.
        window: A time on the clock of the file: events that are outside need not be there.
        side: The file's side tables, if it was read before.

    Raises:
        UnusableInput: it is not a trace file, or not one that this version can read.
        OSError: the file system refused.
        ValueError: the contents contradict themselves (`pyarrow.ArrowInvalid` is one).
    """
    if window is None:
        found = _read(path, names, cache, side)
        if found is not None:
            return found
    return usable(read_arrow(path, names, window))


def usable(recording: Recording) -> Usable:
    """Return the usable events of a recording, which has at least the columns `ALWAYS_READ`.

    Raises:
        NotATrace: its side tables hold what cannot be.
    """
    check_side(recording.side)
    columns, lost = usable_columns(recording)
    return Usable(columns, recording.side, lost, recording.cut)


def _read(
    path: Path, names: Collection[str], cache: BoundedCache, side: SideTables | None
) -> Usable | None:
    """Read a file that is whole, as recorders write it, and all of whose rows are usable; else None."""
    content = content_of(path)
    schema = last_schema(content)
    if schema is None or not schema.equals(FILE_SCHEMA):
        return None
    footer = checked_footer(content)
    if footer is None:
        return None
    try:
        columns = _columns(memoryview(content), footer, names, cache)
    except (struct.error, ValueError, OSError):
        return None
    if columns is None:
        return None
    if side is None:
        side = SideTables.from_metadata(schema.metadata, is_checked=True)
        check_side(side)
    uids = {group.index: group.uid for group in side.communicators}
    return Usable(repaired_columns(columns, uids, cache).in_order(), side, {})


def _columns(
    view: memoryview, footer: Footer, names: Collection[str], cache: BoundedCache
) -> Columns | None:
    """Decode columns, of which those that hold nothing are left out; None if a row is not usable.

    Raises:
        struct.error: it is not laid out as recorders do it.
        ValueError: as before, or what is in it is damaged; `OSError` if that cannot be decompressed.
    """
    layouts = [layout_of(batch.header(view)) for batch in footer.batches]
    _check(layouts)
    absent = set.intersection(*map(_absent, layouts))
    held = {n: place for n, place in _PLACES.items() if n in names and place not in absent}
    if not held.keys() >= {*ALWAYS_SET}:
        return None
    bodies = [
        (layout, batch.body(view)) for layout, batch in zip(layouts, footer.batches, strict=True)
    ]
    found = _held(bodies, held, cache)
    if any(found[name].valid is not None for name in ALWAYS_SET):
        return None
    start = found.pop("start_ns").values
    lengths, ends = _lengths_and_ends(start, found.pop("duration_ns", None))
    words = _words(view, footer, {name: found.pop(name) for name in WORDS if name in found}, held)
    ours = ({*words[name].known} <= {*known} for name, known in KNOWN_WORDS.items())
    if not all(ours) or not are_sane(start, lengths):
        return None
    values = {name: found.pop(name).values for name in ("value",) if name in found}
    numbers = {name: column.values for name, column in found.items()}
    return Columns(len(start), {"start_ns": start, "end_ns": ends, **numbers}, words, values)


def _lengths_and_ends(start: Ints, lasted: _Column | None) -> tuple[Ints, Ints]:
    """Return how long spans lasted and when they ended; those without a length are open."""
    if lasted is None:
        return np.zeros(1, np.int64), np.full(len(start), FOREVER)
    ends = start + lasted.values
    if lasted.valid is not None:
        ends[~lasted.valid] = FOREVER
    return lasted.values, ends


_PLACES: Final = {name: place for place, name in enumerate(EVENT_SCHEMA.names)}
_KINDS: Final[dict[str, np.dtype[Any]]] = {
    field.name: np.dtype(
        (
            field.type.index_type if isinstance(field.type, pa.DictionaryType) else field.type
        ).to_pandas_dtype()
    )
    for field in EVENT_SCHEMA
}


def _absent(layout: Layout) -> set[int]:
    return {place for place, (_, nulls) in enumerate(layout.nodes) if nulls == layout.rows}


def _check(layouts: Sequence[Layout]) -> None:
    """Refuse batches that are not laid out as recorders do it.

    Raises:
        ValueError: one is not, or there is none.
    """
    if not layouts:
        raise ValueError("there is no batch")
    for rows, nodes, buffers, codec in layouts:
        counts = (len(nodes), len(buffers))
        if codec != ZSTD or rows < 1 or counts != (_COLUMNS, 2 * _COLUMNS) or min(buffers)[0] < 0:
            raise ValueError("a batch is not as recorders write it")
        if not all(length == rows and 0 <= nulls <= rows for length, nulls in nodes):
            raise ValueError("a batch is not as recorders write it")


def _held(
    bodies: Sequence[tuple[Layout, memoryview]], places: dict[str, int], cache: BoundedCache
) -> dict[str, _Column]:
    """Return some columns of all batches, given by their places; those in the cache are not decoded.

    Raises:
        ValueError: a buffer is not where it can be, or not as long as its rows need.
        OSError: what is compressed is damaged.
    """
    keys = {name: _packed(bodies, at) for name, at in places.items() if name not in _OWN}
    # Ranks of one program have most columns in common, but for times.
    known = {name: cache.get(_DECODED, key) for name, key in keys.items()}
    found: dict[str, _Column] = {n: column for n, column in known.items() if column is not None}
    fresh = {name: at for name, at in places.items() if name not in found}
    parts = [_decoded(layout, body, fresh) for layout, body in bodies]
    for name in fresh:
        column = found[name] = _joined([part[name] for part in parts])
        if name in keys:
            column.values.setflags(write=False)
            cache.put(_DECODED, keys[name], column, len(column.values))
    return found


def _packed(bodies: Sequence[tuple[Layout, memoryview]], at: int) -> Hashable:
    """Return what a column follows from: of each batch its rows, its nulls and what was compressed."""
    key: list[Hashable] = [at]
    for layout, body in bodies:
        (valid, few), (begin, length) = layout.buffers[2 * at : 2 * at + 2]
        key += (
            layout.nodes[at],
            bytes(body[valid : valid + few]),
            bytes(body[begin : begin + length]),
        )
    return tuple(key)


def _decoded(layout: Layout, body: memoryview, places: dict[str, int]) -> dict[str, _Column]:
    rows = layout.rows
    nulls = {name: layout.nodes[at][1] for name, at in places.items()}
    # The largest numbers first, then the bits that tell nulls: so all are where they can be used.
    order = sorted((n for n in places if nulls[n] < rows), key=lambda n: -_KINDS[n].itemsize)
    nullable = [name for name in order if nulls[name]]
    wanted = [(2 * places[name] + 1, rows * _KINDS[name].itemsize) for name in order]
    wanted += [(2 * places[name], -(-rows // 8)) for name in nullable]
    buffers = iter(_unpacked(body, [(*layout.buffers[at], size) for at, size in wanted]))
    values = {name: np.frombuffer(next(buffers), _KINDS[name]) for name in order}
    valid = {name: _valid(next(buffers), rows, nulls[name]) for name in nullable}
    for name in places.keys() - values.keys():
        values[name], valid[name] = np.zeros(rows, _KINDS[name]), np.zeros(rows, np.bool_)
    return {name: _filled(name, values[name], valid.get(name)) for name in places}


def _unpacked(body: memoryview, wanted: Sequence[tuple[int, int, int]]) -> list[memoryview]:
    """Decompress buffers at once, each given by its begin, its length and the bytes that are needed."""
    frames, begins, stored, total = [], [], {}, 0
    for place, (offset, length, size) in enumerate(wanted):
        if offset < 0 or length <= _SIZE.size or offset + length > len(body):
            raise ValueError("a buffer is outside of its batch")
        content = body[offset + _SIZE.size : offset + length]
        (full,) = _SIZE.unpack_from(body, offset)
        begins.append(total)
        if full == STORED and len(content) >= size:
            stored[place] = bytes(content[:size])  # no longer of the file, which may be mapped
        elif full >= size:
            frames.append(content)
            total += full
        else:
            raise ValueError("a buffer is not as long as its rows")
    pool = pa.system_memory_pool()  # Arrow's own keeps what it is given back
    whole = memoryview(_UNPACKER.decompress(b"".join(frames), total, memory_pool=pool))
    return [
        memoryview(stored[place]) if place in stored else whole[begin : begin + size]
        for place, (begin, (_, _, size)) in enumerate(zip(begins, wanted, strict=True))
    ]


def _valid(packed: memoryview, rows: int, nulls: int) -> Flags:
    flags = np.unpackbits(np.frombuffer(packed, np.uint8), count=rows, bitorder="little")
    valid = flags.view(np.bool_)
    if np.count_nonzero(valid) != rows - nulls:
        raise ValueError("a column has other nulls than it says")
    return valid


def _filled(name: str, values: Array, valid: Flags | None) -> _Column:
    """Put numbers where nothing is.

    Raises:
        ValueError: a code is none.
    """
    if name in WORDS:
        codes = filled(values, valid, 0)
        if codes.min() < 0:
            raise ValueError("a code stands for no word")
        return _Column(filled(values, valid, -1), valid, int(codes.max()))
    if valid is None and name in _OWN:
        return _Column(values, None)
    found = values.copy() if valid is None else filled(values, valid, _MISSING.get(name, NULL))
    return _Column(held_to_range(name, found), valid)


_MISSING: Final[dict[str, float]] = {**MISSING, "duration_ns": 0, "value": np.nan}


def _joined(parts: Sequence[_Column]) -> _Column:
    if len(parts) == 1:
        return parts[0]
    valid = None
    if any(part.valid is not None for part in parts):
        every = (np.ones(len(p.values), np.bool_) if p.valid is None else p.valid for p in parts)
        valid = np.concatenate([*every])
    values = np.concatenate([part.values for part in parts])
    return _Column(values, valid, max(part.most for part in parts))


def _words(
    view: memoryview, footer: Footer, columns: dict[str, _Column], places: dict[str, int]
) -> dict[str, Words]:
    """Return columns of words, whose codes are sure to be those of words.

    Raises:
        ValueError: one is not, or there are no words.
        struct.error: a dictionary is damaged.
    """
    ids = dictionary_ids(view, [places[name] for name in columns])
    known: dict[int, tuple[str, ...] | None] = {}
    for message in footer.dictionaries:
        number = _number_of(bytes(message.header(view)))
        if number is None or number in known:
            raise ValueError("words are added to others")
        if number in ids:
            content = bytes(view[message.offset : message.end])
            read = _texts if len(content) <= _SMALL else _texts.__wrapped__
            known[number] = read(content, message.header_bytes)
        else:
            known[number] = None
    found = {}
    for (name, column), number in zip(columns.items(), ids, strict=True):
        words = known.get(number)
        if words is None or column.most >= len(words):
            raise ValueError("a code stands for no word")
        found[name] = Words(column.values, words)
    return found


@lru_cache(_FEW)
def _number_of(header: bytes) -> int | None:
    return dictionary_of(memoryview(header))


@lru_cache(_FEW)
def _texts(message: bytes, header_bytes: int) -> tuple[str, ...]:
    """Decode the words of a dictionary.

    Raises:
        struct.error: the header is damaged.
        ValueError: they are no words, or some are null.
        OSError: what is compressed is damaged.
    """
    view = memoryview(message)
    layout, body = layout_of(header_in(view, header_bytes)), view[header_bytes:]
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

"""Places and checksums of an Arrow file's messages: right where it is whole, refused where it lies."""

import io
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from tracelens.conversion.flatbuffers import byte, field, follow, number, records, root, text
from tracelens.conversion.layout import (
    MAX_GROWTH,
    STORED,
    ZSTD,
    Growth,
    absent_columns,
    declared_bytes,
    dictionary_ids,
    dictionary_of,
    layout_of,
)
from tracelens.conversion.messages import (
    BATCH,
    CHECKSUM_KEY,
    DICTIONARY,
    END,
    LEAD,
    NO_CHECKSUM,
    Message,
    add_blocks_to_footer,
    checksum_holds,
    fill_in_checksum,
    footer_content,
    footer_of,
    messages,
)
from tracelens.errors import NotATrace

Codec = Literal["zstd", "lz4"] | None
WORDS = pa.array(["one", "two", "one"]).dictionary_encode()
OTHERS = pa.array([None, "x" * 40, None]).dictionary_encode()
TABLE = pa.table(
    {
        "number": pa.array([1, None, 3]),
        "word": WORDS,
        "nothing": pa.nulls(3, pa.int32()),
        "other": OTHERS,
    }
)
SIGNED = {CHECKSUM_KEY: NO_CHECKSUM}


def write_file(
    metadata: dict[bytes, bytes] | None = None,
    codec: Codec = None,
    batches: int = 2,
) -> bytearray:
    """Write a file as Arrow does; what goes with each batch is `metadata`."""
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_file(sink, TABLE.schema, options=options) as file:
        for _ in range(batches):
            for batch in TABLE.to_batches():
                file.write_batch(batch, custom_metadata=metadata)
    return bytearray(sink.getvalue())


WHOLE = bytes(write_file(SIGNED))
VIEW = memoryview(WHOLE)
FOUND = list(messages(VIEW))


def with_footer(found: list[Message]) -> memoryview:
    """Return the file with a footer that names these."""
    footer = add_blocks_to_footer(bytes(footer_content(VIEW)), found)
    body = WHOLE[: footer_of(VIEW).begin]
    return memoryview(body + footer + struct.pack("<i", len(footer)) + b"ARROW1")


def test_the_footer_names_what_is_there() -> None:
    footer = footer_of(VIEW)
    places = {message.offset: message[2:] for message in FOUND}
    for named in (*footer.dictionaries, *footer.batches):
        assert places[named.offset] == named[2:]
    assert [m.kind for m in FOUND] == [1, DICTIONARY, DICTIONARY, BATCH, BATCH]
    assert footer.begin == len(WHOLE) - 10 - len(footer_content(VIEW))
    assert WHOLE[FOUND[-1].end : footer.begin] == END


BATCH_PLACE = FOUND[-1]
LIES: dict[str, dict[str, int]] = {
    "in the first bytes": {"offset": len(LEAD) - 1},
    "before the file": {"offset": -8},
    "no room for a header": {"header_bytes": 7},
    "negative body": {"body_bytes": -1, "header_bytes": 8},
    "into the footer": {"body_bytes": footer_of(VIEW).begin - BATCH_PLACE.offset - 8 + 1},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_footer_that_leads_elsewhere(lie: str) -> None:
    wrong = BATCH_PLACE._replace(**({"header_bytes": 8} | LIES[lie]))
    for named in ([wrong], [FOUND[-2], wrong]):
        with pytest.raises(struct.error, match="outside of the file"):
            footer_of(with_footer([*FOUND[:3], *named]))


def test_a_footer_that_leads_to_the_very_ends() -> None:
    """Places are right that begin with the first message or end where the footer begins."""
    begin = footer_of(VIEW).begin
    edge = BATCH_PLACE._replace(offset=len(LEAD), header_bytes=8, body_bytes=begin - len(LEAD) - 8)
    assert footer_of(with_footer([edge])).batches == [edge]


@pytest.mark.parametrize("content", [b"", b"ARROW1", b"\0\0\0\0ARROW1", b"\1\0\0\0ARROW1"])
def test_a_file_without_a_footer_is_refused(content: bytes) -> None:
    with pytest.raises(struct.error, match="footer"):
        footer_of(memoryview(content))


def test_a_footer_as_long_as_the_file() -> None:
    assert bytes(footer_content(memoryview(b"abc\3\0\0\0ARROW1"))) == b"abc"
    for size in (4, 0, -1):
        with pytest.raises(struct.error, match="no footer"):
            footer_content(memoryview(b"abc" + struct.pack("<i", size) + b"ARROW1"))
    with pytest.raises(struct.error, match="no footer"):
        footer_content(memoryview(b"abc\3\0\0\0ARROW2"))


def test_cut_off_anywhere() -> None:
    """Messages are those that are whole; the one that is not is an error."""
    ends = [len(LEAD), *(message.end for message in FOUND)]
    for length in range(len(LEAD), FOUND[-1].end + 1):
        whole_messages = []
        try:
            for message in messages(VIEW[:length]):
                whole_messages.append(message)  # noqa: PERF402 - what is whole counts
        except struct.error:
            assert length not in ends
        else:
            assert length in ends
        assert whole_messages == [message for message in FOUND if message.end <= length]


def test_what_is_no_message() -> None:
    """It begins otherwise, or ends before its header."""
    content = bytearray(WHOLE)
    content[FOUND[1].offset] = 0
    with pytest.raises(struct.error, match="does not begin as one"):
        list(messages(memoryview(content)))
    content = bytearray(WHOLE)
    message = FOUND[1]
    header = bytes(message.header(VIEW))
    length = struct.pack("<q", message.body_bytes)
    assert header.count(length) == 1
    length_offset = message.offset + 8 + header.index(length)
    content[length_offset : length_offset + 8] = struct.pack("<q", -8)
    with pytest.raises(struct.error, match="cut off"):
        list(messages(memoryview(content)))


@pytest.mark.parametrize("size", range(9))
def test_vectors_are_aligned(size: int) -> None:
    """Places are structures of eight bytes each, which other readers read as such."""
    sink = io.BytesIO()
    pa.ipc.new_file(sink, TABLE.schema.with_metadata({"k": "v" * size})).close()
    footer = add_blocks_to_footer(bytes(footer_content(memoryview(sink.getvalue()))), FOUND)
    view = memoryview(footer)
    for index, count in ((2, 2), (3, 2)):
        at = field(view, root(view), index)
        assert at is not None
        vector = follow(view, at)
        assert (vector + 4) % 8 == 0
        assert struct.unpack_from("<I", view, vector) == (count,)


def test_of_one_dictionary_the_last_counts() -> None:
    again = FOUND[1]._replace(offset=FOUND[2].offset)
    found = footer_of(with_footer([*FOUND[:3], again, FOUND[4], FOUND[3]]))
    assert [place.offset for place in found.dictionaries] == [FOUND[2].offset] * 2
    assert [place.offset for place in found.batches] == [FOUND[4].offset, FOUND[3].offset]


def test_checksum_is_that_of_zlib() -> None:
    """Over all that is before the batch, too, with zeros in its own place; any change is noticed."""
    region = bytearray(WHOLE[len(LEAD) : FOUND[3].end])
    expected = zlib.crc32(region)
    fill_in_checksum(memoryview(region))
    assert region.count(b"%08x" % expected) == 1
    content = memoryview(bytearray(LEAD + region + WHOLE[FOUND[3].end :]))
    assert checksum_holds(content, len(LEAD), FOUND[3])
    assert checksum_holds(content, FOUND[3].end, FOUND[4]) is False  # it was not filled in
    for offset in [*range(len(LEAD), FOUND[3].offset), *range(FOUND[3].end - 80, FOUND[3].end)]:
        content[offset] ^= 1
        assert checksum_holds(content, len(LEAD), FOUND[3]) is False
        content[offset] ^= 1
    offset = bytes(content).index(b"%08x" % expected)
    for digit in range(offset, offset + 8):
        content[digit] ^= 1
        assert checksum_holds(content, len(LEAD), FOUND[3]) is False
        content[digit] ^= 1


@pytest.mark.parametrize(
    ("metadata", "has"),
    [
        (None, False),
        ({b"other": b"12345678"}, False),
        ({CHECKSUM_KEY: b"0000000"}, False),
        ({CHECKSUM_KEY: b"000000000"}, False),
        ({b"a": NO_CHECKSUM, CHECKSUM_KEY: NO_CHECKSUM, b"z": b"1"}, True),
        ({CHECKSUM_KEY: NO_CHECKSUM, b"z": b"1"}, True),
    ],
)
def test_a_place_for_a_checksum(metadata: dict[bytes, bytes] | None, *, has: bool) -> None:
    content = write_file(metadata, batches=1)
    found_messages = list(messages(memoryview(content)))
    region = memoryview(content[len(LEAD) : found_messages[-1].end])
    if has:
        fill_in_checksum(region)
        assert checksum_holds(
            memoryview(bytes(LEAD) + bytes(region)), len(LEAD), found_messages[-1]
        )
        return
    assert checksum_holds(memoryview(content), len(LEAD), found_messages[-1]) is None
    with pytest.raises(struct.error, match="no place"):
        fill_in_checksum(region)


def test_only_batches_have_a_checksum() -> None:
    content = bytearray(WHOLE[len(LEAD) : FOUND[2].end])
    with pytest.raises(struct.error, match="no place"):
        fill_in_checksum(memoryview(content))


def looks(content: memoryview) -> list[Callable[[], Any]]:
    """Return all that is read of a file's places."""
    lookups: list[Callable[[], Any]] = [
        partial(footer_of, content),
        partial(dictionary_ids, content, (1, 3)),
        lambda: list(messages(content)),
    ]
    for message in FOUND:
        header = message.header(content)
        lookups += [
            partial(layout_of, header),
            partial(absent_columns, header, 4),
            partial(dictionary_of, header),
            partial(declared_bytes, header, message.body(content)),
            partial(checksum_holds, content, len(LEAD), message),
        ]
    return lookups


@pytest.mark.parametrize("wrong", [0x00, 0x7F, 0xFF])
def test_wrong_distances_are_one_kind_of_error(wrong: int) -> None:
    """Whatever byte of headers or of the footer is wrong."""
    footer_begin = footer_of(VIEW).begin
    header_offsets = [at for m in FOUND[1:4] for at in range(m.offset, m.offset + m.header_bytes)]
    content = bytearray(WHOLE)
    view = memoryview(content)
    for offset in [*header_offsets, *range(footer_begin, len(WHOLE), 2)]:
        previous_byte, content[offset] = content[offset], wrong
        for look in looks(view):
            with suppress(struct.error):
                look()
        content[offset] = previous_byte


TABLE_AT = 12
FLAT = (
    struct.pack("<I", TABLE_AT)
    + struct.pack("<HHHH", 8, 12, 4, 8)  # how long this and the table are, and where two fields are
    + struct.pack("<iII", 8, 8, 12)
    + struct.pack("<Ihh", 2, 5, 6)
    + struct.pack("<I", 3)
    + b"abc"
)
PAIR = struct.Struct("<h")


def test_lists_and_texts_that_are_cut_off() -> None:
    """To the byte; what is missing is empty."""
    view = memoryview(FLAT)
    assert root(view) == TABLE_AT
    assert records(view[:32], TABLE_AT, 0, PAIR) == [(5,), (6,)]
    assert bytes(view[slice(*text(view, TABLE_AT, 1))]) == b"abc"
    assert records(view, TABLE_AT, 2, PAIR) == []
    assert text(view, TABLE_AT, 2) == (0, 0)
    with pytest.raises(struct.error, match="list is cut off"):
        records(view[:31], TABLE_AT, 0, PAIR)
    with pytest.raises(struct.error, match="text is cut off"):
        text(view[:-1], TABLE_AT, 1)


def test_missing_fields_of_a_table_have_no_offset() -> None:
    """One may be missing by being left out, or at the end; a header is never before the buffer."""
    view = memoryview(FLAT)
    assert [field(view, TABLE_AT, index) for index in range(4)] == [16, 20, None, None]
    left_out = bytearray(FLAT)
    left_out[8:10] = bytes(2)
    assert field(memoryview(left_out), TABLE_AT, 0) is None
    assert (number(memoryview(left_out), TABLE_AT, 0), byte(view, TABLE_AT, 3)) == (0, 0)
    assert number(view, TABLE_AT, 0) == 8 + (12 << 32)
    assert byte(view, TABLE_AT, 1) == 12
    for back, right in ((TABLE_AT, True), (TABLE_AT + 1, False)):
        content = bytearray(FLAT)
        content[12:16] = struct.pack("<i", back)
        content[0:4] = struct.pack("<HH", 6, 0)
        if right:
            assert field(memoryview(content), TABLE_AT, 0) == TABLE_AT + 8
        else:
            with pytest.raises(struct.error, match="before its header"):
                field(memoryview(content), TABLE_AT, 0)


def headers(codec: Codec) -> list[tuple[memoryview, memoryview]]:
    content = memoryview(bytes(write_file(codec=codec)))
    return [(message.header(content), message.body(content)) for message in messages(content)]


@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
def test_layout_gives_rows_nulls_and_buffers_of_each_column(codec: Codec) -> None:
    (schema, _), *dictionaries, (batch_header, _), _ = headers(codec)
    layout = layout_of(batch_header)
    assert (layout.rows, layout.nodes) == (3, [(3, 1), (3, 0), (3, 3), (3, 2)])
    assert layout.codec == {None: None, "zstd": ZSTD, "lz4": 0}[codec]
    assert len(layout.buffers) == 8
    assert [layout_of(header).rows for header, _ in dictionaries] == [2, 1]
    with pytest.raises(struct.error, match="no batch"):
        layout_of(schema)
    assert absent_columns(batch_header, 4) == {2}
    assert absent_columns(batch_header, 3) == absent_columns(schema, 4) == set()


_CODECS: tuple[Codec, ...] = (None, "zstd")


def test_as_much_as_without_compression() -> None:
    """What a message claims to hold does not depend on how it was written; a schema holds nothing."""
    plain, packed = ([declared_bytes(*one) for one in headers(codec)] for codec in _CODECS)
    assert plain == packed
    assert plain[0] == 0
    assert all(size > 0 for size in plain[1:])
    (header, body) = headers("zstd")[-1]
    (at, length) = next(place for place in layout_of(header).buffers if place[1])
    assert struct.unpack_from("<q", body, at) in {(STORED,), (length - 8,), (24,), (1,)}


def test_unpacked_bytes_are_limited_over_all_messages() -> None:
    """To the byte, over all messages of a file; a damaged one ends the count."""
    total = sum(declared_bytes(m.header(VIEW), m.body(VIEW)) for m in FOUND)
    for allowed, right in ((total, True), (total - 1, False)):
        growth = Growth(0, min_allowance=allowed)
        if right:
            growth.add_all(VIEW)
            growth.add_all(VIEW[: FOUND[0].end + 4])
            with pytest.raises(NotATrace):
                growth.add_all(VIEW)
        else:
            with pytest.raises(NotATrace, match=f"0 bytes would become more than {allowed} "):
                growth.add_all(VIEW)


def test_growth_is_limited_in_proportion() -> None:
    """Of a file that is not tiny."""
    total = sum(declared_bytes(m.header(VIEW), m.body(VIEW)) for m in FOUND)
    Growth(total, min_allowance=0, max_growth=1).add_all(VIEW)
    with pytest.raises(NotATrace):
        Growth(total - 1, min_allowance=0, max_growth=1).add_all(VIEW)


def test_dictionaries_are_assigned_to_their_columns() -> None:
    """The footer says which column has which words; what only adds words is not all of them."""
    ids = dictionary_ids(VIEW, (3, 1))
    assert [message.dictionary for message in FOUND[1:3]] == sorted(ids)
    assert [dictionary_of(message.header(VIEW)) for message in FOUND[1:3]] == sorted(ids)
    assert len({*ids}) == 2
    with pytest.raises(struct.error, match="no dictionary"):
        dictionary_ids(VIEW, (0,))
    further_words = pa.DictionaryArray.from_arrays(
        pa.array([0, 2], pa.int32()), ["one", "two", "three"]
    )
    sink = io.BytesIO()
    batch = pa.record_batch({"word": WORDS})
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
        stream.write_batch(pa.record_batch({"word": further_words}))
    content = memoryview(sink.getvalue())
    found = [m for m in messages(content, 0) if m.kind == DICTIONARY]
    assert [dictionary_of(m.header(content)) for m in found] == [0, None]


def test_tiny_files_may_grow_more() -> None:
    """A short recording of events that are alike is no bomb."""
    sink = io.BytesIO()
    table = pa.table({"number": pa.array(np.zeros(500_000, np.int64))})
    with pa.ipc.new_file(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as file:
        file.write_table(table)
    content = memoryview(sink.getvalue())
    assert len(content) * MAX_GROWTH < table.nbytes
    Growth(len(content)).add_all(content)

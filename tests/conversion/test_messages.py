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

from tracelens.conversion.flatbuffers import (
    find_field,
    find_root,
    find_text,
    follow_offset,
    read_byte,
    read_number,
    read_structs,
)
from tracelens.conversion.layout import (
    MAX_GROWTH,
    STORED,
    ZSTD,
    GrowthLimit,
    find_absent_columns,
    read_dictionary_id,
    read_dictionary_ids,
    read_layout,
    sum_declared_bytes,
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
    fill_in_checksum,
    get_footer,
    has_sound_checksum,
    iterate_messages,
    read_footer,
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
FOUND = list(iterate_messages(VIEW))


def with_footer(found: list[Message]) -> memoryview:
    """Return the file with a footer that names these."""
    footer = add_blocks_to_footer(bytes(get_footer(VIEW)), found)
    body = WHOLE[: read_footer(VIEW).begin_bytes]
    return memoryview(body + footer + struct.pack("<i", len(footer)) + b"ARROW1")


def test_the_footer_names_what_is_there() -> None:
    footer = read_footer(VIEW)
    places = {message.offset_bytes: message[2:] for message in FOUND}
    for named in (*footer.dictionary_messages, *footer.batch_messages):
        assert places[named.offset_bytes] == named[2:]
    assert [m.kind for m in FOUND] == [1, DICTIONARY, DICTIONARY, BATCH, BATCH]
    assert footer.begin_bytes == len(WHOLE) - 10 - len(get_footer(VIEW))
    assert WHOLE[FOUND[-1].end_bytes : footer.begin_bytes] == END


BATCH_PLACE = FOUND[-1]
LIES: dict[str, dict[str, int]] = {
    "in the first bytes": {"offset_bytes": len(LEAD) - 1},
    "before the file": {"offset_bytes": -8},
    "no room for a header": {"header_bytes": 7},
    "negative body": {"body_bytes": -1, "header_bytes": 8},
    "into the footer": {
        "body_bytes": read_footer(VIEW).begin_bytes - BATCH_PLACE.offset_bytes - 8 + 1
    },
}


@pytest.mark.parametrize("lie", LIES)
def test_a_footer_that_leads_elsewhere(lie: str) -> None:
    wrong = BATCH_PLACE._replace(**({"header_bytes": 8} | LIES[lie]))
    for named in ([wrong], [FOUND[-2], wrong]):
        with pytest.raises(struct.error, match="outside of the file"):
            read_footer(with_footer([*FOUND[:3], *named]))


def test_a_footer_that_leads_to_the_very_ends() -> None:
    """Places are right that begin with the first message or end where the footer begins."""
    begin = read_footer(VIEW).begin_bytes
    edge = BATCH_PLACE._replace(
        offset_bytes=len(LEAD), header_bytes=8, body_bytes=begin - len(LEAD) - 8
    )
    assert read_footer(with_footer([edge])).batch_messages == [edge]


@pytest.mark.parametrize("content", [b"", b"ARROW1", b"\0\0\0\0ARROW1", b"\1\0\0\0ARROW1"])
def test_a_file_without_a_footer_is_refused(content: bytes) -> None:
    with pytest.raises(struct.error, match="footer"):
        read_footer(memoryview(content))


def test_a_footer_as_long_as_the_file() -> None:
    assert bytes(get_footer(memoryview(b"abc\3\0\0\0ARROW1"))) == b"abc"
    for size in (4, 0, -1):
        with pytest.raises(struct.error, match="no footer"):
            get_footer(memoryview(b"abc" + struct.pack("<i", size) + b"ARROW1"))
    with pytest.raises(struct.error, match="no footer"):
        get_footer(memoryview(b"abc\3\0\0\0ARROW2"))


def test_cut_off_anywhere() -> None:
    """Messages are those that are whole; the one that is not is an error."""
    ends = [len(LEAD), *(message.end_bytes for message in FOUND)]
    for length in range(len(LEAD), FOUND[-1].end_bytes + 1):
        whole_messages = []
        try:
            for message in iterate_messages(VIEW[:length]):
                whole_messages.append(message)  # noqa: PERF402 - what is whole counts
        except struct.error:
            assert length not in ends
        else:
            assert length in ends
        assert whole_messages == [message for message in FOUND if message.end_bytes <= length]


def test_what_is_no_message() -> None:
    """It begins otherwise, or ends before its header."""
    content = bytearray(WHOLE)
    content[FOUND[1].offset_bytes] = 0
    with pytest.raises(struct.error, match="does not begin as one"):
        list(iterate_messages(memoryview(content)))
    content = bytearray(WHOLE)
    message = FOUND[1]
    header = bytes(message.read_header(VIEW))
    length = struct.pack("<q", message.body_bytes)
    assert header.count(length) == 1
    length_offset = message.offset_bytes + 8 + header.index(length)
    content[length_offset : length_offset + 8] = struct.pack("<q", -8)
    with pytest.raises(struct.error, match="cut off"):
        list(iterate_messages(memoryview(content)))


@pytest.mark.parametrize("size", range(9))
def test_vectors_are_aligned(size: int) -> None:
    """Places are structures of eight bytes each, which other readers read as such."""
    sink = io.BytesIO()
    pa.ipc.new_file(sink, TABLE.schema.with_metadata({"k": "v" * size})).close()
    footer = add_blocks_to_footer(bytes(get_footer(memoryview(sink.getvalue()))), FOUND)
    view = memoryview(footer)
    for index, count in ((2, 2), (3, 2)):
        at = find_field(view, find_root(view), index)
        assert at is not None
        vector = follow_offset(view, at)
        assert (vector + 4) % 8 == 0
        assert struct.unpack_from("<I", view, vector) == (count,)


def test_of_one_dictionary_the_last_counts() -> None:
    again = FOUND[1]._replace(offset_bytes=FOUND[2].offset_bytes)
    found = read_footer(with_footer([*FOUND[:3], again, FOUND[4], FOUND[3]]))
    assert [place.offset_bytes for place in found.dictionary_messages] == [
        FOUND[2].offset_bytes
    ] * 2
    assert [place.offset_bytes for place in found.batch_messages] == [
        FOUND[4].offset_bytes,
        FOUND[3].offset_bytes,
    ]


def test_checksum_is_that_of_zlib() -> None:
    """Over all that is before the batch, too, with zeros in its own place; any change is noticed."""
    region = bytearray(WHOLE[len(LEAD) : FOUND[3].end_bytes])
    expected = zlib.crc32(region)
    fill_in_checksum(memoryview(region))
    assert region.count(b"%08x" % expected) == 1
    content = memoryview(bytearray(LEAD + region + WHOLE[FOUND[3].end_bytes :]))
    assert has_sound_checksum(content, len(LEAD), FOUND[3])
    assert (
        has_sound_checksum(content, FOUND[3].end_bytes, FOUND[4]) is False
    )  # it was not filled in
    for offset in [
        *range(len(LEAD), FOUND[3].offset_bytes),
        *range(FOUND[3].end_bytes - 80, FOUND[3].end_bytes),
    ]:
        content[offset] ^= 1
        assert has_sound_checksum(content, len(LEAD), FOUND[3]) is False
        content[offset] ^= 1
    offset = bytes(content).index(b"%08x" % expected)
    for digit in range(offset, offset + 8):
        content[digit] ^= 1
        assert has_sound_checksum(content, len(LEAD), FOUND[3]) is False
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
    found_messages = list(iterate_messages(memoryview(content)))
    region = memoryview(content[len(LEAD) : found_messages[-1].end_bytes])
    if has:
        fill_in_checksum(region)
        assert has_sound_checksum(
            memoryview(bytes(LEAD) + bytes(region)), len(LEAD), found_messages[-1]
        )
        return
    assert has_sound_checksum(memoryview(content), len(LEAD), found_messages[-1]) is None
    with pytest.raises(struct.error, match="no place"):
        fill_in_checksum(region)


def test_only_batches_have_a_checksum() -> None:
    content = bytearray(WHOLE[len(LEAD) : FOUND[2].end_bytes])
    with pytest.raises(struct.error, match="no place"):
        fill_in_checksum(memoryview(content))


def looks(content: memoryview) -> list[Callable[[], Any]]:
    """Return all that is read of a file's places."""
    lookups: list[Callable[[], Any]] = [
        partial(read_footer, content),
        partial(read_dictionary_ids, content, (1, 3)),
        lambda: list(iterate_messages(content)),
    ]
    for message in FOUND:
        header = message.read_header(content)
        lookups += [
            partial(read_layout, header),
            partial(find_absent_columns, header, 4),
            partial(read_dictionary_id, header),
            partial(sum_declared_bytes, header, message.read_body(content)),
            partial(has_sound_checksum, content, len(LEAD), message),
        ]
    return lookups


@pytest.mark.parametrize("wrong", [0x00, 0x7F, 0xFF])
def test_wrong_distances_are_one_kind_of_error(wrong: int) -> None:
    """Whatever byte of headers or of the footer is wrong."""
    footer_begin = read_footer(VIEW).begin_bytes
    header_offsets = [
        at for m in FOUND[1:4] for at in range(m.offset_bytes, m.offset_bytes + m.header_bytes)
    ]
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
    assert find_root(view) == TABLE_AT
    assert read_structs(view[:32], TABLE_AT, 0, PAIR) == [(5,), (6,)]
    assert bytes(view[slice(*find_text(view, TABLE_AT, 1))]) == b"abc"
    assert read_structs(view, TABLE_AT, 2, PAIR) == []
    assert find_text(view, TABLE_AT, 2) == (0, 0)
    with pytest.raises(struct.error, match="list is cut off"):
        read_structs(view[:31], TABLE_AT, 0, PAIR)
    with pytest.raises(struct.error, match="text is cut off"):
        find_text(view[:-1], TABLE_AT, 1)


def test_missing_fields_of_a_table_have_no_offset() -> None:
    """One may be missing by being left out, or at the end; a header is never before the buffer."""
    view = memoryview(FLAT)
    assert [find_field(view, TABLE_AT, index) for index in range(4)] == [16, 20, None, None]
    left_out = bytearray(FLAT)
    left_out[8:10] = bytes(2)
    assert find_field(memoryview(left_out), TABLE_AT, 0) is None
    assert (read_number(memoryview(left_out), TABLE_AT, 0), read_byte(view, TABLE_AT, 3)) == (0, 0)
    assert read_number(view, TABLE_AT, 0) == 8 + (12 << 32)
    assert read_byte(view, TABLE_AT, 1) == 12
    for back, right in ((TABLE_AT, True), (TABLE_AT + 1, False)):
        content = bytearray(FLAT)
        content[12:16] = struct.pack("<i", back)
        content[0:4] = struct.pack("<HH", 6, 0)
        if right:
            assert find_field(memoryview(content), TABLE_AT, 0) == TABLE_AT + 8
        else:
            with pytest.raises(struct.error, match="before its header"):
                find_field(memoryview(content), TABLE_AT, 0)


def headers(codec: Codec) -> list[tuple[memoryview, memoryview]]:
    content = memoryview(bytes(write_file(codec=codec)))
    return [
        (message.read_header(content), message.read_body(content))
        for message in iterate_messages(content)
    ]


@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
def test_layout_gives_rows_nulls_and_buffers_of_each_column(codec: Codec) -> None:
    (schema, _), *dictionaries, (batch_header, _), _ = headers(codec)
    layout = read_layout(batch_header)
    assert (layout.row_count, layout.row_and_null_counts) == (3, [(3, 1), (3, 0), (3, 3), (3, 2)])
    assert layout.codec == {None: None, "zstd": ZSTD, "lz4": 0}[codec]
    assert len(layout.buffer_ranges_bytes) == 8
    assert [read_layout(header).row_count for header, _ in dictionaries] == [2, 1]
    with pytest.raises(struct.error, match="no batch"):
        read_layout(schema)
    assert find_absent_columns(batch_header, 4) == {2}
    assert find_absent_columns(batch_header, 3) == find_absent_columns(schema, 4) == set()


_CODECS: tuple[Codec, ...] = (None, "zstd")


def test_as_much_as_without_compression() -> None:
    """What a message claims to hold does not depend on how it was written; a schema holds nothing."""
    plain, packed = ([sum_declared_bytes(*one) for one in headers(codec)] for codec in _CODECS)
    assert plain == packed
    assert plain[0] == 0
    assert all(size > 0 for size in plain[1:])
    (header, body) = headers("zstd")[-1]
    (at, length) = next(place for place in read_layout(header).buffer_ranges_bytes if place[1])
    assert struct.unpack_from("<q", body, at) in {(STORED,), (length - 8,), (24,), (1,)}


def test_unpacked_bytes_are_limited_over_all_messages() -> None:
    """To the byte, over all messages of a file; a damaged one ends the count."""
    total = sum(sum_declared_bytes(m.read_header(VIEW), m.read_body(VIEW)) for m in FOUND)
    for allowed, right in ((total, True), (total - 1, False)):
        growth = GrowthLimit(0, min_allowance=allowed)
        if right:
            growth.count_stream(VIEW)
            growth.count_stream(VIEW[: FOUND[0].end_bytes + 4])
            with pytest.raises(NotATrace):
                growth.count_stream(VIEW)
        else:
            with pytest.raises(NotATrace, match=f"0 bytes would become more than {allowed} "):
                growth.count_stream(VIEW)


def test_growth_is_limited_in_proportion() -> None:
    """Of a file that is not tiny."""
    total = sum(sum_declared_bytes(m.read_header(VIEW), m.read_body(VIEW)) for m in FOUND)
    GrowthLimit(total, min_allowance=0, max_growth=1).count_stream(VIEW)
    with pytest.raises(NotATrace):
        GrowthLimit(total - 1, min_allowance=0, max_growth=1).count_stream(VIEW)


def test_dictionaries_are_assigned_to_their_columns() -> None:
    """The footer says which column has which words; what only adds words is not all of them."""
    ids = read_dictionary_ids(VIEW, (3, 1))
    assert [message.dictionary_id for message in FOUND[1:3]] == sorted(ids)
    assert [read_dictionary_id(message.read_header(VIEW)) for message in FOUND[1:3]] == sorted(ids)
    assert len({*ids}) == 2
    with pytest.raises(struct.error, match="no dictionary"):
        read_dictionary_ids(VIEW, (0,))
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
    found = [m for m in iterate_messages(content, 0) if m.kind == DICTIONARY]
    assert [read_dictionary_id(m.read_header(content)) for m in found] == [0, None]


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
    GrowthLimit(len(content)).count_stream(content)

"""The live record's layout is the documented one, on which readers of segments depend."""

import struct

import pytest

from tracelens.schema import record


def test_a_record_is_64_bytes_at_known_offsets() -> None:
    fields = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)
    packed = record.RECORD.pack(*fields)
    assert len(packed) == 64 == record.RECORD_BYTES
    offsets_and_formats = [
        (0, "q"),
        (8, "q"),
        (16, "q"),
        (24, "Q"),
        (32, "I"),
        (36, "i"),
        (40, "i"),
        (44, "i"),
    ]
    offsets_and_formats += [(48, "i"), (52, "H"), (54, "H"), (56, "H"), (58, "H"), (60, "I")]
    read = tuple(struct.unpack_from(f"={kind}", packed, at)[0] for at, kind in offsets_and_formats)
    assert read == fields
    assert record.END.unpack_from(packed, record.END_OFFSET) == (2,)
    assert record.VALUE_OFFSET == 24


def test_what_does_not_apply() -> None:
    missing = (record.NO_BYTES, record.NO_REQUEST, record.NO_SEQ, record.NO_INDEX, record.NO_SHORT)
    assert missing == (-1, 0, 4294967295, -1, 65535)
    assert record.ESTIMATED == 1
    assert record.TIMED_ON_DEVICE == 0x8000_0000_0000_0000


def test_a_header_begins_with_the_magic() -> None:
    packed = record.HEADER.pack(record.MAGIC, record.BYTE_ORDER, 7, 64, 1000, 99)
    assert len(packed) == 64
    assert packed[:8] == b"TLSEGMNT"
    assert struct.unpack_from("=IHHQQ", packed, 8) == (0x01020304, 7, 64, 1000, 99)


@pytest.mark.parametrize(
    ("worker", "counter", "found"), [(0, 1, 1), (1, 0, 1 << 40), (5, 3, 5 * 2**40 + 3)]
)
def test_requests_are_told_apart(worker: int, counter: int, found: int) -> None:
    assert record.request_id(worker, counter) == found

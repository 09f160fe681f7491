"""Writes protobuf messages by hand, so that lengths, types and field numbers may be wrong.

A message is a dict of field numbers to values: whole numbers are varints, floats are doubles, texts and
bytes are delimited, dicts are messages, lists are repeated fields. A tuple (wire type, payload) is
written as it is.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

_VARINT, _DOUBLE, _BYTES = 0, 1, 2


def varint(number: int) -> bytes:
    """Return a number as a varint; a negative one as ten bytes."""
    number &= 2**64 - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def encode(message: dict[Any, Any], random: Random, wrong: float = 0.0) -> bytes:
    """Return a message; of each `wrong` share of its delimited fields the length is wrong."""
    return b"".join(
        _field(number, value, random, wrong)
        for number, values in message.items()
        for value in (values if isinstance(values, list) else [values])
    )


def _field(number: Any, value: Any, random: Random, wrong: float) -> bytes:
    number = number if isinstance(number, int) and 0 <= number < 2**29 else 7
    if isinstance(value, tuple):
        kind, payload = value
        return varint(number << 3 | kind) + bytes(payload)
    if isinstance(value, float):
        return varint(number << 3 | _DOUBLE) + struct.pack("<d", value)
    if value is None or isinstance(value, int):
        return varint(number << 3 | _VARINT) + varint(int(value or 0))
    if isinstance(value, dict):
        content = encode(value, random, wrong)
    elif isinstance(value, list):
        content = b"".join(varint(one) for one in value if isinstance(one, int))
    else:
        content = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
    length = len(content)
    if random.random() < wrong:
        length = random.choice([length + 1, max(length - 1, 0), 2**31 - 1, 2**32, 2**63, 0])
    return varint(number << 3 | _BYTES) + varint(length) + content

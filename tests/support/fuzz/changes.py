"""Changes of bytes that need not know what they stand for."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

__all__ = ["NUMBERS", "cut_off", "damaged", "put_number"]

NUMBERS: Final = (
    -(2**63), -(2**31), -(2**31) + 1, -2, -1, 0, 1, 2, 7, 8, 127, 128, 255, 256, 2**15, 2**16 - 1,
    2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1,
)  # fmt: skip
_SIZES: Final = ("<b", "<h", "<i", "<q", ">h", ">i", ">q")
_MOST: Final = 400  # bytes that are cut out or repeated at once


def damaged(data: bytes, luck: random.Random, most: int = 4) -> bytes:
    """Return data with one or a few changes."""
    content = bytearray(data)
    for _ in range(luck.randint(1, most)):
        luck.choice(_CHANGES)(content, luck)
    return bytes(content)


def put_number(content: bytearray | memoryview, luck: random.Random, form: str = "") -> None:
    """Write a number that is rarely right at a place where one may stand."""
    form = form or luck.choice(_SIZES)
    size = struct.calcsize(form)
    if len(content) < size:
        return
    offset = luck.randrange(len(content) - size + 1)
    offset -= offset % size if luck.random() < 0.8 else 0
    old = int.from_bytes(content[offset : offset + size], "little")
    new = luck.choice((*NUMBERS, old + 1, old - 1, old * 2, old + 8, old - 8))
    content[offset : offset + size] = (new % (1 << 8 * size)).to_bytes(
        size, "big" if form[0] == ">" else "little"
    )


def _flip_bit(content: bytearray, luck: random.Random) -> None:
    if content:
        content[luck.randrange(len(content))] ^= 1 << luck.randrange(8)


def _set_byte(content: bytearray, luck: random.Random) -> None:
    if content:
        content[luck.randrange(len(content))] = luck.choice((0, 255, luck.randrange(256)))


def _zero(content: bytearray, luck: random.Random) -> None:
    begin, end = _draw_range(content, luck)
    content[begin:end] = bytes(end - begin)


def _cut_out(content: bytearray, luck: random.Random) -> None:
    begin, end = _draw_range(content, luck)
    del content[begin:end]


def cut_off(content: bytearray, luck: random.Random) -> None:
    """Drop the end."""
    del content[luck.randrange(len(content) + 1) :]


def _put_in(content: bytearray, luck: random.Random) -> None:
    place = luck.randrange(len(content) + 1)
    content[place:place] = luck.randbytes(luck.randint(1, 16))


def _repeat(content: bytearray, luck: random.Random) -> None:
    begin, end = _draw_range(content, luck)
    chunk = content[begin:end]
    offset = luck.randrange(len(content) + 1)
    if luck.random() < 0.5:
        content[offset:offset] = chunk
    else:
        content[offset : offset + len(chunk)] = chunk


def _draw_range(content: bytearray, luck: random.Random) -> tuple[int, int]:
    begin = luck.randrange(len(content) + 1)
    return begin, min(len(content), begin + luck.randint(1, _MOST))


_CHANGES: Final[tuple[Callable[[bytearray, random.Random], None], ...]] = (
    _flip_bit, _flip_bit, _set_byte, _set_byte, put_number, put_number, put_number, _zero, _cut_out,
    _put_in, _repeat, cut_off,
)  # fmt: skip

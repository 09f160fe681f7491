"""Changes of pickles: of their values, of their operations, and operations that call what they name."""

from __future__ import annotations

import pickle
import pickletools
from typing import TYPE_CHECKING, Final

from support.fuzz.changes import damaged
from support.fuzz.values import change

if TYPE_CHECKING:
    import random

__all__ = ["changed_pickle"]

# Each would write a file, or take all memory or time, if it were done.
_HARM: Final = (
    b"cposix\nsystem\n(S'touch harmed'\ntR",
    b"\x8c\x05posix\x8c\x06system\x93\x8c\x0ctouch harmed\x85R",
    b"(S'touch harmed'\ni__builtin__\neval\n",
    b"c__builtin__\nbytearray\n(I4000000000\ntR",
    b"Pharmed\n",
    b"\x8c\x06harmedQ",
    b"r\xff\xff\xff\x7f",  # the memo's highest place
    b"]" + b"(2l" * 3,
    b"]2a2a2a",
    b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x8a\xff",
    b"\x8b\xff\xff\xff\x7f",
    b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"(" * 1000,
    b"]" * 3000 + b"a" * 2999,
)


def changed_pickle(base: bytes, luck: random.Random) -> bytes:
    """Change values and write them anew, or put operations in, or change any bytes."""
    kind = luck.random()
    if kind < 0.25:
        return damaged(base, luck)
    if kind < 0.65:
        value = pickle.loads(base)  # noqa: S301 - a base is ours
        for _ in range(luck.randint(1, 4)):
            value = change(value, luck)
        return pickle.dumps(value, luck.choice((2, 4, 4, 5)))
    offsets = [offset for _, _, offset in pickletools.genops(base) if offset is not None]
    content = bytearray(base)
    for _ in range(luck.randint(1, 2)):
        offset = luck.choice(offsets)
        content[offset:offset] = luck.choice(_HARM)
    return bytes(content)

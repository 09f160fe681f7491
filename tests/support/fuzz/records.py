"""Changes of what a running process writes: segments, the side file, the progress, the note."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from support.fuzz.changes import cut_off, damaged, put_number
from support.fuzz.values import change, text_of

from tracelens.schema.record import RECORD_BYTES

if TYPE_CHECKING:
    import random

__all__ = ["changed_json", "changed_lines", "changed_segment"]

_FIELDS: Final = ((0, 8), (8, 8), (16, 8), (24, 8), (32, 4), (36, 4), (40, 4), (44, 4), (48, 4), (52, 2),
                  (54, 2), (56, 2), (58, 2), (60, 4))  # fmt: skip
_FORMS: Final = {8: "<q", 4: "<i", 2: "<h"}


def changed_segment(base: bytes, luck: random.Random) -> bytes:
    """Change fields of records or of the header, or any bytes."""
    if luck.random() < 0.2:
        return damaged(base, luck)
    content = bytearray(base)
    view = memoryview(content)
    if luck.random() < 0.1:
        put_number(view[: RECORD_BYTES // 2], luck)
    for _ in range(luck.randint(1, 12)):
        record = luck.randint(1, len(content) // RECORD_BYTES - 1) * RECORD_BYTES
        place, size = luck.choice(_FIELDS)
        put_number(view[record + place : record + place + size], luck, _FORMS[size])
    view.release()
    if luck.random() < 0.05:
        cut_off(content, luck)
    return bytes(content)


def changed_lines(base: bytes, luck: random.Random) -> bytes:
    """Change the values of some lines of JSON, or their order, or any bytes."""
    if luck.random() < 0.2:
        return damaged(base, luck)
    lines = base.splitlines()
    for _ in range(luck.randint(1, 4)):
        line_index, kind = luck.randrange(len(lines)), luck.random()
        if kind < 0.8:
            value = change(json.loads(base.splitlines()[line_index % len(base.splitlines())]), luck)
            lines[line_index] = text_of(value, luck)
        elif kind < 0.9:
            lines.append(lines[line_index])
        elif len(lines) > 1:
            del lines[line_index]
    return b"\n".join([*lines, b""])


def changed_json(base: bytes, luck: random.Random) -> bytes:
    """Change the values of one JSON text, or any bytes."""
    if luck.random() < 0.3:
        return damaged(base, luck)
    value = json.loads(base)
    for _ in range(luck.randint(1, 5)):
        value = change(value, luck)
    return text_of(value, luck)

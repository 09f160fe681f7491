"""Changes of Parquet files and of text with separators."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
import pyarrow.feather as pf
import pyarrow.parquet as pq
from support.fuzz.arrow import changed_file, changed_table
from support.fuzz.changes import NUMBERS, damaged, put_number
from support.fuzz.values import TEXTS

if TYPE_CHECKING:
    import random

__all__ = ["changed_csv", "changed_feather", "changed_parquet"]

_COMPRESSIONS: Final = ("none", "snappy", "zstd", "gzip")
_OF_FEATHER: Final[tuple[Literal["uncompressed", "zstd", "lz4"], ...]] = (
    "uncompressed",
    "zstd",
    "lz4",
)
_TAIL: Final = 8  # bytes: how long the footer is, and the magic
_MARKS: Final = ('"', '""', ",", ";", "\t", "|", "\r\n", "\n", "\x00", "'", "\ufeff", " ")
_CELLS: Final = (
    *TEXTS,
    *map(str, NUMBERS),
    "1.5",
    "-0",
    "1e5",
    "true",
    "2025-06-01T12:00:00Z",
    "inf",
)


def changed_feather(base: bytes, luck: random.Random) -> bytes:
    """Change a table that is an Arrow file."""
    if luck.random() < 0.5:
        return changed_file(base, luck)
    sink = io.BytesIO()
    table = changed_table(pf.read_table(io.BytesIO(base)), luck)
    pf.write_feather(table, sink, luck.choice(_OF_FEATHER))
    return damaged(sink.getvalue(), luck) if luck.random() < 0.3 else sink.getvalue()


def changed_parquet(base: bytes, luck: random.Random) -> bytes:
    """Change a table's values and write it anew, or change its footer, its pages, or any bytes."""
    kind = luck.random()
    if kind < 0.2:
        return damaged(base, luck)
    content = base
    if kind < 0.7:
        sink = io.BytesIO()
        table = changed_table(pq.read_table(pa.BufferReader(base)), luck)
        try:
            pq.write_table(
                table,
                sink,
                compression=luck.choice(_COMPRESSIONS),
                use_dictionary=luck.random() < 0.5,
                row_group_size=luck.choice((None, 1, 7)),
            )
        except (pa.ArrowException, ValueError):
            return damaged(base, luck)
        content = sink.getvalue()
        if kind < 0.5:
            return content
    changed = bytearray(content)
    size = int.from_bytes(changed[-_TAIL:-4], "little")
    view = memoryview(changed)
    part = view[-_TAIL - size :] if luck.random() < 0.7 else view[: -_TAIL - size]
    for _ in range(luck.randint(1, 3)):
        put_number(part, luck, luck.choice(("<b", "<b", "<h", "<i")))
    return bytes(changed)


def changed_csv(base: bytes, luck: random.Random) -> bytes:
    """Change cells, lines, marks and separators."""
    if luck.random() < 0.2:
        return damaged(base, luck)
    lines = [line.split(",") for line in base.decode().splitlines()]
    for _ in range(luck.randint(1, 4)):
        _change_lines(lines, luck)
        if not lines:
            return b""
    mark = luck.choice((",", ",", ",", ";", "\t", "|"))
    text = luck.choice(("\n", "\n", "\r\n", "\r")).join(map(mark.join, lines))
    if luck.random() < 0.2:
        place = luck.randrange(len(text) + 1)
        text = text[:place] + luck.choice(_MARKS) + text[place:]
    form = luck.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"))
    return text.encode(form, "surrogatepass" if form.startswith("utf") else "replace")


def _change_lines(lines: list[list[str]], luck: random.Random) -> None:
    line_index = luck.randrange(len(lines)) if luck.random() < 0.8 else 0
    line, kind = lines[line_index], luck.random()
    if kind < 0.6 and line:
        line[luck.randrange(len(line))] = luck.choice((*_CELLS, *lines[0]))
    elif kind < 0.7 and line:
        del line[luck.randrange(len(line))]
    elif kind < 0.8:
        line.insert(luck.randrange(len(line) + 1), luck.choice(_CELLS))
    elif kind < 0.9:
        del lines[line_index]
    else:
        column = luck.randrange(max(1, len(line)))
        cell = luck.choice(_CELLS)
        for row in lines[1:]:
            row[column : column + 1] = [cell]

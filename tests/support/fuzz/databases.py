"""Changes of SQLite files: rows and tables by statements, pages and cells by bytes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from support.fuzz.changes import NUMBERS, damaged, put_number
from support.fuzz.values import TEXTS

if TYPE_CHECKING:
    import random

__all__ = ["changed_database"]

_PAGE_SIZE: Final = slice(16, 18)  # in the file's header
_VALUES: Final[tuple[Any, ...]] = (
    None, *NUMBERS, 0.5, 1e300, float("inf"), *(t for t in TEXTS if t.isprintable()), b"", b"\xff\x00",
)  # fmt: skip
_ENDLESS: Final = (
    "with recursive t(start) as (select 1 union all select start + 1 from t) "
    "select start, start as end, 0 as globalTid, 59 as eventType, 'x' as text, 0 as textId from t"
)


def changed_database(base: bytes, luck: random.Random) -> bytes:
    """Change a database as its owner could, or byte by byte, or both."""
    kind = luck.random()
    if kind < 0.2:
        return damaged(base, luck)
    content = base if kind < 0.6 else _by_statements(base, luck)
    if kind > 0.85:
        return content
    changed = bytearray(content)
    for _ in range(luck.randint(1, 4)):
        _change_page(changed, luck)
    return bytes(changed)


def _change_page(content: bytearray, luck: random.Random) -> None:
    """Change the header of a page, the places of its cells, or its cells; or swap two pages."""
    size = max(int.from_bytes(content[_PAGE_SIZE], "big"), 512)
    page = luck.randrange(max(1, len(content) // size)) * size
    head = 100 if page == 0 else 0  # the first page begins with that of the file
    kind = luck.random()
    view = memoryview(content)[page : page + size]
    if kind < 0.1:
        put_number(memoryview(content)[16:100], luck, luck.choice((">h", ">i", "<b")))
    elif kind < 0.3:
        put_number(view[head : head + 12], luck, luck.choice((">h", ">i", "<b")))
    elif kind < 0.5:
        put_number(view[head + 8 : head + 60], luck, ">h")
    elif kind < 0.9:
        put_number(view[size // 2 :], luck, luck.choice(("<b", "<b", ">h", ">i", ">q")))
    else:
        other = luck.randrange(max(1, len(content) // size)) * size
        part = bytes(content[other : other + size])
        view[: len(part)] = part[: len(view)]


def _by_statements(base: bytes, luck: random.Random) -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(base)
        names = [row[0] for row in connection.execute("select name from sqlite_master")]
        names = names or ["none"]
        for _ in range(luck.randint(1, 5)):
            try:
                _change_table(connection, luck.choice(names), luck)
            except sqlite3.Error:
                continue
        connection.commit()
        return bytes(connection.serialize())


def _change_table(connection: sqlite3.Connection, table: str, luck: random.Random) -> None:
    columns = [row[1] for row in connection.execute(f"pragma table_info({table})")]
    if not columns:
        return
    column, kind = luck.choice(columns), luck.random()
    if kind < 0.6:
        where = "" if luck.random() < 0.4 else f"where rowid = {luck.randint(1, 8)}"
        connection.execute(f"update {table} set {column} = ? {where}", [luck.choice(_VALUES)])  # noqa: S608 - ours
    elif kind < 0.7:
        connection.execute(f"update {table} set {column} = {luck.choice(columns)} * 1000000007")  # noqa: S608 - ours
    elif kind < 0.75:
        connection.execute(f"delete from {table}")  # noqa: S608 - ours
    elif kind < 0.8:
        connection.execute(f"drop table {table}")
    elif kind < 0.85:
        connection.execute(f"alter table {table} drop column {column}")
    elif kind < 0.9:
        connection.execute(f"alter table {table} rename column {column} to other")
    elif kind < 0.95:
        connection.execute(f"insert into {table} select * from {table}")  # noqa: S608 - ours
    else:
        connection.execute(f"drop table {table}")
        connection.execute(f"create view {table} as {_ENDLESS}")

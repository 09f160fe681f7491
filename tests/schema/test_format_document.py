"""docs/format.md says what the code does: its tables are the schema, and its snippet runs."""

import re
import struct
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.runs.segments import Slot, write_folder

from tracelens.cli import main
from tracelens.conversion.columns import SLOT
from tracelens.conversion.segments import convert
from tracelens.schema import record, side, vocabulary
from tracelens.schema.arrow import FILE_SCHEMA

DOCUMENT = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
TYPES = {
    pa.dictionary(pa.int8(), pa.string()): "dictionary<int8, string>",
    pa.dictionary(pa.int32(), pa.string()): "dictionary<int32, string>",
    pa.dictionary(pa.int8(), pa.int32()): "dictionary<int8, int32>",
    pa.float64(): "float64",
}


def rows(*head_words: str) -> list[list[str]]:
    """Return the rows of the table whose head begins with these words."""
    head = re.escape(f"| {' | '.join(head_words)} |")
    (table,) = re.findall(rf"^{head}.*\n\|[-|]+\n((?:\|.*\n)+)", DOCUMENT, re.MULTILINE)
    found = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()]
    return [row for row in found if row]


def test_the_page_lists_every_column() -> None:
    """Every column, in order, with its type and whether it may be null."""
    said = [(name.strip("`"), kind, null) for name, kind, null, _ in rows("column", "type")]
    assert [(name, kind, null == "never") for name, kind, null in said] == [
        (column.name, TYPES.get(column.type, str(column.type)), not column.nullable)
        for column in FILE_SCHEMA
    ]


def test_the_page_explains_every_word() -> None:
    """Every kind, operation, type and status is named."""
    documented = set(re.findall(r"`(\w+)`", DOCUMENT))
    operations = {op for ops in vocabulary.OPS.values() for op in ops}
    known = {*vocabulary.KINDS, *vocabulary.EVENT_TYPES, *vocabulary.STATUSES, *vocabulary.ROLES}
    assert (known | operations) - documented == set()


def test_the_page_explains_the_summary() -> None:
    named = set(re.findall(r"`(\w+)`", DOCUMENT))
    assert {field.name for field in fields(side.Summary)} <= named


def test_the_page_lists_the_metadata_keys() -> None:
    """The metadata of a file that was converted are those of the table."""
    said = [key.strip("`").encode() for key, _ in rows("key", "content")]
    summary = side.Summary(0, 0, 0, None, None, 0, [])
    assert said == list(side.SideTables().to_metadata(summary))


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("process", side.Process),
        ("definitions", side.Definition),
        ("threads", side.Thread),
        ("communicators", side.Communicator),
        ("clocks", side.ClockReading),
    ],
)
def test_the_page_lists_every_side_table(table: str, row: Any) -> None:
    """Every table with all its fields, in order."""
    (said,) = [cells for name, cells in rows("table", "fields") if name == f"`{table}`"]
    assert re.findall(r"`(\w+)`", said) == [field.name for field in fields(row)]


def test_the_page_places_every_field_of_a_record() -> None:
    """Every field of the live record at its place."""
    kinds = {"i64": "i8", "u64": "u8", "u32": "u4", "i32": "i4", "u16": "u2"}
    documented = [
        (int(offset), kinds[kind], name) for offset, kind, name, _ in rows("offset", "type", "slot")
    ]
    assert SLOT.names is not None
    assert SLOT.fields is not None
    type_and_offset = {name: SLOT.fields[name][:2] for name in SLOT.names}
    assert documented == [
        (offset, kind.str[1:], name) for name, (kind, offset) in type_and_offset.items()
    ]


def test_the_page_places_every_field_of_a_header() -> None:
    """What a reader finds at the places that the page names."""
    packed = record.HEADER.pack(record.MAGIC, record.BYTE_ORDER, 1, 64, 16383, 4711)
    codes = {"8 bytes": "8s", "u32": "I", "u16": "H", "u64": "Q"}
    header = [
        struct.unpack_from(f"@{codes[kind]}", packed, int(at))[0]
        for at, kind, _, _ in rows("offset", "type", "header")
    ]
    assert header == [b"TLSEGMNT", 0x01020304, 1, 64, 16383, 4711]


def test_slot_is_what_the_recorder_packs() -> None:
    """The reader's fields and the writer's struct are the same 64 bytes."""
    values = list(range(1, 15))
    packed = record.RECORD.pack(*values)
    (found,) = np.frombuffer(packed, SLOT).tolist()
    assert list(found) == values
    assert struct.unpack_from("@q", packed, record.END_OFFSET) == (2,)


def test_the_pages_snippets_read_a_trace(tmp_path: Path) -> None:
    """What the page tells to type reads a trace, without TraceLens."""
    snippet, *_ = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    assert "tracelens" not in snippet.replace('b"tracelens"', "")
    path = convert(write_folder(tmp_path, [Slot(start_ns=1, end_ns=2)]))
    found: dict[str, Any] = {"path": str(path)}
    exec(snippet, found)  # noqa: S102 - our own page is what is tested
    assert (found["rank"], found["world"], found["names"]) == (3, 4, ["piece"])


def test_one_query_tells_which_rank(tmp_path: Path) -> None:
    """The recipes with DuckDB and polars find the rank that was made slow, and the phase."""
    run = tmp_path / "run"
    sample = Path(__file__).parents[2] / "sample_traces" / "mpi-late-rank"
    assert main(["convert", str(sample), "--to", "native", "--out", str(run)]) == 0
    _, *recipes = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    results: dict[str, Any] = {"folder": run}
    exec("\n".join(recipes), results)  # noqa: S102 - as above
    assert results["longest"][0][:2] == (2, "forward")
    assert sorted(results["longest_too"].rows()) == sorted(
        (rank, kind, pytest.approx(seconds)) for rank, kind, seconds in results["longest"]
    )


def test_the_page_describes_the_written_version() -> None:
    assert f"# The trace format, version {vocabulary.SCHEMA_VERSION}\n" in DOCUMENT

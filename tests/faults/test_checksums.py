"""A wrong checksum is never passed over, and a right one is no reason to trust what is in a file."""

from __future__ import annotations

import struct
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from support.runs.damage import assert_left_out, checked_file, rewritten, write_run

from tracelens import load
from tracelens.cli import main
from tracelens.conversion.messages import (
    BATCH,
    LEAD,
    add_blocks_to_footer,
    fill_in_checksum,
    iterate_messages,
    read_footer,
)
from tracelens.errors import NotATrace
from tracelens.readers.native.arrow_file import read_arrow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = 100
WORD = "unmistakable!"
NONE = pa.ipc.IpcWriteOptions()


def small_batches(folder: Path) -> Path:
    """Write a run, one file of it in batches of `ROWS` rows."""
    victim = write_run(folder)
    rewritten(victim, lambda table: table, rows=ROWS, compression="zstd")
    return victim


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_costs_at_most_the_batches_after_it(seed: int, tmp_path: Path) -> None:
    """One flipped bit anywhere in the batches: what is read is what was written, up to the damage."""
    victim = small_batches(tmp_path)
    sound_table = read_arrow(victim).table
    content, draw = bytearray(victim.read_bytes()), Random(seed)
    begin = next(iterate_messages(memoryview(content))).end_bytes  # after the schema
    place = draw.randrange(begin, read_footer(memoryview(content)).batch_messages[-1].end_bytes)
    content[place] ^= 1 << draw.randrange(8)
    victim.write_bytes(content)
    damaged = read_arrow(victim)
    assert damaged.is_cut
    assert damaged.table.num_rows < sound_table.num_rows
    assert damaged.table.num_rows % ROWS == 0
    assert damaged.table.equals(sound_table.slice(0, damaged.table.num_rows))


@pytest.mark.parametrize("kept", [0, 1000])
def test_damage_in_a_file_without_its_end(kept: int, tmp_path: Path) -> None:
    """Checksums are stored with the batches, so they protect a file that was cut off as well."""
    victim = small_batches(tmp_path)
    content = bytearray(victim.read_bytes())
    second = read_footer(memoryview(content)).batch_messages[1]
    content[second.end_bytes - 9] ^= 1
    victim.write_bytes(content[: second.end_bytes + kept])
    assert read_arrow(victim).table.num_rows == ROWS


def test_side_tables_at_the_end(tmp_path: Path) -> None:
    """One changed digit in them: those of the file's begin count, and the damage is told."""
    victim = write_run(tmp_path)
    content = victim.read_bytes()
    place = content.rindex(b'"pid":1001') + len(b'"pid":100')
    victim.write_bytes(content[:place] + b"2" + content[place + 1 :])
    trace = load.open(tmp_path)
    assert trace.workers["pid"].to_list() == [1000, 1001, 1002]
    assert [note.kind for note in trace.notes] == ["truncated"]


def with_codes(code: int) -> Callable[[pa.Table], pa.Table]:
    """Give one row of a text column a code outside of its dictionary."""

    def change(table: pa.Table) -> pa.Table:
        names = cast("pa.DictionaryArray[Any, Any]", table["kind"].combine_chunks())
        codes = names.indices.to_numpy().copy()
        codes[5] = code
        wrong = pa.DictionaryArray.from_arrays(codes, names.dictionary, safe=False)
        index = table.schema.get_field_index("kind")
        return table.set_column(index, table.schema.field(index), wrong)

    return change


def with_status(table: pa.Table) -> pa.Table:
    """Give every row the same status, a word of a length that no other has."""
    index = table.schema.get_field_index("status")
    statuses = (
        pa.array([WORD] * table.num_rows).dictionary_encode().cast(table.schema.field(index).type)
    )
    return table.set_column(index, table.schema.field(index), statuses)


@pytest.mark.parametrize("offsets", [(0, 1 << 20), (-64, 13), (13, 0), (0, -1)])
def test_words_that_lie_outside(offsets: tuple[int, int], tmp_path: Path) -> None:
    """A dictionary whose words begin or end elsewhere is refused, though its checksum is right."""
    victim = write_run(tmp_path)
    rewritten(victim, with_status)
    content = bytearray(victim.read_bytes())
    buffer_offset = next(
        m.end_bytes - m.body_bytes
        for m in iterate_messages(memoryview(content))
        if WORD.encode() in bytes(m.read_body(memoryview(content)))
    )
    offset = content.index(struct.pack("<ii", 0, len(WORD)), buffer_offset)
    content[offset : offset + 8] = struct.pack("<ii", *offsets)
    victim.write_bytes(signed(content))
    with pytest.raises((pa.ArrowInvalid, OSError)):
        read_arrow(victim)
    assert_left_out(tmp_path)


def signed(content: bytearray) -> bytes:
    """Return a file of one batch with the right checksum."""
    end = next(m.end_bytes for m in iterate_messages(memoryview(content)) if m.kind == BATCH)
    region = content[len(LEAD) : end]
    fill_in_checksum(memoryview(region))
    return bytes(content[: len(LEAD)] + region + content[end:])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(with_codes(100), id="a word that the dictionary lacks"),
        pytest.param(with_codes(-1), id="a negative word"),
    ],
)
def test_values_that_lead_outside(change: Callable[[pa.Table], pa.Table], tmp_path: Path) -> None:
    """Checksums are right, and yet no memory is read that is not the file's."""
    victim = write_run(tmp_path)
    rewritten(victim, change)
    with pytest.raises(pa.ArrowInvalid):
        read_arrow(victim)
    trace = load.open(tmp_path)
    assert [note.kind for note in trace.notes] == ["unreadable"]
    assert trace.workers["rank"].to_list() == [0, 2]


@pytest.mark.parametrize("rows", [10**6, 2**40, -1])
def test_more_rows_than_there_are(rows: int, tmp_path: Path) -> None:
    """A batch that claims more rows than its buffers hold is refused, even with a valid checksum."""
    victim = write_run(tmp_path)
    with pa.ipc.open_file(str(victim)) as reader:
        table = reader.read_all()
    content = bytearray(checked_file(table, NONE, None))
    view = memoryview(content)
    (batch,) = [message for message in iterate_messages(view) if message.kind == BATCH]
    header = bytes(batch.read_header(view))
    lying = header.replace(struct.pack("<q", table.num_rows), struct.pack("<q", rows))
    assert lying != header
    view[batch.offset_bytes + 8 : batch.offset_bytes + batch.header_bytes] = lying
    victim.write_bytes(signed(content))
    with pytest.raises((pa.ArrowInvalid, NotATrace, OSError)):
        read_arrow(victim)
    assert_left_out(tmp_path)


@pytest.mark.parametrize("lie", ["twice", "beyond", "header", "gone"])
def test_a_footer_that_lies(lie: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong positions in a footer are not read; the batches are read in sequence."""
    victim = small_batches(tmp_path)
    sound_table = read_arrow(victim).table
    content = victim.read_bytes()
    file_messages = list(iterate_messages(memoryview(content)))
    first_batch = next(message for message in file_messages if message.kind == BATCH)
    blocks_by_lie = {
        "twice": [*file_messages, first_batch],
        "beyond": [*file_messages, first_batch._replace(offset_bytes=len(content) * 2)],
        "header": [m if m != first_batch else m._replace(header_bytes=8) for m in file_messages],
        "gone": [message for message in file_messages if message != first_batch],
    }[lie]
    (size,) = struct.unpack("<i", content[-10:-6])
    footer = add_blocks_to_footer(content[-10 - size : -10], blocks_by_lie)
    end = footer + struct.pack("<i", len(footer)) + b"ARROW1"
    victim.write_bytes(content[: -10 - size] + end)
    assert main(["validate", str(tmp_path)]) in {0, 1}
    assert "Traceback" not in capsys.readouterr().err
    try:
        found_rows = read_arrow(victim).table
    except (pa.ArrowInvalid, OSError, NotATrace):
        return
    assert found_rows.equals(sound_table)

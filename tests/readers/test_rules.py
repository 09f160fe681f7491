"""Each rule of `tracelens.schema.rules` holds for every format, and each row that it costs is counted.

The cases are made of the rules, so that a new one is tested as soon as it stands there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest
from support.runs.damage import VICTIM, rewritten, with_value, write_run
from support.runs.segments import write_folder
from support.tiers import mark_slow

from tracelens import load
from tracelens.conversion.arrow_file import GrowingFile
from tracelens.conversion.folder import Progress, save_progress
from tracelens.conversion.segments import read_side_tables
from tracelens.exports.repair import repair
from tracelens.memory import BoundedCache
from tracelens.model.trace import EVENT_COLUMNS
from tracelens.readers.native.arrow_file import read_arrow
from tracelens.readers.native.plain_columns import read_usable, select_usable
from tracelens.readers.native.summary import read_summaries
from tracelens.schema import side
from tracelens.schema.arrow import EVENT_SCHEMA
from tracelens.schema.rules import LONGEST_NS, RULES
from tracelens.schema.vocabulary import UNFINISHED_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Case = tuple[str, Any, str]
ROWS = 200
LAST = 2**63 - 1


def rows_lost() -> Iterator[Case]:
    """List a value below and above each bound, and null, where it costs the row; with the reason."""
    for name, rule in RULES.items():
        if not rule.is_nullable:
            yield name, None, f"no {name}"
        if rule.allowed_words:
            yield name, "nonsense", f"unknown {name}"
        if rule.drops_row and rule.maximum is not None and rule.minimum is not None:
            below = "negative duration" if name == "duration_ns" else f"{name} out of range"
            yield name, rule.minimum - 1, below
            yield name, rule.maximum + 1, f"{name} out of range"
            yield name, LAST, f"{name} out of range"


def cells_lost() -> Iterator[Case]:
    """List a value outside of each bound, where it costs the cell; `communicator` has its own test."""
    for name, rule in RULES.items():
        kind = EVENT_SCHEMA.field(name).type
        if rule.must_be_finite:
            yield name, math.inf, ""
            yield name, -math.inf, ""
        signed = pa.types.is_signed_integer(kind) and name != "communicator"
        if rule.minimum is not None and not rule.drops_row and signed:
            yield name, rule.minimum - 1, ""
            yield name, -(2**31) + 1, ""
        if rule.maximum is not None and not rule.drops_row:
            yield name, rule.maximum + 1, ""


def as_we_write(table: pa.Table, folder: Path) -> Path:
    """Write a file that is read by its buffers, without Arrow's reader."""
    victim = write_run(folder)
    rewritten(victim, lambda whole: with_columns(whole, table), compression="zstd")
    return folder


def as_others_write(table: pa.Table, folder: Path) -> Path:
    """Write a file without checksums and summary, as another program does."""
    victim = write_run(folder)
    rewritten(victim, lambda whole: unsummed(with_columns(whole, table)), checksums=False)
    return folder


def unsummed(table: pa.Table) -> pa.Table:
    metadata = {**(table.schema.metadata or {})}
    del metadata[side.SUMMARY_KEY]
    return table.replace_schema_metadata(side.with_checksum(metadata))


def with_columns(whole: pa.Table, table: pa.Table) -> pa.Table:
    """Return as many rows of a file with other events."""
    rows = whole.slice(0, table.num_rows)
    for place, field in enumerate(EVENT_SCHEMA):
        rows = rows.set_column(place, field, table[field.name])
    return rows


def as_it_grows(table: pa.Table, folder: Path) -> Path:
    """Write a recording that was converted up to here."""
    write_run(folder)
    (folder / VICTIM).unlink()
    segments_folder = write_folder(folder, [])
    with GrowingFile(segments_folder / UNFINISHED_FILE, read_side_tables(segments_folder)) as file:
        for batch in table.combine_chunks().to_batches():
            file.append_batch(batch)
        save_progress(segments_folder, Progress(length=file.length_bytes, next=1))
    return folder


def repair_as_others_write(table: pa.Table, folder: Path) -> Path:
    """Repair a file as another program writes it."""
    repair(as_others_write(table, folder / "damaged"), folder / "repaired")
    return folder / "repaired"


FORMATS: dict[str, Callable[[pa.Table, Path], Path]] = {
    function.__name__: function
    for function in (as_we_write, as_others_write, as_it_grows, repair_as_others_write)
}


def recorded(tmp_path: Path) -> pa.Table:
    """Return some rows as they were recorded, with times on a device and a value in one."""
    table = read_arrow(write_run(tmp_path / "sound")).table.slice(0, ROWS)
    for name, value in {"device_start_ns": 5, "device_duration_ns": 5, "value": 0.5}.items():
        table = with_value(table, name, value)
    return table


def case_id(case: Case) -> str:
    return f"{case[0]}={case[1]}"


@pytest.mark.parametrize("way", FORMATS)
@pytest.mark.parametrize("case", [*rows_lost()], ids=case_id)
def test_a_row_is_left_out_and_counted(case: Case, way: str, tmp_path: Path) -> None:
    """By the same reason, however it was written; what tells of files without reading them agrees."""
    column, value, reason = case
    wrong = with_value(recorded(tmp_path), column, value)
    trace = load.open(FORMATS[way](wrong, tmp_path / "run"))
    assert trace.dropped == {reason: 1}
    mine = trace.processes.filter(pl.col("dropped") > 0)
    assert mine["events"].to_list() == [ROWS - 1]
    if way == "as_others_write":
        lost = [
            facts.lost_by_reason
            for facts in read_summaries(tmp_path / "run")[0]
            if facts.lost_by_reason
        ]
        assert lost == [{reason: 1}]


@pytest.mark.parametrize("way", mark_slow(FORMATS, ("as_we_write", "as_others_write")))
@pytest.mark.parametrize("case", [*cells_lost()], ids=case_id)
def test_a_cell_is_left_out(case: Case, way: str, tmp_path: Path) -> None:
    """All rows stay, and no value is out of range."""
    column, value, _ = case
    table = recorded(tmp_path)
    trace = load.open(FORMATS[way](with_value(table, column, value), tmp_path / "run"))
    assert trace.dropped == {}
    rule, values = RULES[column], trace.events.collect()[column].drop_nulls()
    assert rule.minimum is None or (values >= rule.minimum).all()
    assert rule.maximum is None or (values <= rule.maximum).all()
    assert not rule.must_be_finite or values.is_finite().all()


@pytest.mark.parametrize("case", [*cells_lost()], ids=case_id)
def test_arrays_and_frames_agree(case: Case, tmp_path: Path) -> None:
    """Whether rows are judged by their extremes or one by one, the same is left."""
    column, value, _ = case
    wrong, names = with_value(recorded(tmp_path), column, value), {*EVENT_SCHEMA.names}
    mixed = with_value(wrong, "status", "nonsense", ROWS - 1)  # so that they are judged one by one
    own_file, other_file = (
        tmp_path / "run" / VICTIM,
        tmp_path / "other" / VICTIM,
    )
    as_we_write(wrong, own_file.parent)
    as_others_write(mixed, other_file.parent)
    plain = read_usable(own_file, names, BoundedCache()).columns
    arrow = select_usable(read_arrow(own_file, names)).columns
    frame = select_usable(read_arrow(other_file, names)).columns
    plain_values = {name: plain.number_column(name).tolist() for name in plain.number_columns}
    assert {
        name: arrow.number_column(name).tolist() for name in arrow.number_columns
    } == plain_values
    assert {name: frame.number_column(name).tolist() for name in plain.number_columns} == {
        name: values[:-1] for name, values in plain_values.items()
    }
    value_texts = [str(columns.value_columns["value"][:-1].tolist()) for columns in (plain, arrow)]
    assert {*value_texts, str(frame.value_columns["value"].tolist())} == {value_texts[0]}


TIMES: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "before its begin": ({"start_ns": 50, "end_ns": 45}, {"negative duration": 1}),
    "for years": ({"start_ns": 50, "end_ns": 51 + LONGEST_NS}, {"duration_ns out of range": 1}),
    "years later": (
        {"start_ns": LONGEST_NS + 100, "end_ns": LONGEST_NS + 101},
        {"start_ns a year from the others": 1},
    ),
    "to the end": ({"start_ns": 50, "end_ns": 50 + LONGEST_NS}, {}),
}


@pytest.mark.parametrize("name", TIMES)
def test_tables_drop_times_for_the_same_reasons(name: str) -> None:
    times, lost = TIMES[name]
    rows = [{"rank": 0, "start_ns": 10 * n, "end_ns": 10 * n + 5, "kind": "data"} for n in range(9)]
    trace = load.from_table(pl.DataFrame([*rows, rows[0] | times]))
    assert trace.dropped == lost


@pytest.mark.parametrize("column", [name for name, rule in RULES.items() if not rule.is_nullable])
def test_tables_have_what_every_row_has(column: str) -> None:
    """What a table does not say is filled in, or costs the row: no null is left."""
    row: dict[str, Any] = {"rank": 0, "end_ns": 9, "start_ns": 1, "kind": "data", "name": "x"}
    row |= {"thread": "t", "step": 0, "type": "span", "status": "closed"}
    trace = load.from_table(pl.DataFrame([row, row | {column: None, "end_ns": 12}], strict=False))
    assert trace.events.collect()[column].null_count() == 0


def test_every_column_has_its_rule() -> None:
    assert {field.name: field.nullable for field in EVENT_SCHEMA} == {
        name: rule.is_nullable for name, rule in RULES.items()
    }
    assert RULES.keys() - {"duration_ns"} <= EVENT_COLUMNS.keys()

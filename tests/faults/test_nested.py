"""JSON nested deeper than any parser goes is damage like any other: one sentence on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.runs.damage import assert_left_out, rewritten, write_run

from tracelens import load
from tracelens.conversion.folder import PROGRESS_FILE, load_progress
from tracelens.errors import NotATrace
from tracelens.lod import run_data
from tracelens.schema.json_text import loads
from tracelens.schema.side import METADATA_KEY, parse_lines
from tracelens.schema.vocabulary import ELSEWHERE_SUFFIX, SIDE_FILE

if TYPE_CHECKING:
    from pathlib import Path

DEEP = b"[" * 200_000
PROCESS = b'{"table":"process","rank":9,"world":10,"host":"elsewhere","schema":1}\n'


def test_nested_metadata_is_refused(tmp_path: Path) -> None:
    """In the metadata of an Arrow file."""
    rewritten(
        write_run(tmp_path), lambda table: table.replace_schema_metadata({METADATA_KEY: DEEP})
    )
    assert_left_out(tmp_path, "metadata is damaged", "nested too deep")


def test_a_nested_line_of_a_side_file_is_left_out() -> None:
    """A line of a side file is left out, as one that was cut off."""
    side = parse_lines([DEEP + b"\n", PROCESS])
    assert side.process.rank == 9


def test_nested_progress_is_refused(tmp_path: Path) -> None:
    """What says how far a conversion has come."""
    (tmp_path / PROGRESS_FILE).write_bytes(DEEP)
    with pytest.raises(NotATrace, match=r"damaged.*nested too deep"):
        load_progress(tmp_path)


def test_segments_and_notes_of_a_rank(tmp_path: Path) -> None:
    """Each costs its own rank, and is named."""
    write_run(tmp_path)
    for name, file in (("worker-00007-7", SIDE_FILE), ("worker-00008-8", PROGRESS_FILE)):
        folder = tmp_path / f"{name}.segments"
        folder.mkdir()
        (folder / SIDE_FILE).write_bytes(PROCESS)
        (folder / file).write_bytes(DEEP)
    (tmp_path / f"worker-00009-9{ELSEWHERE_SUFFIX}").write_bytes(DEEP)
    trace = load.open(tmp_path)
    assert len([note for note in trace.notes if "was left out" in note.sentence]) == 3
    assert trace.workers["rank"].to_list() == [0, 1, 2]


def test_a_nested_index_is_refused(tmp_path: Path) -> None:
    """In an index that came with the trace."""
    (tmp_path / run_data.GLANCE_FILE).write_bytes(DEEP)
    with pytest.raises(ValueError, match="nested too deep"):
        run_data.load_glance(tmp_path)


def test_what_is_not_deep_is_read() -> None:
    assert loads(b'{"a": [1, 2.5, null, "\\u00e9"]}') == {"a": [1, 2.5, None, "é"]}

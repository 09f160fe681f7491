"""`tracelens validate DIR --repair OUT` copies all that can be used of a trace, and says what is not."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from polars.testing import assert_frame_equal
from support.runs.damage import VICTIM, rewritten, write_run
from support.runs.segments import PROCESS, Slot, write_folder
from support.samples import SAMPLES

from tracelens import load
from tracelens.cli import main
from tracelens.errors import InvalidArgument, NotATrace
from tracelens.exports.repair import repair
from tracelens.readers.native.validation import list_problems

if TYPE_CHECKING:
    from pathlib import Path

DEAD = replace(PROCESS, rank=7, pid=2**22 + 1)


def contents(folder: Path) -> dict[str, bytes]:
    found = (file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))
    return {str(file.relative_to(folder)): file.read_bytes() for file in found}


def events_in(folder: Path) -> dict[str, bytes]:
    return {name: held for name, held in contents(folder).items() if "/" not in name}


def test_a_sound_trace_is_copied_to_the_last_byte(tmp_path: Path) -> None:
    """Of its samples all rows are, and how often they were taken."""
    trace = SAMPLES / "mpi-sampled"
    done = repair(trace, tmp_path / "copy")
    assert events_in(tmp_path / "copy") == events_in(trace)
    for sampled in (trace / "samples").iterdir():
        with pa.ipc.open_stream(sampled.read_bytes()) as stream:
            rows = stream.read_all()
        with pa.ipc.open_stream((tmp_path / "copy/samples" / sampled.name).read_bytes()) as stream:
            assert stream.read_all().equals(rows, check_metadata=True)
    assert (done.partial_file_count, done.sentences) == (0, ())
    assert done.event_count == load.open(trace).processes["events"].sum()


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    """The copy holds what is read of the damaged trace, and says that it is not all."""
    victim = write_run(tmp_path / "run")
    rewritten(victim, lambda table: table, rows=50)
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size * 2 // 3])
    contents_before = contents(tmp_path / "run")
    done = repair(tmp_path / "run", tmp_path / "copy")
    damaged, copied = load.open(tmp_path / "run"), load.open(tmp_path / "copy")
    assert_frame_equal(copied.events.collect(), damaged.events.collect())
    assert contents(tmp_path / "run") == contents_before
    assert (done.whole_file_count, done.partial_file_count) == (2, 1)
    assert "is damaged or cut off; the first " in done.sentences[0]
    (remains,) = list_problems(copied)
    assert "did not end its recording itself" in remains


def test_rows_that_make_no_sense_are_counted(tmp_path: Path) -> None:
    victim = write_run(tmp_path / "run")

    def longer(table: pa.Table) -> pa.Table:
        column_index = table.schema.get_field_index("duration_ns")
        wrong = pa.array([-5, -5, -5], pa.int64())
        lengths = pa.chunked_array([wrong, *table["duration_ns"].slice(3).chunks])
        return table.set_column(column_index, table.schema.field(column_index), lengths)

    rewritten(victim, longer)
    done = repair(tmp_path / "run", tmp_path / "copy")
    (sentence,) = done.sentences
    assert sentence.startswith(f"'{VICTIM}': ")
    assert sentence.endswith(" events are copied, 3 rows that no reader can use are left out.")
    assert load.open(tmp_path / "copy").processes["dropped"].to_list() == [0, 3, 0]


def test_segments_of_a_killed_process(tmp_path: Path) -> None:
    """They become an Arrow file in the copy, and stay as they are in the trace."""
    write_run(tmp_path / "run")
    segments_folder = write_folder(tmp_path / "run", [Slot(1_000, 2_000)], process=DEAD)
    contents_before = contents(tmp_path / "run")
    done = repair(tmp_path / "run", tmp_path / "copy")
    assert contents(tmp_path / "run") == contents_before
    assert f"'{segments_folder.name}': its segments became an Arrow file" in done.sentences[0]
    assert 7 in load.open(tmp_path / "copy").processes["rank"].to_list()


def test_nothing_outside_is_copied(tmp_path: Path) -> None:
    """A link out of the trace is left out, as it is by readers."""
    write_run(tmp_path / "run")
    secret = shutil.copy(tmp_path / "run" / VICTIM, tmp_path / "secret.arrow")
    (tmp_path / "run" / VICTIM).unlink()
    (tmp_path / "run" / VICTIM).symlink_to(secret)
    done = repair(tmp_path / "run", tmp_path / "copy")
    assert "it is a link out of the trace" in done.sentences[0]
    assert VICTIM not in contents(tmp_path / "copy")


def test_the_trace_is_never_written_to(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    contents_before = contents(tmp_path / "run")
    with pytest.raises(InvalidArgument, match="is inside of the trace"):
        repair(tmp_path / "run", tmp_path / "run" / "copy")
    with pytest.raises(InvalidArgument, match="is inside of the trace"):
        repair(tmp_path / "run", tmp_path / "run")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("years of work")
    with pytest.raises(InvalidArgument, match="nothing is written over"):
        repair(tmp_path / "run", tmp_path / "there")
    assert contents(tmp_path / "run") == contents_before


def test_where_nothing_can_be_used_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / VICTIM).write_bytes(b"no trace at all")
    with pytest.raises(NotATrace, match="None of the 1 recordings"):
        repair(tmp_path / "run", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_the_verb_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    victim = write_run(tmp_path / "run")
    rewritten(
        victim, lambda table: table.take(pc.array_sort_indices(table["start_ns"], "descending"))
    )
    assert main(["validate", str(tmp_path / "run"), "--repair", str(tmp_path / "copy")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"'{VICTIM}': its rows are sorted by start_ns now."
    assert lines[1].endswith(" events, 2 files as recorded, 1 file written anew")
    assert main(["validate", str(tmp_path / "copy")]) == 0

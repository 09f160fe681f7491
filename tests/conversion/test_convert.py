"""Converting makes the Arrow file and then removes the folder, never the other way round."""

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest
from support.runs.segments import PROCESS, Slot, write_folder

from tracelens.conversion.segments import convert, decode
from tracelens.errors import NotATrace, TraceNotFound
from tracelens.schema.arrow import BATCH_ROWS, EVENT_SCHEMA, FILE_SCHEMA
from tracelens.schema.side import SideTables
from tracelens.schema.vocabulary import TRACE_SUFFIX


def read(path: Path) -> pa.Table:
    return pa.ipc.open_file(str(path)).read_all()


def test_file_holds_what_the_folder_held(tmp_path: Path) -> None:
    """Columns, side tables and order are the same, and the folder is gone."""
    folder = write_folder(tmp_path, [Slot(start_ns=30, end_ns=40)], [Slot(start_ns=10)])
    events, side = decode(folder)
    path = convert(folder)
    assert path == tmp_path / "worker-00003-77.arrow"
    assert list(tmp_path.iterdir()) == [path]
    table = read(path)
    assert table.schema.equals(FILE_SCHEMA)
    assert table.select(EVENT_SCHEMA.names).to_pylist() == events.to_pylist()
    assert table["start_ns"].to_pylist() == [10, 30]
    found = SideTables.from_metadata(table.schema.metadata)
    assert (found.process, found.threads, found.complete) == (PROCESS, side.threads, True)


def test_a_process_without_events_has_a_file_without_rows(tmp_path: Path) -> None:
    """A process that recorded nothing has a file with no rows, and says who it was."""
    table = read(convert(write_folder(tmp_path)))
    assert table.num_rows == 0
    assert SideTables.from_metadata(table.schema.metadata).process == PROCESS


def test_large_recording_has_batches(tmp_path: Path) -> None:
    """Rows come in batches that a reader can take one by one."""
    slots = [Slot(start_ns=n, end_ns=n + 1) for n in range(BATCH_ROWS + 10)]
    path = convert(write_folder(tmp_path, slots))
    with pa.ipc.open_file(str(path)) as reader:
        assert reader.num_record_batches == 2
    assert path.stat().st_size < 20 * len(slots)


def test_unreadable_folder_is_left(tmp_path: Path) -> None:
    """What could not be read is still there afterwards."""
    folder = write_folder(tmp_path, [Slot(start_ns=1)])
    (folder / "000001.seg").write_bytes(b"x" * 200)
    paths_before = sorted(folder.iterdir())
    with pytest.raises(NotATrace):
        convert(folder)
    assert sorted(folder.iterdir()) == paths_before
    assert list(tmp_path.iterdir()) == [folder]


def test_file_of_somebody_else_is_left(tmp_path: Path) -> None:
    """Only what TraceLens put into the folder is removed from it."""
    folder = write_folder(tmp_path, [Slot(start_ns=1)])
    (folder / "notes.txt").write_text("mine")
    path = convert(folder)
    assert path.exists()
    assert [file.name for file in folder.iterdir()] == ["notes.txt"]


def test_rank_that_was_learned_late(tmp_path: Path) -> None:
    """The file bears the rank of the side tables; a name that is taken is left to its owner."""
    for number, name in enumerate(["worker-00000-5", "worker-00001-5"]):
        made = write_folder(tmp_path, [Slot(start_ns=number)])
        made.rename(tmp_path / f"{name}.segments")
    first = convert(tmp_path / "worker-00000-5.segments")
    second = convert(tmp_path / "worker-00001-5.segments")
    assert [first.name, second.name] == ["worker-00003-5.arrow", "worker-00001-5.arrow"]


def test_somebody_else_was_quicker(tmp_path: Path) -> None:
    """Converting what is converted already is no error; converting nothing is."""
    folder = write_folder(tmp_path, [Slot(start_ns=1)])
    assert convert(folder) == convert(folder)
    with pytest.raises(TraceNotFound):
        convert(tmp_path / "worker-00009-9.segments")


def _refuse_rename(number: int, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Make the rename to an Arrow file fail once; return what was renamed to one."""
    real, renamed = Path.replace, list[Path]()

    def replace(source: Path, target: Path) -> Path:
        if target.suffix == TRACE_SUFFIX:
            renamed.append(source)
            if len(renamed) == 1:
                raise OSError(number, os.strerror(number))
        return real(source, target)

    monkeypatch.setattr(Path, "replace", replace)
    return renamed


def test_to_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a rename is impossible the file is copied first; no temporary file is left."""
    folder = write_folder(tmp_path, [Slot(start_ns=1, end_ns=2)])
    renamed = _refuse_rename(errno.EXDEV, monkeypatch)
    path = convert(folder)
    assert list(tmp_path.iterdir()) == [path]
    assert read(path).num_rows == 1
    assert [source.parent for source in renamed] == [folder, tmp_path]


def test_a_rename_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segments are left as they were, to be converted another time."""
    folder = write_folder(tmp_path, [Slot(start_ns=1, end_ns=2)])
    paths_before = sorted(folder.iterdir())
    _refuse_rename(errno.ENOSPC, monkeypatch)
    with pytest.raises(OSError, match="No space"):
        convert(folder)
    assert sorted(folder.iterdir()) == paths_before
    assert list(tmp_path.iterdir()) == [folder]
    assert read(convert(folder)).num_rows == 1

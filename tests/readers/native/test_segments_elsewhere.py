"""A note in the trace folder leads to the segments, or says where they are to be found."""

from pathlib import Path

import pytest
from support.runs.segments import Slot, write_folder

import tracelens as tl
from tracelens.conversion.segments import convert
from tracelens.errors import NotATrace
from tracelens.schema.host import host_name, leave_note
from tracelens.schema.ownership import mark

NAME = "worker-00003-77"


def test_it_leads_there(tmp_path: Path) -> None:
    """Of a host that nobody knows to be ours the segments are read and left."""
    (tmp_path / "trace").mkdir()
    folder = write_folder(tmp_path / "local", [Slot(1, 2)])
    mark(folder, tmp_path / "trace")
    leave_note(tmp_path / "trace" / f"{NAME}.elsewhere", folder)
    trace = tl.open(tmp_path / "trace")
    assert trace.processes["events"].to_list() == [1]
    assert folder.exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"host": "node7", "path": "/local/t/x"}', "still on host node7, in /local/t/x"),
        (
            f'{{"host": "{host_name()}", "path": "/no/such"}}',
            "were on this host, in /no/such, and are",
        ),
        ("", "does not say where its segments lie"),
        ('{"host": 1}', "does not say where its segments lie"),
        ("[1]", "does not say where its segments lie"),
    ],
)
def test_a_note_without_its_segments_is_reported(
    tmp_path: Path, content: str, sentence: str
) -> None:
    """One sentence says what was found; next to other files it becomes a note."""
    (tmp_path / f"{NAME}.elsewhere").write_text(content)
    with pytest.raises(NotATrace, match=sentence):
        tl.open(tmp_path)
    write_folder(tmp_path / "other", [Slot(1, 2)]).rename(tmp_path / "worker-00003-78.segments")
    (note,) = [note for note in tl.open(tmp_path).notes if note.kind == "unreadable"]
    assert sentence in note.sentence


def test_note_beside_its_file(tmp_path: Path) -> None:
    """If the file exists, it counts; the note was left by a kill."""
    convert(write_folder(tmp_path, [Slot(1, 2)]))
    leave_note(tmp_path / f"{NAME}.elsewhere", tmp_path / "gone")
    trace = tl.open(tmp_path)
    assert trace.processes["events"].to_list() == [1]
    assert "unreadable" not in [note.kind for note in trace.notes]

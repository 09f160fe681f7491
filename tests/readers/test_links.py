"""In folders of other tools' files, as in our own, links out of the folder are not followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.fuzz.runs import put, write_other_files
from support.fuzz.subjects import SUBJECTS, bases

from tracelens import load
from tracelens.errors import EmptyTrace, NotATrace

if TYPE_CHECKING:
    from pathlib import Path

FOREIGN = ("kineto", "nsight", "flight_recorder")


def laid(name: str, tmp_path: Path) -> Path:
    """Return a file in a folder of several of its kind."""
    subject = SUBJECTS[name]
    write_other_files(subject, tmp_path / "run")
    put(subject, tmp_path / "run", bases(subject)[0])
    return tmp_path / "run" / subject.file_of(bases(subject)[0])


@pytest.mark.parametrize("name", FOREIGN)
def test_a_link_out_of_the_folder(name: str, tmp_path: Path) -> None:
    """It costs that file alone, and the note says what to do."""
    file = laid(name, tmp_path)
    all_files = load.open(file.parent).processes["file"].to_list()
    file.rename(tmp_path / file.name)
    file.symlink_to(tmp_path / file.name)
    trace = load.open(file.parent)
    assert trace.processes["file"].to_list() == [
        file_name for file_name in all_files if file_name != file.name
    ]
    (note,) = (note for note in trace.notes if note.kind == "unreadable")
    assert note.file == file.name
    assert "it is a link out of the trace" in note.sentence
    assert "put the file itself there" in note.sentence


@pytest.mark.parametrize("name", FOREIGN)
def test_a_link_within_the_folder(name: str, tmp_path: Path) -> None:
    """It is the file that it leads to; so is a link that the user names."""
    file = laid(name, tmp_path)
    files_before = load.open(file.parent).processes["file"].to_list()
    (file.parent / "kept").mkdir()
    file.rename(file.parent / "kept" / file.name)
    file.symlink_to(file.parent / "kept" / file.name)
    assert load.open(file.parent).processes["file"].to_list() == files_before
    file.unlink()
    file.symlink_to(tmp_path / file.name)
    (file.parent / "kept" / file.name).rename(tmp_path / file.name)
    assert load.open(file).processes["file"].to_list() == [file.name]


@pytest.mark.parametrize("name", FOREIGN)
def test_nothing_but_links(name: str, tmp_path: Path) -> None:
    """Nothing that they lead to is looked at, and one sentence says so."""
    file = laid(name, tmp_path)
    for entry in [*file.parent.iterdir()]:
        entry.rename(tmp_path / entry.name)
        entry.symlink_to(tmp_path / entry.name)
    with pytest.raises((EmptyTrace, NotATrace), match="is a link out of it: put the file itself"):
        load.open(file.parent)

"""A folder is TraceLens's own where its marker holds its own inode, and it is this user's."""

import os
import shutil
from pathlib import Path

import pytest

from tracelens.schema.ownership import MARKER_FILE, belongs_to, is_ours, mark


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that was made just now."""
    path = tmp_path / "folder"
    path.mkdir()
    return path


def test_a_marked_folder_is_ours(folder: Path, tmp_path: Path) -> None:
    assert not is_ours(folder)
    mark(folder)
    assert is_ours(folder)
    assert not belongs_to(folder, tmp_path)
    text = (folder / MARKER_FILE).read_text()
    assert text == f"tracelens.folder/1 {folder.stat().st_ino} 0\n"
    assert (folder / MARKER_FILE).stat().st_mode & 0o133 == 0
    with pytest.raises(FileExistsError):
        mark(folder)
    assert (folder / MARKER_FILE).read_text() == text


def test_a_folder_belongs_to_one_trace(folder: Path, tmp_path: Path) -> None:
    trace, other_trace = tmp_path / "trace", tmp_path / "other"
    trace.mkdir()
    other_trace.mkdir()
    mark(folder, trace)
    assert is_ours(folder)
    assert belongs_to(folder, trace)
    assert not belongs_to(folder, other_trace)
    assert not belongs_to(folder, tmp_path / "gone")
    assert not belongs_to(tmp_path / "gone", trace)


def test_a_copy_is_not_ours(folder: Path, tmp_path: Path) -> None:
    mark(folder)
    assert not is_ours(shutil.copytree(folder, tmp_path / "copy"))


def test_a_link_proves_nothing(folder: Path, tmp_path: Path) -> None:
    """Neither one to the folder, nor one in place of the marker."""
    mark(folder)
    (tmp_path / "link").symlink_to(folder)
    assert not is_ours(tmp_path / "link")
    (folder / MARKER_FILE).rename(tmp_path / "marker")
    (folder / MARKER_FILE).symlink_to(tmp_path / "marker")
    assert not is_ours(folder)


def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / MARKER_FILE)
    assert not is_ours(folder)


@pytest.mark.parametrize(
    "text",
    [
        *("", "x {inode} 0", "{format} {inode}", "{format} {inode} 0 0"),
        *("{format} x 0", "{format} 1 0", "{format} {inode} x"),
    ],
)
def test_what_is_no_marker(folder: Path, text: str) -> None:
    inode = folder.stat().st_ino
    (folder / MARKER_FILE).write_text(text.format(format="tracelens.folder/1", inode=inode))
    assert not is_ours(folder)


@pytest.mark.parametrize(("beyond", "ours"), [(0, True), (1, False)])
def test_a_marker_has_an_end(folder: Path, beyond: int, *, ours: bool) -> None:
    """A marker is a kibibyte at most."""
    text = f"tracelens.folder/1 {folder.stat().st_ino} 0"
    (folder / MARKER_FILE).write_text(" " * (1024 - len(text) + beyond) + text)
    assert is_ours(folder) is ours


def test_another_users_folder_is_not_ours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark(folder)
    for other in (os.geteuid() + 1, os.geteuid() - 1):
        with monkeypatch.context() as changed:
            changed.setattr(os, "geteuid", lambda other=other: other)
            assert not is_ours(folder)
    monkeypatch.delattr(os, "geteuid")  # a system without users
    assert is_ours(folder)


def test_descriptors_are_closed(folder: Path) -> None:
    descriptors_before = len(list(Path("/proc/self/fd").iterdir()))
    mark(folder)
    assert is_ours(folder)
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors_before

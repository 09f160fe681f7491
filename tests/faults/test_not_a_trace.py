"""What is not a trace file is left out with one sentence, and the other ranks are read unchanged."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from typing import TYPE_CHECKING

import pytest
from support.runs.damage import RUN, VICTIM, assert_left_out, write_run

from tracelens import load
from tracelens.errors import EmptyTrace, NotATrace, TraceNotFound
from tracelens.simulator.synthetic import write

if TYPE_CHECKING:
    from pathlib import Path


class Bomb:
    """Says so if anybody unpickles it."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("unpickled",)


CONTENTS = {
    "json": (json.dumps({"traceEvents": []}).encode(), "not an Arrow file"),
    "gzip": (gzip.compress(b"x" * 1000), "not an Arrow file"),
    "parquet": (b"PAR1" + bytes(100), "not an Arrow file"),
    "pickle": (pickle.dumps(Bomb()), "not an Arrow file"),
    "text": (b"hello", "not an Arrow file"),
    "one byte": (b"A", "not an Arrow file"),
    "empty": (b"", "it is empty (0 bytes)"),
    "magic only": (b"ARROW1\0\0", "header is damaged or cut off"),
    "magic twice": (b"ARROW1\0\0ARROW1", "header is damaged or cut off"),
    "noise": (b"ARROW1\0\0" + bytes(range(256)) * 8, "header is damaged or cut off"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_files_of_other_formats_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other formats under our name, and nothing at all."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "trace"
    content, said = CONTENTS[name]
    write_run(folder).write_bytes(content)
    assert_left_out(folder, said)
    assert not (tmp_path / "unpickled").exists()


def test_folder_with_a_files_name(tmp_path: Path) -> None:
    """A folder where a file should be is left out too."""
    victim = write_run(tmp_path)
    victim.unlink()
    victim.mkdir()
    trace = load.open(tmp_path)
    assert [note.sentence for note in trace.notes] == [
        f"'{VICTIM}' was left out: it is not a file."
    ]


def test_a_dangling_link_costs_one_file(tmp_path: Path) -> None:
    victim = write_run(tmp_path)
    victim.unlink()
    victim.symlink_to(tmp_path / "nowhere")
    trace = load.open(tmp_path)
    assert trace.workers["rank"].to_list() == [0, 2]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """The sentence says what to do next."""
    with pytest.raises(TraceNotFound, match=r"no '.*/absent'.*tracelens record"):
        load.open(tmp_path / "absent")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    """An empty folder says what was expected."""
    with pytest.raises(EmptyTrace, match=r"holds no recorded process \(expected files such as"):
        load.open(tmp_path)


def test_a_folder_of_traces_names_one_to_open(tmp_path: Path) -> None:
    for name in ("monday", "tuesday"):
        write(RUN, tmp_path / name)
    with pytest.raises(EmptyTrace, match=r"2 trace folders, open one of them, .*/tuesday'"):
        load.open(tmp_path)


def test_a_folder_of_one_trace_is_that_trace(tmp_path: Path) -> None:
    """The folder above a single trace is read as that trace, as profilers write it."""
    inner = tmp_path / "plugins" / "profile" / "monday"
    write(RUN, inner)
    assert load.open(tmp_path).path == inner


def test_a_file_of_another_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(NotATrace, match="is not a trace that TraceLens reads"):
        load.open(tmp_path / "notes.txt")


def test_a_trace_without_a_readable_file_is_one_sentence(tmp_path: Path) -> None:
    """If no file can be read, one sentence gives the first reason."""
    for rank in range(3):
        (tmp_path / f"worker-{rank:05d}-1.arrow").write_text("{}")
    with pytest.raises(NotATrace, match=r"None of the 3 recordings .*worker-00000.*not an Arrow"):
        load.open(tmp_path)

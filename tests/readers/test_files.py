"""A new reader names its suffixes and reads one file; the rest is common to all readers of files."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from tracelens.errors import NotATrace, UnusableInput
from tracelens.readers.base import Reading
from tracelens.readers.files import FileSet, FilesReader, ReadFile
from tracelens.schema.gate import read_contents

MAGIC = b"toy"


class ToyReader(FilesReader[ReadFile]):
    """Reads files such as ``toy 5``, with this number of spans."""

    name = "toy"
    suffixes = (".toy", ".txt")
    why_no_rank = "Toys do not say ranks"
    advice_if_cut = "Write all of it."

    def is_format(self, file: Path, /) -> bool:
        return read_contents(file).startswith(MAGIC)

    def read_file(self, file: Path, /) -> ReadFile:
        count = read_contents(file).removeprefix(MAGIC).strip()
        if not count.isdigit():
            raise NotATrace("it has no number")
        start_ns = [10 * index for index in range(int(count))]
        rows = pl.DataFrame({"start_ns": start_ns, "end_ns": [start + 5 for start in start_ns]})
        rows = rows.with_columns(kind=pl.lit("forward"), name=pl.lit("play"))
        return ReadFile(rows=rows, is_cut=count == b"3", damage_reason="it is short")

    def list_facts(self, run: FileSet[ReadFile]) -> Iterator[tuple[str, str]]:
        yield "kinds", ", ".join(run.kinds)


def files_of(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / f"{name}.toy").write_text(text)
    return folder


def test_a_file_alone_is_rank_0_of_an_unknown_world(tmp_path: Path) -> None:
    trace = ToyReader().read(files_of(tmp_path, a="toy 4") / "a.toy")
    assert trace.processes.select("rank", "events").rows() == [(0, 4)]
    assert trace.recognition
    assert trace.recognition.format == "toy"
    assert ("kinds", "forward") in trace.recognition.facts
    assert "does not say of which rank" in trace.recognition.gaps[0].missing
    assert "assumed" in {note.kind for note in trace.notes}


def test_the_user_says_the_ranks_of_several_files(tmp_path: Path) -> None:
    folder = files_of(tmp_path, a="toy 4", b="toy 5")
    assert ToyReader().sniff(folder)
    with pytest.raises(UnusableInput, match=r"Toys do not say ranks: .* --rank-of a\.toy=RANK"):
        ToyReader().read(folder)
    trace = ToyReader().read(folder, Reading(rank_of={"a.toy": 3, "b.toy": 1}))
    assert trace.processes.select("rank", "events").rows() == [(1, 5), (3, 4)]


def test_a_damaged_file_is_noted_where_there_are_others(tmp_path: Path) -> None:
    folder = files_of(tmp_path, a="toy", b="toy 3")
    trace = ToyReader().read(folder, Reading(rank_of={"b.toy": 0}))
    assert {note.kind: note.file for note in trace.notes}["unreadable"] == "a.toy"
    assert trace.recognition
    assert trace.recognition.gaps[0].missing == "b.toy was cut off"
    with pytest.raises(NotATrace, match=r"'a\.toy' cannot be read: it has no number"):
        ToyReader().read(folder / "a.toy")


def test_files_with_the_surest_suffix_are_looked_at_first(tmp_path: Path) -> None:
    """Files of a tool's other outputs may be many, and have names of other tools."""
    for number in range(20):
        (tmp_path / f"a{number}.txt").write_text("nothing")
    assert not ToyReader().sniff(tmp_path)
    assert ToyReader().sniff(files_of(tmp_path, z="toy 1"))

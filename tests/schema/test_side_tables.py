"""Side tables survive both of their forms: lines while recording, metadata afterwards."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import NewerVersion, NotATrace
from tracelens.schema.side import (
    END_LINE,
    ClockReading,
    Communicator,
    Definition,
    Process,
    SideTables,
    Thread,
    dropped_line,
    from_lines,
    to_line,
)
from tracelens_instrument.core import failures
from tracelens_instrument.storage.side_file import SideFile

if TYPE_CHECKING:
    from pathlib import Path

WORDS = st.text(max_size=20)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
SIDES = st.builds(
    SideTables,
    process=st.builds(
        Process,
        role=st.sampled_from(["worker", "ps"]),
        rank=st.integers(0, 10**6),
        host=WORDS,
        pid=st.integers(1, 2**22),
        parent_rank_pid=st.none() | st.integers(1, 2**22),
        incarnation=NUMBERS,
        job=WORDS,
        shard=st.none() | st.integers(0, 100),
        versions=st.dictionaries(WORDS, WORDS, max_size=3),
    ),
    threads=st.lists(
        st.builds(Thread, st.integers(0, 2**16), WORDS, NUMBERS, st.booleans()), max_size=3
    ).map(tuple),
    communicators=st.lists(
        st.builds(
            Communicator, st.integers(0, 9), WORDS, WORDS, st.lists(st.integers(0, 9), max_size=4)
        ),
        max_size=3,
    ).map(tuple),
    clocks=st.lists(
        st.builds(
            ClockReading,
            st.sampled_from(["local", "ping_pong"]),
            NUMBERS,
            NUMBERS,
            wall_ns=st.none() | NUMBERS,
            peer=st.none() | st.integers(0, 9),
            offset_ns=st.none() | NUMBERS,
        ),
        max_size=3,
    ).map(tuple),
    dropped=st.dictionaries(WORDS, st.integers(0, 2**40), max_size=3),
    complete=st.booleans(),
)


@given(SIDES)
def test_metadata_is_lossless(side: SideTables) -> None:
    """All but the definitions, which stand in the columns."""
    assert SideTables.from_metadata(side.to_metadata()) == side


@given(SIDES)
def test_lines_are_lossless(side: SideTables) -> None:
    """In any text that a name may hold."""
    lines = [
        to_line("process", side.process),
        *(to_line("threads", row) for row in side.threads),
        *(to_line("communicators", row) for row in side.communicators),
        *(to_line("clocks", row) for row in side.clocks),
        *(dropped_line(reason, count) for reason, count in side.dropped.items()),
        *([END_LINE] if side.complete else []),
    ]
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert from_lines(lines) == side


def test_definitions_of_lines() -> None:
    """They are kept with the optional fields they have."""
    rows = (Definition(1, "a", "user"), Definition(2, "b", "ps", op="push", shard=1))
    lines = [to_line("process", Process()), *(to_line("definitions", row) for row in rows)]
    assert from_lines(lines).definitions == rows


@pytest.mark.parametrize(
    "metadata", [None, {}, {b"tracelens": b"{"}, {b"tracelens": b"[]"}, {b"tracelens": b"{}"}]
)
def test_metadata_that_is_not_ours(metadata: dict[bytes, bytes] | None) -> None:
    """An Arrow file of somebody else, or a damaged one of ours."""
    with pytest.raises(NotATrace):
        SideTables.from_metadata(metadata)


def test_newer_metadata() -> None:
    """Written by a TraceLens to come."""
    side = SideTables(process=Process(schema=99))
    with pytest.raises(NewerVersion, match="schema version 99"):
        SideTables.from_metadata(side.to_metadata())


def append_rows(side: SideFile) -> None:
    for number in range(3):
        side.append(to_line("process", Process(rank=number)))


def no_room(_descriptor: int, _offset: int, _length: int) -> None:
    raise OSError(28, "No space left on device")


def test_reserve_gives_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a line does not fit, room that was held for it is given back, and then it does."""
    write, given = os.write, os.ftruncate
    room = [0, 7, 0]

    def limited(descriptor: int, content: bytes) -> int:
        if not room:
            return write(descriptor, content)
        left = room[0]
        if left == 0:
            raise OSError(28, "No space left on device")
        return write(descriptor, content[:left])

    def give(descriptor: int, size: int) -> None:
        given(descriptor, size)
        room.pop(0)

    side = SideFile(tmp_path)
    monkeypatch.setattr(os, "write", limited)
    monkeypatch.setattr(os, "ftruncate", give)
    append_rows(side)
    side.close()
    assert room == []
    lines = (tmp_path / "side.jsonl").read_bytes().splitlines(keepends=True)
    assert lines[0] == b'{"table\n'
    assert [from_lines([line]).process.rank for line in lines[1:]] == [0, 1, 2]


def test_line_that_did_not_fit_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk tears at most one line, and nothing is lost when there is room again."""
    room = [5, 0, 10**6, 10**6, 10**6]
    write = os.write

    def limited(descriptor: int, content: bytes) -> int:
        left = room.pop(0)
        if left == 0:
            raise OSError(28, "No space left on device")
        return write(descriptor, content[:left])

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    side = SideFile(tmp_path)
    monkeypatch.setattr(failures, "_warned", {})
    monkeypatch.setattr(os, "write", limited)
    with pytest.warns(RuntimeWarning, match="the side file of the recording cannot be written"):
        append_rows(side)
    side.close()
    assert room == []
    lines = (tmp_path / "side.jsonl").read_bytes().splitlines(keepends=True)
    assert lines[0] == b'{"tab\n'
    assert [from_lines([line]).process.rank for line in lines[1:]] == [0, 1, 2]

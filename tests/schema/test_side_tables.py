"""Side tables survive both of their forms: lines while recording, metadata afterwards."""

import json
import os
from dataclasses import FrozenInstanceError, asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import NewerVersion, NotATrace
from tracelens.schema.side import (
    COMMUNICATORS_KEY,
    END_LINE,
    METADATA_CHECKSUM_KEY,
    METADATA_KEY,
    SUMMARY_KEY,
    ClockReading,
    Communicator,
    Definition,
    Kept,
    Past,
    Process,
    Retention,
    SideTables,
    Summary,
    Thread,
    format_dropped_line,
    format_line,
    is_intact,
    parse_lines,
    summarize_steps,
    with_checksum,
)
from tracelens.schema.vocabulary import SCHEMA_VERSION
from tracelens_instrument.core import failures
from tracelens_instrument.storage.side_file import SideFile

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
        cores=st.none() | WORDS,
        core_quota=st.none() | st.floats(0, 1e6),
        versions=st.dictionaries(WORDS, WORDS, max_size=3),
    ),
    threads=st.lists(
        st.builds(
            Thread, st.integers(0, 2**16), WORDS, NUMBERS, st.booleans(), st.none() | NUMBERS
        ),
        max_size=3,
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
    retention=st.builds(Retention, last=st.none() | st.integers(1, 9), burst=st.integers(1, 9)),
    kept=st.lists(st.builds(Kept, NUMBERS, NUMBERS), max_size=2).map(tuple),
    past=st.lists(st.builds(Past, *[NUMBERS] * len(fields(Past))), max_size=2).map(tuple),
)
CONVERTED = st.builds(
    replace,
    SIDES,
    thinned=st.dictionaries(WORDS, st.integers(0, 2**40), max_size=3),
    sorted=st.booleans(),
    notes=st.lists(WORDS, max_size=3).map(tuple),
)
SUMMARY = Summary(9, 8, 2, 5, 70, 1, ["step", "user"])
ONE = SideTables(
    process=Process(rank=1, world=2),
    threads=(Thread(0, "main"),),
    communicators=(Communicator(0, "a", "world", [0, 1]),),
    retention=Retention(last=3),
    kept=(Kept(1, 2),),
    past=(Past(1, 2, 3, 4, 5, 6),),
    thinned={"user": 4},
    sorted=False,
    notes=("It was cut.",),
)


@given(CONVERTED, st.sampled_from([1, SCHEMA_VERSION]))
def test_side_tables_survive_the_metadata(side: SideTables, version: int) -> None:
    """All tables but the definitions, which are columns, in each version that is written."""
    side = replace(side, process=replace(side.process, schema=version))
    assert SideTables.from_metadata(side.to_metadata()) == side


@pytest.mark.parametrize(
    ("version", "keys"),
    [
        (1, [METADATA_KEY]),
        (2, [METADATA_KEY, COMMUNICATORS_KEY, SUMMARY_KEY, METADATA_CHECKSUM_KEY]),
    ],
)
def test_a_version_keeps_its_layout(version: int, keys: list[bytes]) -> None:
    """Whoever reads the first version finds one text; the second says groups of ranks once."""
    group = Communicator(0, "a", "world", [0, 1])
    side = SideTables(process=Process(schema=version), communicators=(group,))
    metadata = side.to_metadata(SUMMARY)
    assert list(metadata) == keys
    assert ("communicators" in json.loads(metadata[METADATA_KEY])) is (version == 1)


@given(st.data())
def test_a_changed_text_is_noticed(data: st.DataObject) -> None:
    """In whichever text a bit is changed, and in the checksum."""
    metadata = ONE.to_metadata(SUMMARY)
    assert is_intact(metadata)
    key = data.draw(st.sampled_from(sorted(metadata)))
    text = bytearray(metadata[key])
    text[data.draw(st.integers(0, len(text) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    wrong = metadata | {key: bytes(text)}
    assert not is_intact(wrong)
    with pytest.raises(NotATrace, match="checksum is wrong"):
        SideTables.from_metadata(wrong)


def test_texts_without_a_checksum_are_believed() -> None:
    """As the first version and other programs write them."""
    metadata = SideTables(process=Process(rank=3)).to_metadata()
    del metadata[METADATA_CHECKSUM_KEY]
    assert is_intact(metadata)
    assert is_intact({})
    assert is_intact(None)
    assert SideTables.from_metadata(metadata).process.rank == 3
    assert is_intact(with_checksum(metadata))


def test_a_checksum_is_not_computed_twice() -> None:
    """Who found it right already says so."""
    metadata = SideTables().to_metadata() | {METADATA_CHECKSUM_KEY: b"00000000"}
    assert SideTables.from_metadata(metadata, is_checked=True) == SideTables()


SINCE = ("retention", "kept", "past", "thinned", "sorted", "notes")


@pytest.mark.parametrize("name", SINCE)
def test_tables_that_came_later(name: str) -> None:
    """Of a file from before them: nothing was left out, and rows are in order."""
    packed = json.loads(ONE.to_metadata()[METADATA_KEY])
    del packed[name]
    metadata = ONE.to_metadata() | {METADATA_KEY: json.dumps(packed).encode()}
    late: dict[str, Any] = {"retention": Retention(), "thinned": {}, "sorted": True}
    expected = replace(ONE, **{name: late.get(name, ())})
    assert SideTables.from_metadata(with_checksum(metadata)) == expected


SPARSE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "process",
        {"schema": 2},
        {"role": "worker", "rank": 0, "world": 1, "local_rank": 0, "host": "", "pid": 0}
        | {"clock_domain": "", "parent_pid": 0, "parent_rank_pid": None, "incarnation": 0}
        | {"job": "", "shard": None, "cores": None, "core_quota": None, "versions": {}},
    ),
    (
        "definitions",
        {"id": 1, "name": "a", "kind": "user"},
        {"type": "span", "op": None, "algorithm": None, "communicator": None, "shard": None},
    ),
    (
        "threads",
        {"index": 0, "name": "main"},
        {"native_id": 0, "in_flight": False, "device": None},
    ),
    (
        "clocks",
        {"method": "local", "monotonic_ns": 1, "window_ns": 2},
        {"wall_ns": None, "peer": None, "offset_ns": None, "device": None}
        | {"ran_ns": None, "queued_ns": None},
    ),
    ("retention", {}, {"last": None, "every": None, "burst": 1, "budget_bytes": None}),
]


@pytest.mark.parametrize(("table", "stated", "otherwise"), SPARSE, ids=[row[0] for row in SPARSE])
def test_what_a_row_does_not_say(
    table: str, stated: dict[str, Any], otherwise: dict[str, Any]
) -> None:
    """Missing fields get their defaults; a job without a world is one worker."""
    line = json.dumps({"table": table, "of a later version": 1, **stated}).encode()
    found = getattr(parse_lines([format_line("process", Process()), line]), table)
    (row,) = found if isinstance(found, tuple) else [found]
    assert asdict(row).items() >= (stated | otherwise).items()


@pytest.mark.parametrize(
    "row",
    [
        Process(),
        Definition(1, "a", "user"),
        Thread(0, "main"),
        Communicator(0, "a", "world", []),
        ClockReading("local", 1, 2),
        Retention(),
        Kept(1, 2),
        Past(1, 2, 3, 4, 5, 6),
        SideTables(),
        SUMMARY,
    ],
    ids=lambda row: type(row).__name__,
)
def test_rows_stay_as_they_were_read(row: Any) -> None:
    """Rows that are the same in several files are read once and shared."""
    with pytest.raises(FrozenInstanceError):
        setattr(row, fields(row)[0].name, 9)


WHOLE = ("rows", "spans", "steps", "dropped", "first_ns", "last_ns")
UNSOUND = [
    *((name, value) for name in WHOLE for value in (-1, 2**63, 1.5, True, "1")),
    *((name, None) for name in WHOLE),  # without the other time, too
    *(("kinds", value) for value in (None, "user", [1], ["user", None])),
]


@pytest.mark.parametrize(("name", "value"), UNSOUND)
def test_an_impossible_summary_is_ignored(name: str, value: Any) -> None:
    """An impossible summary is ignored, and the events are read."""
    wrong = vars(SUMMARY) | {name: value}
    assert Summary.from_metadata({SUMMARY_KEY: json.dumps(wrong).encode()}) is None


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [0, 1, 2**63 - 1])
def test_a_summary_that_can_be(name: str, value: Any) -> None:
    summary = replace(SUMMARY, **{name: value})
    assert Summary.from_metadata(SideTables().to_metadata(summary)) == summary


def test_a_summary_of_no_events_has_no_times() -> None:
    summary = Summary(0, 0, 0, None, None, 0, [])
    assert Summary.from_metadata(SideTables().to_metadata(summary)) == summary
    assert Summary.from_metadata(SideTables().to_metadata()) is None
    assert Summary.from_metadata({SUMMARY_KEY: b"{"}) is None
    assert Summary.from_metadata(None) is None


STEPS = st.tuples(st.integers(-3, 9), st.integers(0, 20), st.integers(0, 20))


@given(st.lists(STEPS, max_size=6))
def test_steps_are_summed_up(steps: list[tuple[int, int, int]]) -> None:
    """Those with a number that ended, also within a nanosecond."""
    took = [(step, end - start) for step, start, end in steps if step >= 0 and start <= end]
    found = summarize_steps(steps)
    assert len(found) == bool(took)
    for past in found:
        assert past.steps == len(took)
        assert past.total_ns == sum(length for _, length in took)
        assert [past.first, past.last] == [min(took)[0], max(took)[0]]
        assert (past.longest, past.longest_ns) in took
        assert past.longest_ns == max(length for _, length in took)


@given(SIDES)
def test_lines_are_lossless(side: SideTables) -> None:
    """In any text that a name may hold."""
    lines = [
        format_line("process", side.process),
        *(format_line("threads", row) for row in side.threads),
        *(format_line("communicators", row) for row in side.communicators),
        *(format_line("clocks", row) for row in side.clocks),
        *(format_line("kept", row) for row in side.kept),
        *(format_line("past", row) for row in side.past),
        format_line("retention", side.retention),
        *(format_dropped_line(reason, count) for reason, count in side.dropped.items()),
        *([END_LINE] if side.complete else []),
    ]
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert parse_lines(lines) == side


def test_definitions_keep_their_optional_fields() -> None:
    rows = (Definition(1, "a", "user"), Definition(2, "b", "ps", op="push", shard=1))
    lines = [format_line("process", Process()), *(format_line("definitions", row) for row in rows)]
    assert parse_lines(lines).definitions == rows


@pytest.mark.parametrize(
    "metadata", [None, {}, {b"tracelens": b"{"}, {b"tracelens": b"[]"}, {b"tracelens": b"{}"}]
)
def test_metadata_that_is_not_ours(metadata: dict[bytes, bytes] | None) -> None:
    """An Arrow file of somebody else, or a damaged one of ours."""
    with pytest.raises(NotATrace):
        SideTables.from_metadata(metadata)


def test_metadata_of_a_newer_version_is_refused() -> None:
    side = SideTables(process=Process(schema=99))
    with pytest.raises(NewerVersion, match="schema version 99"):
        SideTables.from_metadata(side.to_metadata())


@pytest.mark.parametrize("version", [None, 0, -1, "2", 1.5])
def test_versions_that_there_are_not(version: object) -> None:
    line = json.dumps({"table": "process", "schema": version}).encode()
    with pytest.raises(NotATrace, match="expected a number from 1"):
        parse_lines([line])


@pytest.mark.parametrize(("version", "fits"), [(1, True), (SCHEMA_VERSION + 1, False)])
def test_versions_have_an_end(version: int, *, fits: bool) -> None:
    lines = [format_line("process", Process(schema=version))]
    if fits:
        assert parse_lines(lines).process.schema == version
        return
    with pytest.raises(NewerVersion, match=f"reads up to {SCHEMA_VERSION}: update TraceLens"):
        parse_lines(lines)


DAMAGED = (b"", b"{", b"3", b"{}", b'{"table":"threads"}', b'{"table":"new","a":1}')


@pytest.mark.parametrize("damaged", DAMAGED)
def test_lines_that_say_nothing(damaged: bytes) -> None:
    """What stands before and after them is read."""
    rows = [format_line("process", ONE.process), format_line("kept", ONE.kept[0])]
    found = parse_lines([line for row in rows for line in (damaged, row)] + [damaged])
    assert found == SideTables(process=ONE.process, kept=ONE.kept)


def test_a_side_file_without_a_process() -> None:
    with pytest.raises(NotATrace, match="names no process"):
        parse_lines([format_line("threads", Thread(0, "main")), END_LINE])


def test_the_last_count_counts() -> None:
    """Counts are of all so far."""
    lines = [format_dropped_line("full", count) for count in (1, 5)] + [
        format_dropped_line("late", 2)
    ]
    found = parse_lines([format_line("process", Process()), *lines])
    assert found.dropped == {"full": 5, "late": 2}


def append_rows(side: SideFile) -> None:
    for number in range(3):
        side.append(format_line("process", Process(rank=number)))


def no_room(_descriptor: int, _offset: int, _length: int) -> None:
    raise OSError(28, "No space left on device")


def test_reserve_gives_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a line does not fit, room that was held for it is given back, and then it does."""
    write, truncate = os.write, os.ftruncate
    room = [0, 7, 0]

    def limited(descriptor: int, content: bytes) -> int:
        if not room:
            return write(descriptor, content)
        room_left = room[0]
        if room_left == 0:
            raise OSError(28, "No space left on device")
        return write(descriptor, content[:room_left])

    def give(descriptor: int, size: int) -> None:
        truncate(descriptor, size)
        room.pop(0)

    side = SideFile(tmp_path)
    monkeypatch.setattr(os, "write", limited)
    monkeypatch.setattr(os, "ftruncate", give)
    append_rows(side)
    side.close()
    assert room == []
    lines = (tmp_path / "side.jsonl").read_bytes().splitlines(keepends=True)
    assert lines[0] == b'{"table\n'
    assert [parse_lines([line]).process.rank for line in lines[1:]] == [0, 1, 2]


def test_line_that_did_not_fit_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk tears at most one line, and nothing is lost when there is room again."""
    room = [5, 0, 10**6, 10**6, 10**6]
    write = os.write

    def limited(descriptor: int, content: bytes) -> int:
        room_left = room.pop(0)
        if room_left == 0:
            raise OSError(28, "No space left on device")
        return write(descriptor, content[:room_left])

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
    assert [parse_lines([line]).process.rank for line in lines[1:]] == [0, 1, 2]

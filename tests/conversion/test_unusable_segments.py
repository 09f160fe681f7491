"""A segments folder that is damaged, foreign or newer is refused in a sentence, or read in part."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.runs.segments import PROCESS, Slot, header, newer, write_folder

from tracelens.conversion.folder import (
    PROGRESS_FILE,
    HeldSlot,
    Progress,
    load_progress,
    save_progress,
)
from tracelens.conversion.segments import decode
from tracelens.errors import NewerVersion, NotATrace, TraceNotFound
from tracelens.schema.record import BYTE_ORDER, RECORD_BYTES
from tracelens.schema.side import Definition, format_dropped_line, format_line
from tracelens.schema.vocabulary import SCHEMA_VERSION

ONE = Slot(start_ns=10, end_ns=20)


def starts(folder: Path) -> list[int]:
    found: list[Any] = decode(folder)[0]["start_ns"].to_pylist()
    return found


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (header(magic=b"PNG     "), "does not begin as a segment"),
        (header(order=int.from_bytes(BYTE_ORDER.to_bytes(4, "big"), "little")), "byte order"),
        (header(record_bytes=128), "records of 128 bytes, expected 64"),
        (header(version=0), "schema version is 0"),
    ],
    ids=["another file", "byte order", "record size", "version"],
)
def test_a_file_that_is_no_segment_is_refused(tmp_path: Path, bad: bytes, sentence: str) -> None:
    """A file that is not a segment, or not of this machine's kind."""
    folder = write_folder(tmp_path, [ONE])
    (folder / "000000.seg").write_bytes(bad + ONE.pack())
    with pytest.raises(NotATrace, match=sentence):
        decode(folder)


def test_a_segment_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, [ONE])
    (folder / "000000.seg").write_bytes(header(version=SCHEMA_VERSION + 1) + ONE.pack())
    with pytest.raises(NewerVersion, match="update TraceLens to read it"):
        decode(folder)


def test_newer_side_file(tmp_path: Path) -> None:
    """So is a side file that says it is newer."""
    folder = write_folder(tmp_path, [ONE], process=newer())
    with pytest.raises(NewerVersion, match=f"schema version {SCHEMA_VERSION + 1}"):
        decode(folder)


def test_no_folder_and_no_side_file(tmp_path: Path) -> None:
    """Without a side file nobody knows whose events these are."""
    with pytest.raises(TraceNotFound, match=r"side\.jsonl"):
        decode(tmp_path / "nowhere")
    folder = write_folder(tmp_path, [ONE])
    (folder / "side.jsonl").unlink()
    with pytest.raises(TraceNotFound, match=r"side\.jsonl"):
        decode(folder)


def test_side_file_without_a_process(tmp_path: Path) -> None:
    """An empty side file, or one of noise, names no process."""
    folder = write_folder(tmp_path, [ONE])
    for content in (b"", b"\x00\xff\n{}\n[1]\nnull\n"):
        (folder / "side.jsonl").write_bytes(content)
        with pytest.raises(NotATrace, match="names no process"):
            decode(folder)


def test_damaged_lines_cost_only_themselves(tmp_path: Path) -> None:
    """Lines that are torn, unknown or wrong are passed over."""
    folder = write_folder(tmp_path, end=False)
    lines = [
        format_line("process", PROCESS),
        b'{"table":"weather","rain":true}\n',
        b'{"table":"definitions","id":"one"}\n',
        b'{"table":"definitions"\n',
        b"\n",
        format_dropped_line("reason", 2),
        format_dropped_line("reason", 5),
        format_line("definitions", Definition(1, "piece", "user"))[:-9],
    ]
    (folder / "side.jsonl").write_bytes(b"".join(lines))
    _, side = decode(folder)
    assert side.process == PROCESS
    assert side.dropped == {"reason": 5}
    assert not side.complete


def test_columns_of_a_later_minor_version_are_passed_over(tmp_path: Path) -> None:
    """Fields that this version does not know do not hinder reading."""
    folder = write_folder(tmp_path, [ONE])
    row = json.loads(format_line("process", PROCESS)) | {"mood": "good"}
    (folder / "side.jsonl").write_bytes(json.dumps(row).encode() + b"\n")
    assert decode(folder)[1].process == PROCESS


def test_segment_cut_off(tmp_path: Path) -> None:
    """The whole records of a segment that is too short are read."""
    folder = write_folder(tmp_path, [ONE, Slot(start_ns=30, end_ns=40)])
    path = folder / "000000.seg"
    content = path.read_bytes()
    path.write_bytes(content[: 2 * RECORD_BYTES + 13])
    assert starts(folder) == [10]
    path.write_bytes(content[: RECORD_BYTES - 1])
    assert starts(folder) == []
    path.write_bytes(b"")
    assert starts(folder) == []


def test_segment_killed_while_it_was_made(tmp_path: Path) -> None:
    """A file of zeros is a segment that was never used."""
    folder = write_folder(tmp_path, [ONE])
    (folder / "000001.seg").write_bytes(bytes(4096))
    assert starts(folder) == [10]


def test_free_slots_between_used_ones(tmp_path: Path) -> None:
    """A slot that was reserved and never written is passed over."""
    folder = write_folder(tmp_path, [ONE, Slot(start_ns=20, definition=0), Slot(start_ns=30)])
    assert starts(folder) == [10, 30]


def test_unknown_definition_is_counted(tmp_path: Path) -> None:
    """A record whose meaning was lost is lost, and said to be."""
    strangers = [Slot(start_ns=1, definition=number) for number in (2, 7, 2**32 - 1)]
    folder = write_folder(tmp_path, [ONE, *strangers])
    table, side = decode(folder)
    assert table["start_ns"].to_pylist() == [10]
    assert side.dropped == {"unknown definition": 3}


def test_records_without_definitions_are_of_unknown_kind(tmp_path: Path) -> None:
    """Every record is of unknown kind."""
    folder = write_folder(tmp_path, [ONE], definitions=())
    table, side = decode(folder)
    assert table.num_rows == 0
    assert side.dropped == {"unknown definition": 1}


def test_negative_duration_is_counted(tmp_path: Path) -> None:
    """A span that ends before it begins cannot be shown, and is said to be lost."""
    slots = [ONE, Slot(start_ns=50, end_ns=49), Slot(start_ns=50, end_ns=-1), Slot(start_ns=60)]
    table, side = decode(write_folder(tmp_path, slots))
    assert table["start_ns"].to_pylist() == [10, 60]
    assert side.dropped == {"negative duration": 2}


def test_instant_has_no_end_to_be_wrong(tmp_path: Path) -> None:
    """What an instant's end says does not matter."""
    definitions = [Definition(1, "saved", "checkpoint", type="instant")]
    table, side = decode(
        write_folder(tmp_path, [Slot(start_ns=50, end_ns=1)], definitions=definitions)
    )
    assert table["duration_ns"].to_pylist() == [0]
    assert side.dropped == {}


def test_more_words_than_a_small_dictionary_holds(tmp_path: Path) -> None:
    """Algorithms beyond the first 126 become one; nothing fails."""
    definitions = [Definition(n, f"n{n}", "user", algorithm=f"a{n}") for n in range(1, 301)]
    slots = [Slot(start_ns=n, end_ns=n + 1, definition=n) for n in range(1, 301)]
    table, side = decode(write_folder(tmp_path, slots, definitions=definitions))
    assert table["name"].to_pylist() == [f"n{n}" for n in range(1, 301)]
    algorithms = table["algorithm"].to_pylist()
    assert algorithms[:126] == [f"a{n}" for n in range(1, 127)]
    assert set(algorithms[126:]) == {"other"}
    assert side.dropped == {}


def test_type_of_a_later_version(tmp_path: Path) -> None:
    """A type of event that this version does not know is lost, and said to be."""
    definitions = [Definition(1, "piece", "user"), Definition(2, "link", "user", type="link")]
    slots = [ONE, Slot(start_ns=30, definition=2)]
    table, side = decode(write_folder(tmp_path, slots, definitions=definitions))
    assert table["start_ns"].to_pylist() == [10]
    assert side.dropped == {"unknown definition": 1}


@pytest.mark.parametrize(
    "damage",
    [
        {"id": "one"},
        {"id": 2**70},
        {"name": 5},
        {"kind": None},
        {"op": [1]},
        {"algorithm": {}},
        {"communicator": "world"},
        {"shard": 2**40},
        {"type": []},
    ],
)
def test_definition_that_makes_no_sense(tmp_path: Path, damage: dict[str, object]) -> None:
    """It is as good as none, and the others are read."""
    folder = write_folder(tmp_path, [ONE, Slot(start_ns=30, end_ns=31, definition=2)])
    row = json.loads(format_line("definitions", Definition(2, "b", "user"))) | damage
    with (folder / "side.jsonl").open("ab") as file:
        file.write(json.dumps(row).encode() + b"\n")
    table, side = decode(folder)
    assert table["start_ns"].to_pylist() == [10]
    assert side.dropped == {"unknown definition": 1}


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "null", "{}", '{"held":5}', '{"held":[5]}', '{"held":[[1,2]]}'),
        *('{"held":[["a",0,0,0]]}', '{"held":[],"mood":"good"}'),
    ],
)
def test_damaged_progress_is_reported(tmp_path: Path, text: str) -> None:
    """How far it was converted is unknown then, and that is said."""
    (tmp_path / PROGRESS_FILE).write_text(text)
    with pytest.raises(NotATrace, match=PROGRESS_FILE):
        load_progress(tmp_path)


def test_progress_that_cannot_be_opened(tmp_path: Path) -> None:
    """A link to itself, or a folder."""
    (tmp_path / PROGRESS_FILE).symlink_to(PROGRESS_FILE)
    with pytest.raises(NotATrace):
        load_progress(tmp_path)
    (tmp_path / PROGRESS_FILE).unlink()
    (tmp_path / PROGRESS_FILE).mkdir()
    with pytest.raises(NotATrace, match="regular file"):
        load_progress(tmp_path)


@pytest.mark.parametrize(
    "progress",
    [
        Progress(),
        Progress(
            9,
            3,
            (HeldSlot(1, 2, 3, 4), HeldSlot(0, 0, -1, 0)),
            {"a": 1},
            {"user": 2},
            8,
            sorted=False,
        ),
    ],
)
def test_progress_is_read_as_written(tmp_path: Path, progress: Progress) -> None:
    """Progress is read as written; without a file it is None."""
    assert load_progress(tmp_path) == Progress()
    save_progress(tmp_path, progress)
    assert load_progress(tmp_path) == progress
    assert [file.name for file in tmp_path.iterdir()] == [PROGRESS_FILE]

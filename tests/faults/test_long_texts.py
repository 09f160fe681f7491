"""A text of any length, and a file that becomes one, is refused before it is taken apart."""

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.hostile.protobuf import varint

from tracelens import load
from tracelens.cli import main

LONG = 3 << 20  # bytes: beyond the limit, and quick to write


def as_csv(path: Path) -> None:
    """Write a cell without a break."""
    path.write_text(f"rank,start_ns,end_ns,name\n0,0,9,{'x' * LONG}\n")


def as_quoted_csv(path: Path) -> None:
    """Write a quoted cell of many lines."""
    path.write_text('rank,start_ns,end_ns,name\n0,0,9,"' + "x\n" * LONG + '"\n')


def as_number(path: Path) -> None:
    """Write a time of many digits."""
    path.write_text(f"rank,start_ns,end_ns\n0,0,{'1' * LONG}\n")


def as_arrow(path: Path) -> None:
    """Write a word."""
    table = pa.table({"rank": [0], "start_ns": [0], "end_ns": [9], "name": ["x" * LONG]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def as_parquet(path: Path) -> None:
    """Write a word in a dictionary."""
    names = pa.array(["x" * LONG]).dictionary_encode()
    pq.write_table(pa.table({"rank": [0], "start_ns": [0], "end_ns": [9], "name": names}), path)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("t.csv", as_csv),
        ("quoted.csv", as_quoted_csv),
        ("number.csv", as_number),
        ("t.arrow", as_arrow),
        ("t.parquet", as_parquet),
    ],
)
def test_a_long_text_is_refused(
    name: str, write: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence names the file and the limit, and how to raise it."""
    write(tmp_path / name)
    assert main(["info", str(tmp_path / name)]) == 3
    said = capsys.readouterr().err
    assert name in said
    assert "'--limit text=...' raises it" in said


def test_many_short_lines_are_no_long_text(tmp_path: Path) -> None:
    """A table of any size is read, with line breaks and quotes in its cells."""
    row = '0,{},{},"a ""b"" of\ntwo lines"\n'
    lines = [row.format(9 * number, 9 * number + 9) for number in range(LONG // 40)]
    (tmp_path / "t.csv").write_text("rank,start_ns,end_ns,name\n" + "".join(lines))
    assert main(["info", str(tmp_path / "t.csv")]) == 0


def test_a_long_name_is_cut_in_each_stack(tmp_path: Path) -> None:
    """A stack repeats the names of its frames: long ones would become gigabytes."""
    names = [f"{number}" + "x" * 20_000 for number in range(4)]
    marks = [(name, phase) for name in names for phase in "BE"]
    events = [
        {"cat": "py-spy", "ph": phase, "name": name, "pid": 1, "tid": 1, "ts": 5 * at}
        for at, (name, phase) in enumerate(marks)
    ]
    (tmp_path / "stacks.json").write_text(json.dumps(events))
    frames = load.open(tmp_path / "stacks.json").samples["frames"].explode()
    assert len(frames) == len(names)
    assert frames.str.len_chars().max() == 1_000


@pytest.mark.parametrize(
    "kind", [pa.timestamp("s"), pa.timestamp("ms"), pa.duration("s"), pa.date32()]
)
def test_dates_beyond_any_year_are_left_out(kind: pa.DataType, tmp_path: Path) -> None:
    """They have no text, and no nanoseconds."""
    far = pa.array(
        [2**31 - 9 if kind == pa.date32() else 2**53, 5],
        pa.int32() if kind == pa.date32() else pa.int64(),
    )
    table = pa.table(
        {"rank": [0, 0], "start_s": [0, 1], "end_s": far.cast(kind), "name": far.cast(kind)}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    assert main(["info", str(tmp_path / "t.parquet")]) in {0, 3}


def bomb_of_json() -> bytes:
    """Return trace events that become a thousand times as large."""
    event = json.dumps({"ph": "X", "name": "x", "ts": 1, "dur": 2, "pid": 1, "tid": 1}).encode()
    return gzip.compress(b'{"schemaVersion":1,"traceEvents":[' + event + b"," + b" " * (32 << 20))


def bomb_of_packets() -> bytes:
    """Return Perfetto packets that each hold a compressed packet."""
    event = b"\x0a\x06\x40\x01\x5a\x02\x48\x01"
    inner = event + b"\x0a\x00" * (1 << 20)
    packed = zlib.compress(inner)
    field = b"\x92\x03" + varint(len(packed)) + packed
    return event + (b"\x0a" + varint(len(field)) + field) * 32


@pytest.mark.parametrize(
    ("name", "content"), [("t.json.gz", bomb_of_json()), ("t.pftrace", bomb_of_packets())]
)
def test_a_file_that_grows_too_much_is_refused(
    name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compressed content counts by its unpacked size, added to the size of its file."""
    (tmp_path / name).write_bytes(content)
    assert main(["info", str(tmp_path / name), "--rank-of", f"{name}=0"]) == 3
    assert "bytes would become more than" in capsys.readouterr().err

"""Only regular files within their limits are read: claims are looked at before they are believed."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.runs.damage import VICTIM, assert_left_out, write_run
from support.runs.segments import Slot, write_folder
from support.tiers import few_or_many

from tracelens import load
from tracelens.cli import main
from tracelens.conversion.folder import PROGRESS_FILE
from tracelens.errors import InvalidArgument, NotATrace
from tracelens.schema import gate
from tracelens.schema.vocabulary import SAMPLES_FOLDER, SIDE_FILE

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS_AT_ONCE = 1_000_000


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take limits that a test raises back afterwards."""
    monkeypatch.setenv("TRACELENS_LIMITS", "")


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


SPECIAL: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (os.mkfifo, "a named pipe"),
    "folder": (os.mkdir, "a folder"),
    "socket": (listening, ""),  # the system itself refuses to open one
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["000000.seg", SIDE_FILE, PROGRESS_FILE])
def test_no_regular_file_among_segments(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads it does not wait for a writer; the other ranks are read."""
    monkeypatch.chdir(tmp_path)
    trace = tmp_path / "trace"
    write_run(trace)
    folder = write_folder(trace, [Slot(1, 2)])
    make, sentence = SPECIAL[kind]
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    (note,) = (note for note in load.open(trace).notes if note.kind == "unreadable")
    assert sentence in note.sentence
    assert main(["info", str(trace)]) == 0


def test_samples_that_are_a_pipe(tmp_path: Path) -> None:
    """They are left out, and a note says so."""
    write_run(tmp_path)
    (tmp_path / SAMPLES_FOLDER).mkdir()
    os.mkfifo(tmp_path / SAMPLES_FOLDER / VICTIM)
    (note,) = load.open(tmp_path).notes
    assert "samples" in note.sentence
    assert main(["info", str(tmp_path)]) == 0


@pytest.mark.parametrize("name", ["events.csv", "events.parquet", VICTIM])
@pytest.mark.parametrize("verb", ["info", "analyze", "validate"])
def test_what_the_user_names_is_no_file(
    verb: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe or a device with the name of a trace or a table is refused immediately."""
    refused = {1, 3} if verb == "validate" else {3}  # to validate, it is a problem of the trace
    os.mkfifo(tmp_path / name)
    assert main([verb, str(tmp_path / name)]) in refused
    (tmp_path / f"zero-{name}").symlink_to("/dev/zero")
    assert main([verb, str(tmp_path / f"zero-{name}")]) in refused
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "file"), [("side", SIDE_FILE), ("segment", "000000.seg"), ("side", PROGRESS_FILE)]
)
def test_larger_than_any_recorder_writes(name: str, file: str, tmp_path: Path) -> None:
    """The sentence says what to do about it; nothing of that size is allocated."""
    write_run(tmp_path)
    folder = write_folder(tmp_path, [Slot(1, 2)])
    with (folder / file).open("ab") as large:
        large.truncate(gate.LIMITS[name][0] + 1)
    peak_before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (note,) = (note for note in load.open(tmp_path).notes if note.kind == "unreadable")
    assert f"--limit {name}=" in note.sentence
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before_kib < 100_000
    )  # kilobytes


def test_limit_is_raised_and_lowered(tmp_path: Path) -> None:
    """What one limit leaves out, another one lets in."""
    victim = write_run(tmp_path)
    gate.raise_limit("file", 10_000)
    with pytest.raises(NotATrace, match=r"more than the limit of (10000|1048576)"):
        load.open(victim)
    assert main(["info", str(victim), "--limit", "file=1GiB"]) == 0
    assert load.open(victim).workers["rank"].to_list() == [1]
    assert main(["compare", str(tmp_path), str(tmp_path), "--limit", "file=1000"]) == 3
    assert main(["compare", str(tmp_path), str(tmp_path), "--limit", "file=1GiB"]) == 0


def test_decompressed_size_is_limited(tmp_path: Path) -> None:
    """However slowly a file grows, it does not grow beyond its limit."""
    write_run(tmp_path)
    gate.raise_limit("decompressed", 1000)
    with pytest.raises(NotATrace, match="when decompressed"):
        load.open(tmp_path)
    gate.raise_limit("decompressed", 1 << 30)
    assert load.open(tmp_path).workers.height == 3
    assert_left_out_of_nothing(tmp_path)


def assert_left_out_of_nothing(folder: Path) -> None:
    assert not load.open(folder).notes


@pytest.mark.parametrize("wrong", ["file", "file=", "file=0", "size=1GiB", "=", "rows=many"])
def test_a_wrong_limit_is_a_usage_error(
    wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a mistake of usage, said in one sentence."""
    write_run(tmp_path)
    assert main(["info", str(tmp_path), "--limit", wrong]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "limit" in line


def test_unknown_limit_names_those_there_are() -> None:
    """Whoever calls from Python gets the same."""
    with pytest.raises(InvalidArgument, match="decompressed"):
        gate.raise_limit("speed", 1)


def huge(path: Path, millions: int) -> None:
    """Write some megabytes that say that they are millions of spans."""
    rows = pa.repeat(pa.scalar(7, pa.int64()), ROWS_AT_ONCE)
    table = pa.table({"rank": rows, "start_ns": rows, "end_ns": rows})
    if path.suffix == ".parquet":
        with pq.ParquetWriter(path, table.schema, compression="zstd") as out:
            for _ in range(millions):
                out.write_table(table)
    else:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(str(path), table.schema, options=options) as file:
            for _ in range(millions):
                file.write_table(table)


@pytest.mark.parametrize("millions", few_or_many(3, 60))
@pytest.mark.parametrize("name", ["events.parquet", "events.feather"])
def test_table_that_would_become_huge(name: str, millions: int, tmp_path: Path) -> None:
    """It is refused by what its header says, in a sentence that says how many rows there are."""
    huge(tmp_path / name, millions)
    assert (tmp_path / name).stat().st_size < 50_000_000
    if millions < 60:
        gate.raise_limit("rows", ROWS_AT_ONCE)
        gate.raise_limit("decompressed", 10 * ROWS_AT_ONCE)
    peak_before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(NotATrace, match=r"cannot be read as a table: (it has|its)"):
        load.open(tmp_path / name)
    grown_kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before_kib
    assert grown_kilobytes < min(200_000, 10_000 * millions)


@pytest.mark.parametrize("columns", few_or_many(10_001, 1_000_000))
@pytest.mark.parametrize("name", ["a.csv", "a.arrow"])
def test_a_million_columns_are_refused_by_the_header(
    name: str, columns: int, tmp_path: Path
) -> None:
    """Refused by the header alone, in seconds."""
    names = [f"c{number}" for number in range(columns)]
    if name == "a.csv":
        (tmp_path / name).write_text(",".join(names) + "\n1\n")
    else:
        schema = pa.schema([(text, pa.int8()) for text in names])
        with pa.ipc.new_file(str(tmp_path / name), schema):
            pass
    with pytest.raises(NotATrace, match=r"more than the limit of (10000|1048576)"):
        load.open(tmp_path / name)


def test_too_many_lines(tmp_path: Path) -> None:
    """The rows of a text are counted before they are read, where there may be too many."""
    table = tmp_path / "events.csv"
    table.write_text("rank,start_ns,end_ns\n" + "".join(f"0,{n},{n + 1}\n" for n in range(2000)))
    assert load.open(table).events.collect().height == 2000
    gate.raise_limit("rows", 1000)
    with pytest.raises(NotATrace, match="it has 2001 rows, more than the limit of 1000"):
        load.open(table)


def test_device_in_a_trace_costs_its_rank_alone(tmp_path: Path) -> None:
    """A file replaced by a pipe is left out like one that is damaged."""
    victim = write_run(tmp_path)
    victim.unlink()
    os.mkfifo(victim)
    try:
        assert_left_out(tmp_path, "not a file")
    finally:
        victim.unlink(missing_ok=True)


def test_limits_are_documented() -> None:
    """docs/reliability.md lists each limit with its value and what it is about."""
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    rows = [f"| `{name}` | {value} | {about} |" for name, (value, about) in gate.LIMITS.items()]
    assert "\n".join(rows) in page

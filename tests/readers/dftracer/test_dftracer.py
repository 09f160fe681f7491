"""DFTracer's events: calls of I/O with bytes, data loading, epochs; ranks are told, never guessed."""

import gzip
import json
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from support.public_traces import PUBLIC, needs

import tracelens as tl
from tracelens.cli import main
from tracelens.errors import EmptyTrace, NotATrace, UnusableInput
from tracelens.readers import READERS
from tracelens.readers.base import Reading
from tracelens.readers.dftracer import DFTracerReader
from tracelens.readers.event_stream import EventStream

PUBLISHED: Final = "dftracer/test-trace.pfw.gz"
BEGIN_US: Final = 1_795_000_000_000_000


def event(name: str = "read", cat: str = "POSIX", at: Any = 0, **facts: Any) -> dict[str, Any]:
    ts = BEGIN_US + at if isinstance(at, int) else at
    fields = {"id": 1, "name": name, "cat": cat, "pid": 7, "tid": 7, "ts": ts, "dur": 5, "ph": "X"}
    return fields | {"args": {"hhash": "f9ff", "ret": 4096}} | facts


HOST: Final = {
    "id": 0, "name": "HH", "cat": "dftracer", "pid": 7, "tid": 7, "ph": "M",
    "args": {"hhash": "f9ff", "name": "node0", "value": "f9ff"},
}  # fmt: skip


def write_events(path: Path, *events: Any, begin: str = "[\n") -> Path:
    path.write_text(begin + "".join(f"{json.dumps(line)}\n" for line in events))
    return path


def facts_of(trace: tl.Trace) -> dict[str, str]:
    assert trace.recognition
    return dict(trace.recognition.facts)


def notes_of(trace: tl.Trace) -> str:
    return " ".join(note.sentence for note in trace.notes)


@needs(PUBLISHED)
def test_counts_of_the_published_trace() -> None:
    trace = DFTracerReader().read(PUBLIC / PUBLISHED)
    event_counts = facts_of(trace)["events"]
    for count in ("93,894:", "88,090 POSIX", "3,761 storage", "794 data_loader", "615 reader"):
        assert count in event_counts
    assert "373 ai_framework" in event_counts
    rows = trace.events.collect()
    assert rows.height == 93_894
    assert rows["bytes"].count() == 5_734  # its calls of read
    assert trace.dropped == {}


@needs(PUBLISHED)
@pytest.mark.slow
def test_its_verdict_is_open(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(PUBLIC / PUBLISHED)]) in {0, 1}
    assert "INCONCLUSIVE" in capsys.readouterr().out


@pytest.mark.parametrize("begin", ["[\n", "", "[\n\n  "])
@pytest.mark.parametrize("name", ["trace.pfw", "no suffix", "trace.json"])
def test_it_is_recognised_by_content(tmp_path: Path, name: str, begin: str) -> None:
    path = write_events(tmp_path / name, event(), event(at=10), begin=begin)
    reader = next(reader for reader in READERS if reader.sniff(path))
    assert reader.name == DFTracerReader().name
    assert reader.read(path).events.collect().height == 2


def test_a_list_with_commas_is_not_its(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("[" + ",\n".join(json.dumps(event(at=at)) for at in (0, 10)) + "]")
    assert not DFTracerReader().sniff(path)


def test_words_bytes_and_host(tmp_path: Path) -> None:
    """Of numbers as text, too; a host may be a hash that an event resolves."""
    path = write_events(
        tmp_path / "a.pfw",
        HOST,
        event(ts=str(BEGIN_US), dur="5", args={"hhash": "f9ff", "ret": "12"}),
        event("write", at=10, args={"hhash": "f9ff", "ret": 7}),
        event("Model.forward", "ai_framework", at=20),
        event("checkpoint", "ai_framework", at=30),
        event("read", at=40, args={"hhash": "f9ff", "ret": -1}),
    )
    trace = DFTracerReader().read(path)
    rows = trace.events.collect().with_columns(pl.col("kind").cast(pl.String))
    assert rows["kind"].to_list() == ["data", "user", "forward", "checkpoint", "data"]
    assert rows["bytes"].to_list() == [12, 7, None, None, None]
    assert rows["start_ns"][0] == BEGIN_US * 1000
    assert trace.processes["host"].to_list() == ["node0"]
    assert trace.recognition
    assert dict(trace.recognition.left_out) == {"names of files, hosts and processes": 1}


@pytest.mark.parametrize(("name", "cat"), [("fread", "STDIO"), ("readdir", "POSIX"), ("read", "x")])
def test_what_is_returned_is_not_always_bytes(tmp_path: Path, name: str, cat: str) -> None:
    trace = DFTracerReader().read(write_events(tmp_path / "a.pfw", event(name, cat)))
    assert trace.events.collect()["bytes"].to_list() == [None]


def test_files_of_several_processes_need_ranks(tmp_path: Path) -> None:
    for name in ("a.pfw", "b.pfw"):
        write_events(tmp_path / name, event())
    with pytest.raises(UnusableInput, match=r"--rank-of a\.pfw=RANK"):
        DFTracerReader().read(tmp_path)
    trace = DFTracerReader().read(tmp_path, Reading(rank_of={"a.pfw": 0, "b.pfw": 1}))
    assert trace.processes["rank"].to_list() == [0, 1]
    one = DFTracerReader().read(tmp_path, Reading(rank_of={"a.pfw": 3, "b.pfw": 3}))
    assert one.processes["rank"].to_list() == [3]


def test_what_cannot_be_used_is_counted(tmp_path: Path) -> None:
    unusable_times = ("never", None, True, [1], "9" * 30, 1e300, -(10**17))
    path = write_events(
        tmp_path / "a.pfw", event(), *(event(at=at, ts=at) for at in unusable_times), event(at=9)
    )
    trace = DFTracerReader().read(path)
    assert trace.events.collect().height == 2
    assert sum(trace.dropped.values()) == len(unusable_times)


def test_a_line_that_is_no_json_costs_itself(tmp_path: Path) -> None:
    path = write_events(tmp_path / "a.pfw", event(), event(at=10))
    path.write_text(
        path.read_text() + '{"id":2,"ph":"X",nonsense}\n' + json.dumps(event(at=20)) + "\n"
    )
    trace = DFTracerReader().read(path)
    assert trace.events.collect().height == 3
    assert "cannot be read (some of it is not JSON)" in notes_of(trace)


def test_a_compressed_file_that_breaks_off(tmp_path: Path) -> None:
    lines = "".join(f"{json.dumps(event(at=at * 10, id=at))}\n" for at in range(20_000))
    packed = gzip.compress(lines.encode())
    (tmp_path / "a.pfw.gz").write_bytes(packed[: len(packed) // 2])
    trace = DFTracerReader().read(tmp_path / "a.pfw.gz")
    assert 0 < trace.events.collect().height < 20_000
    assert "was cut off" in notes_of(trace)


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_LIMITS", "decompressed=1048576")
    lines = f"{json.dumps(event())}\n".encode() * 20_000
    (tmp_path / "a.pfw.gz").write_bytes(gzip.compress(lines))
    with pytest.raises(NotATrace, match="decompressed"):
        DFTracerReader().read(tmp_path / "a.pfw.gz")


def test_nothing_that_lasts(tmp_path: Path) -> None:
    with pytest.raises(EmptyTrace, match="log of DFTracer, holds no event that lasts"):
        DFTracerReader().read(write_events(tmp_path / "a.pfw", HOST))


def test_pieces_of_lines_lose_nothing(tmp_path: Path) -> None:
    """Whatever ends a line, and however deep its arguments are."""
    lines = [json.dumps(event(at=n, args={"a": {"b": [{"c": n}, {}]}})) for n in range(9_000)]
    path = tmp_path / "a.pfw"
    path.write_bytes(("[\r\n" + " \r\n".join(lines) + "\n]").encode())
    stream = EventStream(path, has_event_per_line=True)
    found = [entry["args"]["a"]["b"][0]["c"] for piece in stream.read_pieces() for entry in piece]
    assert found == list(range(9_000))
    assert (stream.lost_count, stream.is_cut) == (0, False)

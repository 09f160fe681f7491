"""Perfetto's protobuf traces: slices on threads, of processes whose names say ranks."""

import gzip
import sys
import zlib
from pathlib import Path

import polars as pl
import pytest
from support import perfetto_files as perfetto

import tracelens as tl
from tracelens.cli import main
from tracelens.errors import EmptyTrace, MissingExtra, NotATrace, UnusableInput
from tracelens.readers import READERS
from tracelens.readers.base import Reading
from tracelens.readers.perfetto import PerfettoReader
from tracelens.readers.perfetto.packets import is_perfetto, messages


def write_trace(path: Path, content: perfetto.PerfettoFile | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.written())
    return path


def rows_of(trace: tl.Trace, **which: object) -> pl.DataFrame:
    words = pl.col("kind", "op", "name").cast(pl.String)
    return trace.events.with_columns(words).filter(**which).collect()


def test_slices_of_ranks_become_matched_collectives(tmp_path: Path) -> None:
    """Times since 1970, as clocks of the trace say; collectives are matched, steps numbered by name."""
    file = write_trace(tmp_path / "a.pftrace", perfetto.training(3, 8))
    assert next(reader.name for reader in READERS if reader.sniff(file)) == "trace of Perfetto"
    trace = PerfettoReader().read(file)
    assert trace.processes["rank"].to_list() == [0, 1, 2]
    assert rows_of(trace, kind="forward")["start_ns"].min() == perfetto.REAL_NS + 10
    trace = tl.open(file)
    assert trace.steps["step"].unique().sort().to_list() == list(range(8))
    assert rows_of(trace, kind="reduction")["op"].unique().to_list() == ["allreduce"]
    assert trace.arrivals["arrived"].unique().to_list() == [3]


def test_who_is_late_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_trace(tmp_path / "a.pftrace", perfetto.training(4, 60, late=2))
    assert main(["analyze", "--no-keep", str(file)]) in {0, 1}
    assert "STRAGGLER rank 2, backprop" in capsys.readouterr().out


def test_processes_that_are_no_ranks(tmp_path: Path) -> None:
    """One alone is rank 0 with an open verdict; of several the user says which ranks they are."""
    one = write_trace(tmp_path / "one.pftrace", perfetto.training(1, 8, name="python"))
    trace = PerfettoReader().read(one)
    assert trace.recognition
    assert "does not say of which rank" in trace.recognition.gaps[0].missing
    two = write_trace(tmp_path / "two.pftrace", perfetto.training(2, 8, name="python"))
    with pytest.raises(UnusableInput, match=r"--rank-of two\.pftrace:100=0, once for each"):
        PerfettoReader().read(two)
    given = {"two.pftrace:100": 1, "two.pftrace:101": 0}
    trace = PerfettoReader().read(two, Reading(rank_of=given))
    assert trace.processes["rank"].to_list() == [0, 1]
    assert trace.processes["clock_domain"].unique().to_list() == ["two.pftrace"]
    assert trace.threads["name"].to_list() == ["main", "main"]
    with pytest.raises(UnusableInput, match="holds no process 7: there are 100 and 101"):
        PerfettoReader().read(two, Reading(rank_of={"two.pftrace:7": 1}))
    trace = PerfettoReader().read(two, Reading(rank_of={"two.pftrace": 3}))
    assert trace.processes["rank"].to_list() == [3]
    assert sorted(trace.threads["name"]) == ["main of 100", "main of 101"]


def test_a_process_that_the_user_does_not_name_is_left_out(tmp_path: Path) -> None:
    file = write_trace(tmp_path / "a.pftrace", perfetto.training(3, 8, name="python"))
    given = {"a.pftrace:100": 0, "a.pftrace:101": 1}
    trace = PerfettoReader().read(file, Reading(rank_of=given))
    assert trace.processes["rank"].to_list() == [0, 1]
    assert trace.recognition
    assert dict(trace.recognition.left_out) == {"events of processes of no known rank": 8 * 5}


def test_names_and_times_of_a_sequence(tmp_path: Path) -> None:
    """Names are numbers, and times differences to the packet before, as of Perfetto's own library."""
    file = perfetto.PerfettoFile()
    track = file.process(7, "rank 0")
    first_packet = file.packet(sequence=5, sequence_flags=1)
    first_packet.interned.names.add(iid=1, name=b"forward")
    first_packet.interned.categories.add(iid=4, name=b"torch")
    first_packet.defaults.track_event.track_uuid = track
    first_packet.defaults.timestamp_clock_id = 64
    file.clocks((64, 1_000), (6, 501_000), sequence=5, incremental=64)
    for kind, later in ((perfetto.BEGIN, 100), (perfetto.END, 50), (perfetto.BEGIN, 10), (2, 5)):
        packet = file.packet(sequence=5, timestamp=later)
        packet.track_event.type = kind
        if kind == perfetto.BEGIN:
            packet.track_event.name_iid = 1
            packet.track_event.category_iids.append(4)
    rows = rows_of(PerfettoReader().read(write_trace(tmp_path / "a.pftrace", file)))
    assert rows["name"].to_list() == ["forward", "forward"]
    assert rows.select("start_ns", "end_ns").rows() == [(501_100, 501_150), (501_160, 501_165)]


@pytest.mark.parametrize(
    "text", [b'\n{"traceEvents": []}', b"\n", b"", b"\n\n\n", b"\n[]" + b" " * 200]
)
def test_text_is_no_packet(tmp_path: Path, text: bytes) -> None:
    """Which begins as packets do where it begins with an empty line, plain or compressed."""
    assert not is_perfetto(write_trace(tmp_path / "a.json", text))
    assert not is_perfetto(write_trace(tmp_path / "a.json.gz", gzip.compress(text)))


def test_packets_may_be_compressed(tmp_path: Path) -> None:
    file = perfetto.training(2, 5)
    plain = rows_of(PerfettoReader().read(write_trace(tmp_path / "plain.pftrace", file)))
    around = messages()["Trace"]()
    around.packets.add(compressed=zlib.compress(file.written()))
    inner = write_trace(tmp_path / "inner.pftrace", around.SerializeToString())
    assert rows_of(PerfettoReader().read(inner)).equals(plain)
    packed = write_trace(tmp_path / "packed.pftrace.gz", gzip.compress(file.written()))
    assert next(reader.name for reader in READERS if reader.sniff(packed)) == "trace of Perfetto"
    assert rows_of(PerfettoReader().read(packed)).equals(plain)


def test_what_is_no_slice_is_counted(tmp_path: Path) -> None:
    file = perfetto.training(1, 3)
    track = 100 + 10_000
    file.event(track, perfetto.INSTANT, perfetto.BOOT_NS, "mark")
    file.event(track, perfetto.END, perfetto.BOOT_NS)
    file.event(track, perfetto.BEGIN, perfetto.BOOT_NS + 10**10, "open")
    trace = PerfettoReader().read(write_trace(tmp_path / "a.pftrace", file))
    assert trace.recognition
    assert dict(trace.recognition.left_out) == {"instants": 1, "slices that do not end": 1}
    assert sum(trace.dropped.values()) == 1


def test_a_trace_that_was_cut_off(tmp_path: Path) -> None:
    whole = perfetto.training(1, 8).written()
    trace = PerfettoReader().read(write_trace(tmp_path / "a.pftrace", whole[:-5]))
    assert [note.kind for note in trace.notes if note.kind == "truncated"] == ["truncated"]
    with pytest.raises(NotATrace, match="no packet"):
        PerfettoReader().read(write_trace(tmp_path / "b.pftrace", b""))
    nothing = perfetto.PerfettoFile()
    nothing.process(1, "rank 0")
    with pytest.raises(EmptyTrace):
        PerfettoReader().read(write_trace(tmp_path / "c.pftrace", nothing))


def test_without_protobuf_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_trace(tmp_path / "a.pftrace", perfetto.training(1, 2))
    messages.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(MissingExtra, match="perfetto"):
        tl.open(file)

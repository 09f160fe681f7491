"""What Score-P recorded is read: its counts, its ranks, its messages, and what cannot be concluded."""

import os
from pathlib import Path

import polars as pl
import pytest
from support.otf2_archives import MS, Rank, training, write
from support.public_traces import PUBLIC, needs

import tracelens as tl
from tracelens.errors import MissingExtra, NotATrace, UnusableInput
from tracelens.readers import READERS
from tracelens.readers.base import Reading
from tracelens.readers.otf2 import Otf2Reader, archive

pytest.importorskip("otf2")
PING_PONG = PUBLIC / "otf2" / "ping_pong"


def reader_chosen(path: Path) -> str:
    return next(reader.name for reader in READERS if reader.sniff(path))


def facts_of(trace: tl.Trace) -> dict[str, str]:
    assert trace.recognition
    return dict(trace.recognition.facts)


@needs("otf2")
def test_the_ping_pong_archive_has_the_counts_of_otf2s_reader() -> None:
    """The counts of the format's own reader, and a span for each pair of them."""
    trace = Otf2Reader().read(PING_PONG)
    assert facts_of(trace) == {
        "events": "42 Enter, 42 Leave, 16 MpiSend, 16 MpiRecv",
        "clock": "2,095,197,216 ticks a second",
    }
    events = trace.events.collect()
    assert events.height == 42
    assert dict(events["op"].cast(pl.String).value_counts().drop_nulls().rows()) == {
        "send": 16,
        "recv": 16,
    }
    assert trace.processes["rank"].to_list() == [0, 1]
    assert trace.processes["host"].to_list() == ["quartz10"] * 2


@needs("otf2")
def test_messages_of_ping_pong_are_matched() -> None:
    """Each is received after it was sent, and is as long for both."""
    events = Otf2Reader().read(PING_PONG / "traces.otf2").events.collect()
    sides = [
        events.filter(pl.col("op") == op).select("seq", "bytes", "key", "start_ns", "end_ns", **who)
        for op, who in (
            ("send", {"from": "rank", "to": "peer"}),
            ("recv", {"from": "peer", "to": "rank"}),
        )
    ]
    matched = sides[0].join(sides[1], on=["from", "to", "key", "seq"], how="inner")
    assert matched.height == 16
    assert matched["bytes"].to_list() == matched["bytes_right"].to_list()
    assert (matched["end_ns_right"] > matched["start_ns"]).all()


@needs("otf2")
def test_what_is_not_known_is_no_health() -> None:
    report = tl.analyze(tl.open(PING_PONG))
    assert report.verdict.state == "inconclusive"
    assert "no step is marked" in report.verdict.headline


def test_a_slow_rank_is_named(tmp_path: Path) -> None:
    """Its backprop takes longer, and the others wait for it in MPI_Allreduce."""
    anchor = write(tmp_path / "run", training(slow=2))
    assert reader_chosen(anchor) == reader_chosen(anchor.parent) == Otf2Reader().name
    trace = tl.open(anchor.parent)
    assert trace.workers["rank"].to_list() == [0, 1, 2, 3]
    assert trace.steps["step"].n_unique() == 40
    calls = trace.events.filter(pl.col("kind") == "reduction").collect()
    words = calls.select(pl.col("op", "communicator", "status").cast(pl.String), "bytes")
    assert words.unique().rows() == [("allreduce", "MPI_COMM_WORLD", "closed", 4096)]
    report = tl.analyze(trace)
    (fault,) = [finding for finding in report.findings if finding.category == "fault"]
    assert (fault.kind, fault.ranks, fault.phase) == ("straggler", (2,), "backprop")
    assert report.verdict.state == "fault"


def test_without_a_slow_rank_there_is_no_fault(tmp_path: Path) -> None:
    report = tl.analyze(tl.open(write(tmp_path / "run", training())))
    assert report.verdict.state == "bottleneck"


def test_requests_are_in_flight(tmp_path: Path) -> None:
    """From the call that begins them to the one that completes them, on their own track."""
    sender, receiver = Rank(), Rank()
    sender.region(0, MS, "MPI_Isend")
    sender.message(100, "mpi_isend", 1, 7, 512, 33)
    sender.region(5 * MS, 6 * MS, "MPI_Wait")
    sender.message(5 * MS + 10, "mpi_isend_complete", 33)
    receiver.region(0, MS, "MPI_Irecv")
    receiver.message(200, "mpi_irecv_request", 44)
    receiver.region(2 * MS, 8 * MS, "MPI_Waitall")
    receiver.message(7 * MS, "mpi_irecv", 0, 7, 512, 44)
    trace = Otf2Reader().read(write(tmp_path / "run", [sender, receiver]))
    events = trace.events.collect().sort("rank", "start_ns")
    moved = events.filter(pl.col("op").cast(pl.String).is_in(["send", "recv"]))
    first_ns = events["start_ns"].min()
    assert moved.select(
        pl.col("op").cast(pl.String),
        pl.col("start_ns", "end_ns") - first_ns,
        "bytes",
        "peer",
        "key",
        "seq",
    ).rows() == [
        ("send", 100, 5 * MS + 10, 512, 1, 7, 0),
        ("recv", 200, 7 * MS, 512, 0, 7, 0),
    ]
    waits = events.filter(pl.col("op") == "request_wait")["name"].cast(pl.String).to_list()
    assert waits == ["MPI_Wait", "MPI_Waitall"]
    beside = trace.threads.filter("in_flight")["name"].to_list()
    assert beside == ["Master thread messages"] * 2


def test_both_messages_of_a_sendrecv(tmp_path: Path) -> None:
    """The call is the receive, which it waits for; the send lasts as long."""
    ranks = [Rank(), Rank()]
    for number, rank in enumerate(ranks):
        rank.region(0, 4 * MS, "MPI_Sendrecv")
        rank.message(10, "mpi_send", 1 - number, 3, 64)
        rank.message(3 * MS, "mpi_recv", 1 - number, 3, 64)
    events = Otf2Reader().read(write(tmp_path / "run", ranks)).events.collect()
    messages = events.sort("rank", "start_ns").select(
        pl.col("name", "op").cast(pl.String), "bytes", "peer"
    )
    assert messages.filter(pl.col("peer") == 1).rows() == [
        ("MPI_Sendrecv", "recv", 64, 1),
        ("MPI send", "send", 64, 1),
    ]


def test_metrics_are_counted_and_not_read(tmp_path: Path) -> None:
    trace = Otf2Reader().read(write(tmp_path / "run", training(2, 3), metrics=5))
    assert trace.recognition
    assert dict(trace.recognition.left_out) == {"events Metric": 5}


def test_a_process_without_mpi_is_rank_0_unless_the_user_says_another(tmp_path: Path) -> None:
    rank = Rank()
    rank.region(0, MS, "step 0")
    anchor = write(tmp_path / "run", [rank], mpi=False, names=("python",))
    alone = Otf2Reader().read(anchor)
    assert alone.processes["rank"].to_list() == [0]
    assert "assumed" in {note.kind for note in alone.notes}
    trace = Otf2Reader().read(anchor, Reading(rank_of={"traces.otf2": 3}))
    assert trace.processes["rank"].to_list() == [3]


def test_several_processes_without_numbers_are_refused(tmp_path: Path) -> None:
    ranks = [Rank(), Rank()]
    for rank in ranks:
        rank.region(0, MS, "step 0")
    with pytest.raises(UnusableInput, match="neither of MPI nor with numbers"):
        Otf2Reader().read(write(tmp_path / "run", ranks, mpi=False, names=("train", "eval")))


def test_a_missing_file_is_no_health(tmp_path: Path) -> None:
    """The others are read, a note names it, and the run is not called healthy."""
    anchor = write(tmp_path / "run", training())
    (anchor.parent / "traces/3.evt").unlink()
    trace = tl.open(anchor)
    assert trace.workers["rank"].to_list() == [0, 1, 2]
    assert any("'3.evt' are missing" in note.sentence for note in trace.notes)
    report = tl.analyze(trace)
    assert report.verdict.state != "healthy"


def test_without_the_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anchor = write(tmp_path / "run", training(2, 2))
    monkeypatch.setattr(archive, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtra, match="the extra 'otf2'"):
        Otf2Reader().read(anchor)


def test_several_archives_in_a_folder_are_a_question(tmp_path: Path) -> None:
    anchor = write(tmp_path / "run", training(2, 2))
    (tmp_path / "run/other.otf2").write_bytes(anchor.read_bytes())
    with pytest.raises(UnusableInput, match="several OTF2 archives"):
        Otf2Reader().read(tmp_path / "run")


def test_a_pipe_in_the_archive_is_not_waited_for(tmp_path: Path) -> None:
    anchor = write(tmp_path / "run", training(2, 2))
    event_file = anchor.parent / "traces/1.evt"
    event_file.unlink()
    os.mkfifo(event_file)
    with pytest.raises(NotATrace, match="named pipe"):
        Otf2Reader().read(anchor)


def test_a_link_out_of_the_archive_is_not_followed(tmp_path: Path) -> None:
    anchor = write(tmp_path / "run", training(2, 2))
    event_file = anchor.parent / "traces/1.evt"
    event_file.rename(tmp_path / "1.evt")
    event_file.symlink_to(tmp_path / "1.evt")
    with pytest.raises(NotATrace, match="link out of the trace"):
        Otf2Reader().read(anchor)


def test_more_events_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    anchor = write(tmp_path / "run", training(2, 5))
    monkeypatch.setenv("TRACELENS_LIMITS", "rows=10")
    with pytest.raises(NotATrace, match="--limit rows="):
        Otf2Reader().read(anchor)

"""Threads record in parallel: nothing is lost or torn, and each has its own row."""

import os
import threading
from pathlib import Path

import polars as pl
import pytest
from support.launch.recording import read_one, run_child

import tracelens as tl
from tracelens_instrument import recorder
from tracelens_instrument.storage import segments

THREADS = 8
SPANS = int(os.environ.get("TRACELENS_PROOF_SPANS", "10_000"))  # `make proofs`: 100,000


def test_all_spans_of_all_threads(trace: Path) -> None:
    """8 threads, many spans each, through one shared handle, nested in another."""
    outer, inner = tl.span("outer"), tl.span("inner")
    together = threading.Barrier(THREADS)

    def work(number: int) -> None:
        together.wait()
        for count in range(SPANS // 2):
            with outer, inner(nbytes=count, peer=number):
                pass

    threads = [threading.Thread(target=work, args=(n,), name=f"worker {n}") for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tl.stop()

    recorded = read_one(trace)
    frame = recorded.frame
    assert frame.height == THREADS * SPANS
    assert frame["status"].unique().to_list() == ["closed"]
    names = {row.index: row.name for row in recorded.side.threads}
    inner_spans = frame.filter(pl.col("name") == "inner")
    assert inner_spans["depth"].unique().to_list() == [1]
    for number in range(THREADS):
        of_thread = inner_spans.filter(pl.col("peer") == number)
        assert {names[row] for row in of_thread["thread"].unique()} == {f"worker {number}"}
        assert of_thread["bytes"].to_list() == list(range(SPANS // 2))
    assert recorded.side.dropped == {}


def test_slots_are_shared_without_the_gil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python is free-threaded a lock sees to what the GIL does elsewhere."""
    monkeypatch.setattr(segments, "NATIVE", False)
    monkeypatch.setattr(segments, "FREE_THREADED", True)
    tl.start(tmp_path / "trace")
    test_all_spans_of_all_threads(tmp_path / "trace")


def test_token_ends_in_another_thread(trace: Path) -> None:
    """A span belongs to the thread that began it, even if another one ends it."""
    token = tl.span("piece").begin()
    thread = threading.Thread(target=token.end, name="ender")
    thread.start()
    thread.join()
    tl.stop()
    recorded = read_one(trace)
    event = recorded.one("piece")
    assert event["status"] == "closed"
    rows = {row.index: row.name for row in recorded.side.threads}
    assert rows[event["thread"]] == "MainThread"
    assert "ender" not in rows.values()


def test_tracks_overlap(trace: Path) -> None:
    """Operations on a track may overlap; the depth says how many were in flight already."""
    track = recorder.track("bucket")
    span = tl.span("piece", kind="reduction", op="allreduce")
    first = span.begin(track, bucket=0)
    second = span.begin(track, bucket=1)
    first.end()
    third = span.begin(track, bucket=2)
    second.end()
    third.end()
    tl.stop()
    pieces = read_one(trace).named("piece")
    assert [(e["bucket"], e["depth"]) for e in pieces] == [(0, 0), (1, 1), (2, 1)]


def test_track_of_the_same_name_is_the_same() -> None:
    """A hook that is attached twice shares its track."""
    assert recorder.track("shared") == recorder.track("shared")
    assert recorder.track("shared") != recorder.track("other")


def test_row_of_a_thread_that_threading_does_not_know(tmp_path: Path) -> None:
    """The main thread bears its name, and one that was started beneath `threading` a row of its own."""
    code = """
import _thread, sys
import tracelens as tl
tl.start(sys.argv[1])
SPAN = tl.span("piece")
def work():
    with SPAN: pass
    done.release()
done = _thread.allocate_lock()
done.acquire()
with SPAN: pass
_thread.start_new_thread(work, ())
done.acquire()
tl.stop()
"""
    run_child(code, tmp_path)
    recorded = read_one(tmp_path)
    main, other = (row.name for row in recorded.side.threads)
    assert main == "MainThread"
    assert other.startswith("Dummy")
    assert recorded.frame["thread"].to_list() == [0, 1]

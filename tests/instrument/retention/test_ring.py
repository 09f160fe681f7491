"""`keep="last:N"`: the last N steps, whole, and exactly how many events were left out for it."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from support.launch.recording import Recorded, read_one, run_child

import tracelens as tl
from tracelens.schema.record import RECORD_BYTES
from tracelens.schema.vocabulary import CROWDED_OUT, OUTDATED
from tracelens_instrument.core.spans import Span
from tracelens_instrument.storage.segments import SEGMENT_BYTES

SLOTS = SEGMENT_BYTES // RECORD_BYTES - 1
SPANS = 99  # a step, beside its own


def train(first: int, end: int) -> None:
    span = tl.span("piece")
    for number in range(first, end):
        with tl.step(number):
            for piece in range(SPANS):
                with span(nbytes=piece):
                    pass


def check_whole(recorded: Recorded, steps: list[int], *, total: int) -> None:
    """Check that exactly these steps are kept, and all others are counted as left out."""
    assert [event["step"] for event in recorded.named("step")] == steps
    assert [event["step"] for event in recorded.named("piece")] == [
        step for step in steps for _ in range(SPANS)
    ]
    assert {event["status"] for event in recorded.events} <= {"closed"}
    assert recorded.side.dropped.get(OUTDATED, 0) == total - len(recorded.events)
    past_rows = recorded.side.past
    every = {event["step"]: event["duration_ns"] for event in recorded.named("step")}
    assert sum(row.steps for row in past_rows) + len(every) == total // (SPANS + 1)
    assert all(row.total_ns >= row.longest_ns > 0 for row in past_rows)
    assert all(row.first <= row.longest <= row.last for row in past_rows)


def disk(trace: Path) -> int:
    return sum(file.stat().st_size for file in trace.rglob("*") if file.is_file())


@pytest.mark.parametrize("step_count", [1, 7, 200])
def test_the_last_steps_are_kept(tmp_path: Path, step_count: int) -> None:
    """However many segments a step is, or steps a segment."""
    tl.start(tmp_path, keep=f"last:{step_count}")
    train(0, 500)
    assert disk(tmp_path) < (step_count * (SPANS + 1) // SLOTS + 5) * SEGMENT_BYTES
    tl.stop()
    check_whole(read_one(tmp_path), list(range(500 - step_count, 500)), total=500 * (SPANS + 1))


def test_steps_without_a_number(tmp_path: Path) -> None:
    """They are left out like others, and nothing is said of them."""
    tl.start(tmp_path, keep="last:3")
    for _ in range(3):
        train(-200, 0)
    tl.stop()
    recorded = read_one(tmp_path)
    assert recorded.side.past == ()
    assert tl.open(tmp_path).processes["events"].to_list() == [len(recorded.events)]


def test_short_run_is_kept_whole(tmp_path: Path) -> None:
    """What came before the first step, too."""
    tl.start(tmp_path, keep="last:50")
    tl.instant("before")
    train(0, 50)
    tl.stop()
    recorded = read_one(tmp_path)
    assert len(recorded.named("before")) == 1
    assert len(recorded.named("step")) == 50
    assert recorded.side.dropped == {}


def test_asked_to_keep(tmp_path: Path) -> None:
    """The steps before each call are kept, and the last ones in addition."""
    tl.start(tmp_path, keep="last:5")
    train(0, 300)
    tl.keep()
    train(300, 700)
    tl.keep()
    train(700, 1000)
    tl.stop()
    # A call between two steps takes effect when the next one ends.
    kept = [*range(296, 301), *range(696, 701), *range(995, 1000)]
    check_whole(read_one(tmp_path), kept, total=1000 * (SPANS + 1))


def test_asked_to_keep_within_a_step(tmp_path: Path) -> None:
    """The step in which something was found is the last of those that are kept."""
    tl.start(tmp_path, keep="last:5")
    train(0, 300)
    with tl.step(300):
        tl.keep()
    train(301, 800)
    tl.stop()
    steps = [event["step"] for event in read_one(tmp_path).named("step")]
    assert steps == [*range(296, 301), *range(795, 800)]


def test_asked_again_and_again(tmp_path: Path) -> None:
    """A step that is requested twice is kept once."""
    tl.start(tmp_path, keep="last:5")
    for first in range(0, 300, 2):
        tl.keep()
        train(first, first + 2)
    tl.stop()
    check_whole(read_one(tmp_path), list(range(300)), total=300 * (SPANS + 1))


def test_keep_without_a_ring(trace: Path) -> None:
    """Where everything is kept, or nothing recorded, it does nothing."""
    tl.keep()
    train(0, 3)
    tl.stop()
    tl.keep()
    check_whole(read_one(trace), [0, 1, 2], total=3 * (SPANS + 1))


def test_spans_that_outlive_their_segment(tmp_path: Path) -> None:
    """They end harmlessly, though what they are written to is gone; they count as left out."""
    tl.start(tmp_path, keep="last:3")
    whole, outer = tl.span("whole"), tl.span("outer")
    token = whole.begin()
    with outer, whole(nbytes=1):
        train(0, 300)
        token.end()
    tl.stop()
    check_whole(read_one(tmp_path), [297, 298, 299], total=300 * (SPANS + 1) + 3)


def test_discarded_spans_are_not_counted(tmp_path: Path) -> None:
    """What was taken back was no event."""
    tl.start(tmp_path, keep="last:3")
    span: Span = tl.span("none")
    for number in range(300):
        span.begin().discard()
        train(number, number + 1)
    tl.stop()
    check_whole(read_one(tmp_path), [297, 298, 299], total=300 * (SPANS + 1))


def test_a_ring_beyond_its_budget_drops_the_oldest_steps(tmp_path: Path) -> None:
    """If the requested steps do not fit, the oldest ones are dropped and recording goes on."""
    budget = 2_000_000
    tl.start(tmp_path, keep="last:100000", budget=budget)
    for number in range(0, 1000, 10):
        train(number, number + 10)
        assert disk(tmp_path) <= budget
    tl.stop()
    recorded = read_one(tmp_path)
    steps = [event["step"] for event in recorded.named("step")]
    assert steps == list(range(steps[0], 1000))
    assert len(steps) * (SPANS + 1) > budget / RECORD_BYTES / 2
    assert set(recorded.side.dropped) == {
        CROWDED_OUT,
        OUTDATED,
    }  # the latter of the step cut in two
    lost = sum(recorded.side.dropped.values())
    assert len(recorded.events) + lost == 1000 * (SPANS + 1)


KILLED = """
import os, signal, sys
import tracelens as tl
tl.start(sys.argv[1], keep="last:4")
span = tl.span("piece")
for number in range(301):
    with tl.step(number):
        for piece in range(99):
            with span(nbytes=piece):
                if (number, piece) == (300, 50):
                    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.end_to_end
def test_a_killed_ring_recording_keeps_its_last_steps(tmp_path: Path) -> None:
    """The last whole steps are kept, and the one in which it died."""
    run_child(
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', '''{KILLED}''', sys.argv[1]])",
        tmp_path,
    )
    recorded = read_one(tmp_path)
    assert [event["step"] for event in recorded.named("step")] == [296, 297, 298, 299, 300]
    assert len(recorded.named("piece")) == 4 * SPANS + 51
    assert [e["name"] for e in recorded.events if e["status"] == "open"] == ["step", "piece"]


@pytest.mark.skipif(sys.platform != "linux", reason="the recorder works on Linux")
def test_a_signal_keeps_steps_and_calls_the_previous_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one was asked for, it keeps, calls who heeded it before, and is given back."""
    heard: list[int] = []

    def previous_handler(number: int, _frame: Any) -> None:
        heard.append(number)

    monkeypatch.setenv("TRACELENS_KEEP_SIGNAL", "USR1")
    restored_handler = signal.signal(signal.SIGUSR1, previous_handler)
    try:
        tl.start(tmp_path, keep="last:5")
        train(0, 300)
        os.kill(os.getpid(), signal.SIGUSR1)
        train(300, 600)
        tl.stop()
        assert heard == [signal.SIGUSR1]
        assert signal.getsignal(signal.SIGUSR1) is previous_handler
    finally:
        signal.signal(signal.SIGUSR1, restored_handler)
    check_whole(read_one(tmp_path), [*range(296, 301), *range(595, 600)], total=600 * (SPANS + 1))


@pytest.mark.usefixtures("trace")
def test_no_signal_is_handled_unasked() -> None:
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


@pytest.mark.parametrize("name", ["NOPE", "KILL", "99"])
def test_signal_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """One warning, and the recording goes on without it."""
    monkeypatch.setenv("TRACELENS_KEEP_SIGNAL", name)
    with pytest.warns(RuntimeWarning, match="cannot be handled"):
        tl.start(tmp_path, keep="last:5")
    train(0, 1)
    tl.stop()
    assert len(read_one(tmp_path).named("step")) == 1

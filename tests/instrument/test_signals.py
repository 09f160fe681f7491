"""A signal handler may record inside a span, inside the recorder itself, at any moment."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self

import polars as pl
import pytest
from support.launch.recording import read_one

import tracelens as tl
from tracelens_instrument.storage import rotation, segments

HANDLED = 200
DEEPEST = 8


class Alarm:
    """A handler that records, called every half millisecond, also within itself, but not for ever.

    It asks for the next call itself while it is not too deep in itself, and the training asks where
    it is: on a slow machine each call may come before the one before is over.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.depth = 0
        self.span = tl.span("handler")

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.calls += 1
        self.depth += 1
        if self.depth < DEEPEST:
            self.restart_timer()
        with self.span, self.span(nbytes=self.calls):
            pass
        self.depth -= 1

    def restart_timer(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0005)

    def is_finished(self) -> bool:
        """Whether it was called so often; if not, it will be."""
        if signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0):
            self.restart_timer()
        return self.calls >= HANDLED

    def __enter__(self) -> Self:
        self.before = signal.signal(signal.SIGALRM, self)
        self.restart_timer()
        return self

    def __exit__(self, *_exception: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)


def train(alarm: Alarm) -> int:
    outer = tl.span("training")
    count = 0
    while not alarm.is_finished():
        with outer:
            count += 1
        with outer(seq=count):
            count += 1
    return count


def check(trace: Path, alarm: Alarm, count: int) -> None:
    recorded = read_one(trace)
    frame = recorded.frame
    assert frame.filter(pl.col("name") == "training").height == count
    assert frame.filter(pl.col("name") == "handler").height == 2 * alarm.calls
    assert frame["status"].unique().to_list() == ["closed"]
    assert recorded.side.dropped == {}


def test_spans_in_handlers_inside_spans(trace: Path) -> None:
    """All spans of handler and training are found, and none is torn."""
    with Alarm() as alarm:
        count = train(alarm)
    tl.stop()
    check(trace, alarm, count)


def test_handlers_while_the_next_segment_is_made(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if that takes much longer than the time between two signals."""
    create = segments.create_segment

    def slowly(*arguments: Any) -> Any:
        until = time.monotonic() + 0.02
        while time.monotonic() < until:
            pass
        return create(*arguments)

    monkeypatch.setattr(rotation, "create_segment", slowly)
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1 << 14)
    tl.stop()
    tl.start(trace / "small")
    with Alarm() as alarm:
        count = train(alarm)
    tl.stop()
    check(trace / "small", alarm, count)


class Interrupted(Exception):
    """What an impatient user's handler raises."""


@pytest.fixture(params=[Interrupted, TimeoutError, BlockingIOError, MemoryError])
def impatient(request: pytest.FixtureRequest) -> Iterator[type[Exception]]:
    """A handler of SIGUSR1 that raises: an exception of its own, or one that a full disk may raise."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        raise request.param

    before = signal.signal(signal.SIGUSR1, handler)
    yield request.param
    signal.signal(signal.SIGUSR1, before)


def test_handler_raises_while_a_line_is_written(
    trace: Path, monkeypatch: pytest.MonkeyPatch, impatient: type[Exception]
) -> None:
    """The program gets the exception, and the name is in the file, once, with the next line."""
    write, name = os.write, f"interrupted by {impatient}"  # which no test has named before
    raised: list[int] = []

    def interrupted(number: int, line: bytes) -> int:
        written = write(number, line)
        if b"definitions" in line and not raised:
            raised.append(number)
            signal.raise_signal(signal.SIGUSR1)
        return written

    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(impatient):
        tl.span(name)
    for each in (name, "next"):
        with tl.span(each):
            pass
    tl.stop()
    recorded = read_one(trace)
    assert [event["name"] for event in recorded.events] == [name, "next"]
    names = [row.name for row in recorded.side.definitions]
    assert len(names) == len({row.id for row in recorded.side.definitions})
    assert recorded.side.dropped == {}


def test_handler_raises_while_a_segment_is_made(
    trace: Path, monkeypatch: pytest.MonkeyPatch, impatient: type[Exception]
) -> None:
    """The training gets the exception; what was half made is made anew, and recording goes on."""
    create = segments.create_segment
    raised: list[int] = []
    caught = 0

    def interrupted(*arguments: Any) -> Any:
        segment = create(*arguments)
        if not raised:
            raised.append(segment.number)
            signal.raise_signal(signal.SIGUSR1)
        return segment

    tl.stop()
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1 << 14)
    tl.start(trace / "small")
    monkeypatch.setattr(rotation, "create_segment", interrupted)
    span = tl.span("piece")
    for number in range(2000):
        try:
            with span(nbytes=number):
                pass
        except impatient:
            caught += 1
    tl.stop()
    recorded = read_one(trace / "small")
    assert raised
    assert caught == 1
    assert recorded.frame.height >= 1999
    assert recorded.side.dropped == {}

"""Threads that Python did not start, as frameworks call hooks from, record like any other."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from support.launch.recording import Recorded, read_one

import tracelens as tl
from tracelens.schema.side import Thread

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the recorder works on Linux")

CALLBACK: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
CALLS: Final = 4  # each comes to Python anew: the thread's start, and thrice its end


class ForeignThread:
    """A thread of the C library that calls `work` several times, and is unknown to Python between."""

    def __init__(self, work: Callable[[int], object]) -> None:
        self._work = work
        self._library = ctypes.CDLL(None)
        self._callback = CALLBACK(self._run_callback)
        self._key = ctypes.c_uint()
        self._thread = ctypes.c_ulong()
        self._calls = 0

    def run(self) -> None:
        # Ending, a thread calls a key's destructor as long as that leaves a value, up to four times.
        library = self._library
        library.pthread_key_create(ctypes.byref(self._key), self._callback)
        library.pthread_create(ctypes.byref(self._thread), None, self._callback, None)
        library.pthread_join(self._thread, None)
        library.pthread_key_delete(self._key)

    def _run_callback(self, _value: int | None) -> None:
        self._work(self._calls)
        self._calls += 1
        if self._calls < CALLS:
            self._library.pthread_setspecific(self._key, ctypes.c_void_p(1))


def threads_of(recorded: Recorded) -> list[Thread]:
    """Return the rows that are no tracks: those are known as long as the process lives."""
    return [row for row in recorded.side.threads if not row.in_flight]


def test_callbacks_of_one_thread(trace: Path) -> None:
    """All its spans are in one row, although it leaves and enters Python repeatedly."""
    outer, inner = tl.span("outer"), tl.span("inner")

    def work(number: int) -> None:
        with outer, inner(nbytes=number):
            pass
        inner.begin(nbytes=number).end()

    with outer:
        ForeignThread(work).run()
    tl.stop()
    recorded = read_one(trace)
    inner_events = [event for event in recorded.named("inner") if event["status"] == "closed"]
    assert [event["bytes"] for event in inner_events] == [n for n in range(CALLS) for _ in range(2)]
    assert len(recorded.named("outer")) == CALLS + 1
    (row,) = {event["thread"] for event in inner_events}
    assert len(threads_of(recorded)) == 2
    assert {event["depth"] for event in inner_events} == {0, 1}
    assert row != next(e["thread"] for e in recorded.named("outer"))


def record(span: tl.Span, number: int, _call: int) -> None:
    span.begin(nbytes=number).end()


def test_threads_that_come_and_go(trace: Path) -> None:
    """Each has a row of its own, also where the next one gets the memory of the last one."""
    span = tl.span("piece")
    for number in range(20):
        ForeignThread(partial(record, span, number)).run()
    tl.stop()
    recorded = read_one(trace)
    rows = {event["bytes"]: event["thread"] for event in recorded.events}
    assert len(recorded.events) == 20 * CALLS
    assert len(set(rows.values())) == 20
    assert len(threads_of(recorded)) == 20


def test_span_ends_in_a_foreign_thread(trace: Path) -> None:
    """As reductions do, whose end only a thread of the framework hears of."""
    tokens = [tl.span("reduce", kind="reduction", op="allreduce").begin() for _ in range(CALLS)]
    ForeignThread(lambda number: tokens[number].end()).run()
    tl.stop()
    assert [event["status"] for event in read_one(trace).events] == ["closed"] * CALLS

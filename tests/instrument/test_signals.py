"""A signal handler may record inside a span, inside the recorder itself, at any moment."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import polars as pl
from support.recording import read_one

import tracelens as tl

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

HANDLED = 200


def test_spans_in_handlers_inside_spans(trace: Path) -> None:
    """All spans of handler and training are found, none torn, and the handler's nest deeper."""
    outer, inner = tl.span("outer"), tl.span("inner")
    handled = 0

    def handler(_number: int, _frame: FrameType | None) -> None:
        nonlocal handled
        handled += 1
        with inner, inner(nbytes=handled):
            pass

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    count = 0
    try:
        while handled < HANDLED:
            with outer:
                count += 1
            with outer(seq=count):
                count += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    tl.stop()
    recorded = read_one(trace)
    frame = recorded.frame
    assert frame.filter(pl.col("name") == "outer").height == count
    assert frame.filter(pl.col("name") == "inner").height == 2 * handled
    assert frame["status"].unique().to_list() == ["closed"]
    assert recorded.side.dropped == {}

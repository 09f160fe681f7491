"""When a segment is full, recording goes on in a new one; spans open in the old one close there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.recording import read_one

import tracelens as tl
from tracelens.schema.record import RECORD_BYTES
from tracelens_instrument.segments import SEGMENT_BYTES
from tracelens_instrument.state import STATE

if TYPE_CHECKING:
    from pathlib import Path

SLOTS = SEGMENT_BYTES // RECORD_BYTES - 1


def segment_files(trace: Path) -> list[str]:
    (folder,) = trace.glob("*.segments")
    return sorted(path.name for path in folder.glob("*.seg"))


def test_nothing_is_lost_at_the_seam(trace: Path) -> None:
    """Every record of three segments is found, in order, and so is a span that saw them all."""
    span, whole = tl.span("piece"), tl.span("whole")
    count = 2 * SLOTS + 10
    with whole:
        token = whole.begin()
        for number in range(count):
            with span(nbytes=number):
                pass
        token.end()
    assert segment_files(trace) == ["000000.seg", "000001.seg", "000002.seg"]
    tl.stop()
    recorded = read_one(trace)
    assert [event["bytes"] for event in recorded.named("piece")] == list(range(count))
    assert [event["status"] for event in recorded.named("whole")] == ["closed", "closed"]
    assert recorded.side.dropped == {}


def test_next_segment_is_made_between_steps(trace: Path) -> None:
    """When half of a segment is used, the next one is ready before a span has to wait for it."""
    span = tl.span("piece")
    with tl.step(0):
        for _ in range(SLOTS // 2 + 10):
            with span:
                pass
        assert segment_files(trace) == ["000000.seg"]
    assert segment_files(trace) == ["000000.seg", "000001.seg"]
    for _ in range(3):
        with tl.step(1):
            pass
    assert segment_files(trace) == ["000000.seg", "000001.seg"]
    for _ in range(SLOTS):
        with span:
            pass
    assert segment_files(trace) == ["000000.seg", "000001.seg"]
    tl.stop()
    assert len(read_one(trace).named("piece")) == SLOTS // 2 + 10 + SLOTS


def test_unused_segment_is_no_trouble(trace: Path) -> None:
    """A segment that was prepared and never used leaves nothing behind."""
    recording = STATE.recording
    assert recording is not None
    recording._prepare_segment()
    with tl.span("piece"):
        pass
    tl.stop()
    assert len(read_one(trace).events) == 1
    assert [path.suffix for path in trace.iterdir()] == [".arrow"]

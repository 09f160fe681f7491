"""When a segment is full, recording goes on in a new one; spans open in the old one close there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
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
    tl.stop()
    recorded = read_one(trace)
    assert [event["bytes"] for event in recorded.named("piece")] == list(range(count))
    assert [event["status"] for event in recorded.named("whole")] == ["closed", "closed"]
    assert recorded.side.dropped == {}


def test_one_segment_is_always_ahead(trace: Path) -> None:
    """A full segment is followed by one that is there already; unused ones leave nothing behind."""
    span = tl.span("piece")
    for used in range(1, 4):
        with span:
            pass
        assert segment_files(trace) == [f"{number:06d}.seg" for number in range(used + 1)]
        for _ in range(SLOTS - 1):
            with span:
                pass
    tl.stop()
    assert len(read_one(trace).events) == 3 * SLOTS
    assert [path.suffix for path in trace.iterdir()] == [".arrow"]


@pytest.mark.usefixtures("trace")
def test_pages_are_brought_in_between_steps() -> None:
    """When half of a segment is used, the pages of the next one come at the end of a step."""
    recording = STATE.recording
    assert recording is not None
    assert recording._spare is not None
    span = tl.span("piece")
    with tl.step(0):
        pass
    assert not recording._spare.touched
    with tl.step(1):
        for _ in range(SLOTS // 2 + 10):
            with span:
                pass
        assert not recording._spare.touched
    assert recording._spare.touched

"""When a segment is full, recording goes on in a new one; spans open in the old one close there."""

from pathlib import Path

import pytest
from support.launch.recording import read_one

import tracelens as tl
from tracelens.schema.record import RECORD_BYTES
from tracelens_instrument.lifecycle import current_recording
from tracelens_instrument.storage.segments import SEGMENT_BYTES, Segment

SLOTS = SEGMENT_BYTES // RECORD_BYTES - 1


def segment_files(trace: Path) -> list[str]:
    (folder,) = trace.glob("*.segments")
    return sorted(path.name for path in folder.glob("*.seg"))


def test_nothing_is_lost_at_the_seam(trace: Path) -> None:
    """Every record of three segments is found, in order, and so is a span that saw them all."""
    span, outer_span = tl.span("piece"), tl.span("whole")
    count = 2 * SLOTS + 10
    with outer_span:
        token = outer_span.begin()
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
    """A full segment is followed by a prepared one; unused segments are removed."""
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


def in_hand() -> list[Segment]:
    """The segment in use, and those ready to follow it."""
    recording = current_recording()
    assert recording is not None
    return [recording.segment, *recording.storage._spare_segments]


@pytest.mark.usefixtures("trace")
def test_next_segment_is_made_between_steps() -> None:
    """The segments of a step are prepared and touched before it begins, and one more."""
    span = tl.span("piece")
    for number, segments in enumerate((0, 2, 2, 1)):
        segments_before = in_hand()
        assert all(segment.is_touched for segment in segments_before)
        with tl.step(number):
            for _ in range(segments * SLOTS):
                with span:
                    pass
            if number > 1:  # one of this size was seen
                assert set(in_hand()) < set(segments_before)
                assert len(in_hand()) > 1


@pytest.mark.usefixtures("trace")
def test_small_steps_have_one_segment_ahead() -> None:
    """Room on disk is not taken for what does not come."""
    for number in range(SLOTS // 4):
        with tl.step(number), tl.span("piece"):
            pass
    assert len(in_hand()) == 2


def test_full_segments_leave_the_memory(trace: Path) -> None:
    """A day of training maps few segments, since the kernel limits the number of mappings."""
    span = tl.span("piece")
    for _ in range(30 * SLOTS):
        with span:
            pass
    assert count_mapped_segments(trace) < 12
    with tl.step(1):
        pass
    assert count_mapped_segments(trace) == len(in_hand())


def count_mapped_segments(trace: Path) -> int:
    """Count this trace's segments in memory, not those of other tests."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(f"{trace}/" in line and line.endswith(".seg") for line in lines)

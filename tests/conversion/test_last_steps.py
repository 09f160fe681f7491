"""Which records of a recording of the last steps are left: those that a slow look at all steps finds."""

import itertools
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.runs.segments import Slot

from tracelens.conversion.columns import SLOT, Records
from tracelens.conversion.retention import (
    Stretch,
    cut_to_last,
    join_consecutive,
    list_steps_cut_off,
)
from tracelens.schema.side import Definition, Kept

STEP, PIECE = 1, 2
DEFINITIONS = (
    Definition(STEP, "step", "step"),
    Definition(PIECE, "step", "user"),
    Definition(3, "mine", "step"),
    Definition(4, "step", "step", type="instant"),
)
LENGTH = 10
FIRST, LAST = 4, 6  # segments of a stretch


def records_of(slots: list[Slot]) -> Records:
    return np.frombuffer(b"".join(slot.pack() for slot in slots), SLOT)


class Recording(NamedTuple):
    """Some steps with pieces in them, one after the other; the last may still be open."""

    steps: int
    open: bool
    more: bool  # begins after the last step
    first: int  # segment
    gap: bool
    last: int
    kept: list[tuple[int, int]]  # moments, and segments

    def slots(self) -> list[Slot]:
        drawn = [Slot(1, 2, definition=3), Slot(3, definition=4)]
        for number in range(self.steps):
            begin_ns = LENGTH * (number + 1)
            ended = number < self.steps - 1 or not self.open
            sign = -1 if number % 3 == 2 else 1  # an exception left it
            end = sign * (begin_ns + LENGTH - 2) if ended else 0
            drawn.append(Slot(begin_ns, end, step=number, definition=STEP))
            drawn += [
                Slot(begin_ns + offset_ns, begin_ns + offset_ns + 1, definition=PIECE)
                for offset_ns in (0, 3, 7)
            ]
        end_ns = LENGTH * (self.steps + 1)
        return drawn + ([Slot(end_ns - 1, end_ns, definition=PIECE)] if self.more else [])

    def stretch(self) -> Stretch:
        return Stretch(records_of(self.slots()), self.first, LAST, self.gap)

    def expected(self) -> list[Slot]:
        """Choose slot by slot."""
        slots = self.slots()
        steps = [slot for slot in slots if slot.definition == STEP]
        if not steps:
            return slots
        whole = not self.gap or (bool(steps[-1].end_ns) and self.more)
        until_ns = 1 << 60 if whole else steps[-1].start_ns
        inside = [at for at, segment in self.kept if self.first <= segment <= LAST]
        moments = inside if self.gap and inside else [*inside, 1 << 60]
        begins = []
        for moment in moments:
            over = [
                slot.start_ns
                for slot in steps
                if slot.end_ns and abs(slot.end_ns) <= moment and slot.start_ns < until_ns
            ]
            since = steps[0].start_ns if self.first else 0
            begins.append(over[-self.last] if len(over) > self.last else since)
        return [
            slot
            for slot in slots
            if any(
                begin <= slot.start_ns < min(moment, until_ns)
                for begin, moment in zip(begins, moments, strict=True)
            )
        ]


RECORDINGS = st.builds(
    Recording,
    steps=st.integers(0, 7),
    open=st.booleans(),
    more=st.booleans(),
    first=st.sampled_from([0, FIRST]),
    gap=st.booleans(),
    last=st.integers(1, 4),
    kept=st.lists(
        st.tuples(st.integers(LENGTH, 8 * LENGTH), st.integers(FIRST - 1, LAST + 1)), max_size=2
    ),
)


@given(RECORDINGS)
def test_the_last_before_each_moment(recording: Recording) -> None:
    kept = [Kept(at, segment) for at, segment in recording.kept]
    (found,) = cut_to_last([recording.stretch()], recording.last, kept, DEFINITIONS)
    assert found.tolist() == records_of(recording.expected()).tolist()


@given(RECORDINGS)
def test_what_was_cut_off_is_said(recording: Recording) -> None:
    """Each step that was over and is not there any more, with its begin and end."""
    (found,) = cut_to_last([recording.stretch()], recording.last, (), DEFINITIONS)
    starts_left = set(found["start_ns"].tolist())
    assert list_steps_cut_off([recording.stretch().records], found, DEFINITIONS) == [
        (slot.step, slot.start_ns, abs(slot.end_ns))
        for slot in recording.slots()
        if slot.definition == STEP and slot.end_ns and slot.start_ns not in starts_left
    ]


@given(st.sets(st.integers(0, 12)).map(sorted))
def test_consecutive_segments_are_one_stretch(numbers: list[int]) -> None:
    """Segments whose numbers follow each other are one stretch; each number is in one."""
    segments = [(number, records_of([Slot(number + 1)] * 2)) for number in numbers]
    found_stretches = join_consecutive(segments)
    assert [
        n
        for stretch in found_stretches
        for n in range(stretch.first_segment, stretch.last_segment + 1)
    ] == numbers
    for stretch, following in itertools.pairwise(found_stretches):
        assert stretch.last_segment + 1 < following.first_segment
    for stretch in found_stretches:
        expected = [
            n + 1 for n in range(stretch.first_segment, stretch.last_segment + 1) for _ in range(2)
        ]
        assert stretch.records["start_ns"].tolist() == expected
    assert [stretch.has_gap_after for stretch in found_stretches] == [True] * (
        len(found_stretches) - 1
    ) + [False] * bool(found_stretches)

"""The summary of a file counts what a slow look at all its rows counts, however they come in parts."""

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from support.runs.segments import PROCESS, Slot

from tracelens.conversion.columns import SLOT, DeviceTimes, make_batch, split_fields
from tracelens.conversion.definitions import tabulate_definitions
from tracelens.conversion.tally import Tally
from tracelens.schema.side import Definition, SideTables, Summary, Thread
from tracelens.schema.vocabulary import OUTDATED

FLYING = 2  # a thread of what is in flight, never the training thread
DEFINITIONS = (
    Definition(1, "step", "step"),
    Definition(2, "work", "user"),
    Definition(3, "forward", "forward"),
    Definition(4, "step", "step", type="instant"),
    Definition(5, "loss", "gauge", type="counter"),
)
BY_ID = {row.id: row for row in DEFINITIONS}
SIDE = SideTables(
    process=PROCESS,
    threads=(Thread(0, "main"), Thread(FLYING, "link", in_flight=True)),
    dropped={"reason": 3, OUTDATED: 5},
)
FOREVER = 1 << 40


@st.composite
def slots(draw: st.DrawFn, ids: Sequence[int]) -> Slot:
    start = draw(st.integers(1, 12))
    length = draw(st.integers(-1, 6))
    return Slot(
        start_ns=start,
        end_ns=0 if length < 0 else draw(st.sampled_from([1, -1])) * (start + length),
        thread=draw(st.sampled_from([0, 1, FLYING, 300])),
        step=draw(st.integers(-1, 3)),
        definition=draw(st.sampled_from(ids)),
    )


def recordings(*ids: int) -> st.SearchStrategy[list[Slot]]:
    return st.lists(slots(ids), max_size=14).map(
        lambda found: sorted(found, key=lambda slot: slot.start_ns)
    )


CUTS = st.lists(st.integers(0, 14), max_size=3).map(sorted)


def batch(given_slots: Sequence[Slot]) -> pa.RecordBatch:
    records = np.frombuffer(b"".join(slot.pack() for slot in given_slots), SLOT)
    meanings = tabulate_definitions(DEFINITIONS)
    rows = meanings.find_rows(records["definition"])
    return make_batch(
        split_fields(records),
        rows,
        np.zeros(len(rows), np.int64),
        meanings,
        DeviceTimes.from_records(None),
    )


def is_span(slot: Slot) -> bool:
    return BY_ID[slot.definition].type == "span"


def end_of(slot: Slot, *, of_open: int) -> int:
    if not is_span(slot):
        return slot.start_ns
    return abs(slot.end_ns) or of_open


def steps_of(given_slots: Sequence[Slot]) -> int:
    """Count the steps of the thread with the most; without any, numbers of the busiest thread."""
    threads = sorted({slot.thread for slot in given_slots} - {FLYING})
    spans = [slot for slot in given_slots if is_span(slot)]
    steps = [slot for slot in spans if BY_ID[slot.definition].kind == "step"]
    if not steps:
        of = {thread: [slot for slot in spans if slot.thread == thread] for thread in threads}
        busiest = max(threads, key=lambda thread: len(of[thread]), default=-1)
        return len({max(slot.step, 0) for slot in of.get(busiest, ())})
    counts = [0]
    for thread in threads:
        over, count = 0, 0
        for slot in steps:
            if slot.thread == thread:
                count += slot.start_ns >= over
                over = max(over, end_of(slot, of_open=FOREVER))
        counts.append(count)
    return max(counts)


def count_by_hand(given_slots: Sequence[Slot]) -> Summary:
    """Count by hand."""
    starts = [slot.start_ns for slot in given_slots]
    ends = [end_of(slot, of_open=slot.start_ns) for slot in given_slots]
    return Summary(
        rows=len(given_slots),
        spans=sum(map(is_span, given_slots)),
        steps=steps_of(given_slots),
        first_ns=min(starts, default=None),
        last_ns=max(ends, default=None),
        dropped=3,
        kinds=sorted({BY_ID[slot.definition].kind for slot in given_slots}),
    )


def check(given_slots: list[Slot], cuts: list[int]) -> None:
    tally = Tally()
    if given_slots:
        all_rows = batch(given_slots)
        bounds = [0, *(min(cut, len(given_slots)) for cut in cuts), len(given_slots)]
        for first, end in itertools.pairwise(bounds):
            tally.add_batch(all_rows.slice(first, end - first))
    assert tally.make_summary(SIDE) == count_by_hand(given_slots)


@given(recordings(1, 2, 3, 4, 5), CUTS)
def test_tally_counts_events_of_steps(given_slots: list[Slot], cuts: list[int]) -> None:
    check(given_slots, cuts)


@given(recordings(2, 3, 4, 5), CUTS)
def test_tally_counts_events_without_step_spans(given_slots: list[Slot], cuts: list[int]) -> None:
    """Numbers of steps may be there all the same."""
    check(given_slots, cuts)


def test_a_thread_with_as_many_spans_comes_second() -> None:
    """Of threads that are equally busy the first is the training thread."""
    check(
        [Slot(1, 2, thread=t, step=s, definition=2) for t, s in ((1, 5), (1, 6), (0, 7), (0, 7))],
        [],
    )


def test_a_long_step_reaches_into_later_parts() -> None:
    """Whatever ended before it in its own part."""
    slots = [Slot(start, end) for start, end in ((1, 2), (3, 20), (5, 9), (20, 21))]
    check(slots, [2])
    assert count_by_hand(slots).steps == 3

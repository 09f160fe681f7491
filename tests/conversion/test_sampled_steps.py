"""Step sampling in a conversion: chunk by chunk it keeps and counts what it does in one go."""

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs.segments import Slot, write_folder

from tracelens.conversion.batches import ChunkMode, Conversion
from tracelens.conversion.columns import SLOT, RecordChunk, Records
from tracelens.conversion.segments import decode
from tracelens.schema.record import TIMED_ON_DEVICE
from tracelens.schema.side import Definition, Kept, Retention, Thread, format_line
from tracelens.schema.vocabulary import OUTDATED

STEP, FORWARD, PIECE, SUM, OTHER, MOMENT, DEVICE = range(1, 8)
DEFINITIONS = (
    Definition(STEP, "step", "step"),
    Definition(FORWARD, "forward", "forward"),
    Definition(PIECE, "piece", "user"),
    Definition(SUM, "sum", "reduction", op="allreduce", communicator=0),
    Definition(OTHER, "sum", "reduction", op="allreduce", communicator=1),
    Definition(MOMENT, "saved", "checkpoint", type="instant"),
    Definition(DEVICE, "device times", "device", type="device"),
)
KINDS = {row.id: row.kind for row in DEFINITIONS}
THREADS = (Thread(0, "main"), Thread(1, "link", in_flight=True), Thread(2, "other"))
EVERY_SECOND = Retention(every=2)
STEPS = 6


def step(number: int) -> list[Slot]:
    """One step: pieces in a phase, work that another thread does meanwhile, and sums in flight."""
    begin_ns = 100 * number + 1
    slots = [
        Slot(begin_ns, begin_ns + 90, definition=STEP),
        Slot(begin_ns + 1, begin_ns + 50, definition=FORWARD),
        *(Slot(begin_ns + 2 + 5 * n, begin_ns + 5 + 5 * n, definition=PIECE) for n in range(4)),
        *(
            Slot(begin_ns + 4 + 5 * n, begin_ns + 60 + n, definition=SUM, thread=1)
            for n in range(3)
        ),
        Slot(begin_ns + 6, begin_ns + 70, definition=OTHER, thread=1),
        Slot(begin_ns + 20, begin_ns + 20, definition=MOMENT),
        Slot(begin_ns + 51, begin_ns + 55, definition=PIECE, thread=2),
    ]
    return [Slot(**{**vars(slot), "step": number}) for slot in slots]


def kept_of(number: int) -> list[Slot]:
    """What is kept of it: all, or its summary."""
    slots = step(number)
    if number % 2 == 0:
        return slots
    last_sum = max(
        (slot for slot in slots if slot.definition == SUM), key=lambda slot: slot.start_ns
    )
    whole = {STEP, FORWARD, OTHER}
    return [
        slot for slot in slots if slot.definition in whole or slot == last_sum or slot.thread == 2
    ]


def records_of(slots: Sequence[Slot]) -> Records:
    return np.frombuffer(b"".join(slot.pack() for slot in slots), SLOT)


def chunk(slots: Sequence[Slot], first: int = 0) -> RecordChunk:
    return RecordChunk.from_records(records_of(slots), np.arange(first, first + len(slots)))


class Converted:
    """A conversion, and what came out of it."""

    def __init__(self, retention: Retention, **limits: int) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.conversion = Conversion(self.batches.append, retention, None, **limits)
        self.conversion.set_definitions(DEFINITIONS, THREADS)

    def live(self, slots: Sequence[Slot], cuts: Sequence[int]) -> None:
        """Feed it in parts, as while a process records, and then the rest."""
        back = chunk(())
        bounds = [0, *cuts]
        for first, end in itertools.pairwise(bounds):
            given_now = RecordChunk.from_chunks([back, chunk(slots[first:end], first)])
            ahead = records_of(slots[end : end + 3])
            back = self.conversion.convert_chunk(given_now, ahead, ChunkMode(holds_back=True))
        self.afterwards(slots[bounds[-1] :], [], back)

    def afterwards(
        self, slots: Sequence[Slot], cuts: Sequence[int], back: RecordChunk | None = None
    ) -> None:
        """Feed it in parts, as when a process is over."""
        bounds = [0, *cuts, len(slots)]
        for first, end in itertools.pairwise(bounds):
            records = RecordChunk.from_chunks(
                [*([back] if back and first == 0 else []), chunk(slots[first:end], first)]
            )
            self.conversion.convert_chunk(records, records_of(slots[end : end + 5]), ChunkMode())
        self.conversion.convert_chunk(chunk(()), records_of(()), ChunkMode(is_last=True))

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        found = [row for batch in self.batches for row in batch.select(columns).to_pylist()]
        return [tuple(row.values()) for row in found]


SLOTS = sorted((slot for n in range(STEPS) for slot in step(n)), key=lambda slot: slot.start_ns)
EXPECTED = sorted((slot.start_ns, slot.thread) for n in range(STEPS) for slot in kept_of(n))
# Of an event that waited for a whole chunk it is taken that no more comes of its kind and step.
CUTS = st.lists(st.integers(len(step(0)), 2 * len(step(0))), max_size=4).map(
    lambda sizes: [cut for cut in itertools.accumulate(sizes) if cut < len(SLOTS)]
)


@settings(max_examples=50)
@given(CUTS, st.booleans())
def test_chunks_of_any_size_keep_and_count_each_event_once(cuts: list[int], live: bool) -> None:  # noqa: FBT001 - drawn
    """Each kept event occurs once, and the others are counted by kind, for any cut into chunks."""
    done = Converted(EVERY_SECOND)
    (done.live if live else done.afterwards)(SLOTS, cuts)
    assert sorted(done.rows("start_ns", "thread")) == EXPECTED
    thinned = Counter(KINDS[slot.definition] for slot in SLOTS)
    thinned.subtract(KINDS[slot.definition] for n in range(STEPS) for slot in kept_of(n))
    assert +done.conversion.thinned_by_kind == +thinned
    assert not +done.conversion.lost_by_reason


NESTED = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, 40), st.integers(1, 30)), min_size=2, max_size=14
).map(sorted)


@given(NESTED, st.lists(st.integers(1, 13), max_size=4, unique=True).map(sorted), st.booleans())
def test_depths_however_they_are_cut(
    spans: list[tuple[int, int, int]],
    cuts: list[int],
    live: bool,  # noqa: FBT001 - drawn
) -> None:
    """A depth is that of the whole recording, for any cut into chunks."""
    in_order = sorted(spans, key=lambda span: (span[1], -span[2]))
    slots = [
        Slot(start, start + length, thread=2 * thread, definition=PIECE)
        for thread, start, length in in_order
    ]
    done, at_once = Converted(Retention()), Converted(Retention())
    sound = [cut for cut in cuts if cut < len(slots)]
    (done.live if live else done.afterwards)(slots, sound)
    at_once.afterwards(slots, [])
    columns = ("start_ns", "duration_ns", "thread", "depth")
    assert sorted(done.rows(*columns)) == sorted(at_once.rows(*columns))
    assert done.conversion.is_sorted


def test_rows_out_of_order_are_noticed() -> None:
    """Rows that begin together are in order; one that begins before what was written is not."""
    done = Converted(Retention())
    feed = done.conversion.convert_chunk
    for start in (5, 5, 6):
        feed(chunk([Slot(start, 9)]), records_of(()), ChunkMode(holds_back=True))
    assert (done.conversion.is_sorted, done.conversion.latest_start_ns) == (True, 6)
    feed(chunk([Slot(5, 9)]), records_of(()), ChunkMode(holds_back=True))
    assert (done.conversion.is_sorted, done.conversion.latest_start_ns) == (False, 6)
    feed(chunk([Slot(7, 9)]), records_of(()), ChunkMode(holds_back=True))
    assert (done.conversion.is_sorted, done.conversion.latest_start_ns) == (False, 7)


def test_what_may_come_later_waits() -> None:
    """For what begins before it in the next chunk; but not for ever more records."""
    done = Converted(Retention(), max_waiting=3)
    feed = done.conversion.convert_chunk
    feed(chunk([Slot(n, 50) for n in (4, 5, 6)]), records_of([Slot(5, 50)]), ChunkMode())
    assert done.rows("start_ns") == [(4,)]
    feed(chunk([Slot(5, 50)]), records_of([Slot(1, 50), Slot(9, 50)]), ChunkMode())
    assert done.rows("start_ns") == [(4,)]
    feed(chunk([Slot(1, 50)]), records_of([Slot(0, 50)]), ChunkMode())
    assert done.rows("start_ns") == [(start,) for start in (4, 1, 5, 5, 6)]
    feed(chunk([Slot(0, 50)]), records_of([]), ChunkMode())
    assert done.rows("start_ns")[-1] == (0,)
    assert not done.conversion.is_sorted


@pytest.mark.parametrize("count", range(1, 14))
def test_batches_are_of_a_size(count: int) -> None:
    """As few as hold all rows, in order."""
    done = Converted(Retention(), batch_rows=4)
    done.afterwards([Slot(n, n + 1) for n in range(1, count + 1)], [])
    assert done.rows("start_ns") == [(n,) for n in range(1, count + 1)]
    assert len(done.batches) == -(-count // 4)
    assert max(batch.num_rows for batch in done.batches) <= 4


@pytest.mark.parametrize("chunk_index", [0, 1, 2, 3])
def test_device_times_in_a_chunk_near_by(chunk_index: int) -> None:
    """In the one before, with their span, or ahead of it."""
    name = TIMED_ON_DEVICE | 1
    slots = [Slot(10 * n, 10 * n + 5) for n in range(1, 5)]
    slots[1:2] = [Slot(20, 25, request=name)]
    times = Slot(1, 4, nbytes=77, request=name, thread=3, definition=DEVICE)
    chunks = [[slot] for slot in slots]
    chunks[chunk_index].append(times)
    done = Converted(Retention())
    for index, slots_of_chunk in enumerate(chunks):
        following = chunks[index + 1] if index + 1 < len(chunks) else []
        done.conversion.convert_chunk(
            chunk(slots_of_chunk), records_of(following), ChunkMode(is_last=index == 3)
        )
    near = chunk_index <= 2
    expected = (77, 3, 3) if near else (None,) * 3
    found = done.rows("start_ns", "device_start_ns", "device_duration_ns", "stream")
    assert (20, *expected) in found
    assert [row[0] for row in found] == [10, 20, 30, 40]


def test_what_is_not_known_yet() -> None:
    """Records of a definition that comes later are noticed."""
    conversion = Converted(Retention()).conversion
    assert conversion.has_all_definitions(records_of([Slot(1, 2), Slot(1, 2, definition=DEVICE)]))
    assert not conversion.has_all_definitions(records_of([Slot(1, 2), Slot(1, 2, definition=9)]))
    conversion.set_definitions((*DEFINITIONS, Definition(9, "late", "user")), THREADS)
    assert conversion.has_all_definitions(records_of([Slot(1, 2, definition=9)]))


def test_threads_in_flight_may_become_more() -> None:
    """What is said last of the threads counts."""
    done = Converted(EVERY_SECOND)
    done.conversion.set_definitions(DEFINITIONS, (*THREADS, Thread(7, "late", in_flight=True)))
    slots = [Slot(n, 50, step=1, thread=7, definition=SUM) for n in (10, 20, 30)]
    done.afterwards(slots, [])
    assert done.rows("start_ns") == [(30,)]


def folder_of(
    place: Path, *segments: Sequence[Slot], retention: Retention, kept: Sequence[Kept] = ()
) -> Path:
    folder = write_folder(place, *segments, definitions=DEFINITIONS)
    lines = [format_line("retention", retention), *(format_line("kept", row) for row in kept)]
    lines += [format_line("threads", row) for row in THREADS[1:]]
    with (folder / "side.jsonl").open("ab") as file:
        file.write(b"".join(lines))
    return folder


def starts(folder: Path) -> list[Any]:
    return decode(folder)[0]["start_ns"].to_pylist()


def test_spans_that_never_ended(tmp_path: Path) -> None:
    """In a step without detail they are kept, and all of a step that never ended."""
    slots = [
        *step(1),
        Slot(140, 0, step=1, definition=PIECE),
        Slot(141, -150, step=1, definition=PIECE),
        *step(3)[1:],
        Slot(300, 0, step=3, definition=STEP),
    ]
    expected = [*kept_of(1), *slots[len(step(1)) :]]
    folder = folder_of(tmp_path, slots, retention=EVERY_SECOND)
    assert starts(folder) == sorted(slot.start_ns for slot in expected)


def test_a_span_may_begin_at_nought(tmp_path: Path) -> None:
    """And take no time, or never end."""
    slots = [Slot(0, 0), Slot(-5, 0), Slot(5, 5), Slot(-9, 3), Slot(7, -7)]
    table, side = decode(write_folder(tmp_path, slots))
    assert table["duration_ns"].to_pylist() == [12, None, None, 0, 0]
    assert side.dropped == {}


@pytest.mark.parametrize("keep", [Retention(last=3), EVERY_SECOND, Retention()])
def test_nothing_recorded_yet(tmp_path: Path, keep: Retention) -> None:
    """Without a segment the result has no event, for any retention."""
    assert starts(folder_of(tmp_path, retention=keep)) == []


def test_the_last_steps_of_a_folder(tmp_path: Path) -> None:
    """What is older is counted, and its steps are summed up."""
    folder = folder_of(tmp_path, *map(step, range(STEPS)), retention=Retention(last=2))
    table, side = decode(folder)
    assert table["step"].unique().to_pylist() == [4, 5]
    assert side.dropped == {OUTDATED: 4 * len(step(0))}
    (past,) = side.past
    assert (past.first, past.last, past.steps, past.total_ns) == (0, 3, 4, 4 * 90)

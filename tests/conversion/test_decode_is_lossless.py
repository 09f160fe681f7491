"""Decoding gives back exactly what the records say: every field, every status, in order of start."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs.segments import Slot, write_folder

from tracelens.conversion.segments import decode
from tracelens.schema.arrow import EVENT_SCHEMA
from tracelens.schema.record import ESTIMATED, NO_SEQ, NO_SHORT, VALUE
from tracelens.schema.side import Definition

DEFINITIONS = (
    Definition(1, "piece", "user"),
    Definition(2, "sum", "reduction", op="allreduce", algorithm="ring", communicator=0),
    Definition(5, "push", "ps", op="push", shard=3),
    Definition(9, "saved", "checkpoint", type="instant"),
    Definition(12, "loss", "user", type="counter"),
)
BY_ID = {row.id: row for row in DEFINITIONS}
TIMES = st.integers(1, 2**62)
INDEXES = st.integers(-1, 2**31 - 1)
SHORTS = st.integers(0, NO_SHORT)


@st.composite
def slots(draw: st.DrawFn) -> Slot:
    start = draw(TIMES)
    end = draw(st.sampled_from([0, 1, -1])) * (start + draw(st.integers(0, 2**61)))
    return Slot(
        start_ns=start,
        end_ns=end,
        nbytes=draw(st.integers(-1, 2**62)),
        request=draw(st.integers(0, 2**64 - 1)),
        seq=draw(st.integers(0, NO_SEQ)),
        step=draw(INDEXES),
        key=draw(INDEXES),
        bucket=draw(INDEXES),
        peer=draw(INDEXES),
        thread=draw(SHORTS),
        micro_step=draw(SHORTS),
        queue_depth=draw(SHORTS),
        flags=draw(st.sampled_from([0, ESTIMATED])),
        definition=draw(st.sampled_from(sorted(BY_ID))),
    )


def status(slot: Slot, kind: str) -> str:
    if kind == "span" and slot.end_ns == 0:
        return "open"
    if kind == "span" and slot.end_ns < 0:
        return "exception"
    return "estimated" if slot.flags & ESTIMATED else "closed"


def expect_event(slot: Slot) -> dict[str, Any]:
    """Say by hand, field by field, what an event must hold."""
    row = BY_ID[slot.definition]
    span, counter = row.type == "span", row.type == "counter"
    duration = abs(slot.end_ns) - slot.start_ns if slot.end_ns else None

    def unless(value: int, absent: int) -> int | None:
        return None if value == absent else value

    value = VALUE.unpack(slot.request.to_bytes(8, "little"))[0] if counter else None
    return {
        "start_ns": slot.start_ns,
        "duration_ns": duration if span else 0,
        "type": row.type,
        "kind": row.kind,
        "op": row.op,
        "name": row.name,
        "status": status(slot, row.type),
        "thread": slot.thread,
        "step": slot.step,
        "micro_step": unless(slot.micro_step, NO_SHORT),
        "communicator": row.communicator,
        "seq": unless(slot.seq, NO_SEQ),
        "bytes": unless(slot.nbytes, -1),
        "algorithm": row.algorithm,
        "bucket": unless(slot.bucket, -1),
        "peer": unless(slot.peer, -1),
        "shard": row.shard,
        "key": unless(slot.key, -1),
        "queue_depth": unless(slot.queue_depth, NO_SHORT),
        "request": None if counter else unless(slot.request, 0),
        "device_start_ns": None,
        "device_duration_ns": None,
        "stream": None,
        "value": repr(value),
    }


@settings(deadline=None)
@given(st.lists(st.lists(slots(), max_size=12), max_size=3))
def test_every_field_of_every_record(segments: list[list[Slot]]) -> None:
    """No event is lost or made up, and each column says what its field said."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_folder(Path(folder), *segments, definitions=DEFINITIONS)
        table, side = decode(path)
    assert table.schema.equals(EVENT_SCHEMA)
    given_slots = [slot for segment in segments for slot in segment]
    in_order = sorted(given_slots, key=lambda slot: slot.start_ns)
    rows = table.drop_columns("depth").to_pylist()
    for event in rows:
        event["value"] = repr(event["value"])  # NaN is not equal to itself
    assert rows == [expect_event(slot) for slot in in_order]
    assert side.dropped == {}
    assert side.definitions == DEFINITIONS

"""A span is as deep as it is, also where what holds it was converted long before it."""

import numpy as np
import pyarrow as pa
from support.runs.segments import Slot

from tracelens.conversion.batches import ChunkMode, Conversion
from tracelens.conversion.columns import SLOT, RecordChunk
from tracelens.schema.side import Definition, Retention, Thread

OUTER, INNER = Slot(start_ns=10, end_ns=50, thread=1), Slot(start_ns=20, end_ns=40, thread=1)
AHEAD = Slot(start_ns=60, end_ns=70, thread=0)


def _chunk_of(*slots: Slot) -> RecordChunk:
    records = np.frombuffer(b"".join(slot.pack() for slot in slots), SLOT)
    return RecordChunk.from_records(records, np.arange(len(slots)))


def test_another_thread_may_be_ahead() -> None:
    """Of a thread that was held up, inner spans come after later ones of other threads."""
    batches: list[pa.RecordBatch] = []
    conversion = Conversion(batches.append, Retention())
    conversion.set_definitions(
        [Definition(1, "work", "user")], [Thread(0, "ahead"), Thread(1, "held up")]
    )
    nothing = _chunk_of().records
    conversion.convert_chunk(_chunk_of(OUTER, AHEAD), nothing, ChunkMode(holds_back=True))
    conversion.convert_chunk(_chunk_of(INNER), nothing, ChunkMode(holds_back=True))
    rows = [row for batch in batches for row in batch.select(["start_ns", "depth"]).to_pylist()]
    assert rows == [
        {"start_ns": 10, "depth": 0},
        {"start_ns": 60, "depth": 0},
        {"start_ns": 20, "depth": 1},
    ]

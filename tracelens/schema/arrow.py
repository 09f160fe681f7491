"""The files as Arrow: the event table of a process, and samples of call stacks.

Events are one Arrow IPC file a process (zstd, batches of up to 64 Ki rows, sorted by `start_ns`);
the side tables are in the schema metadata. Columns that do not apply are null. Two more columns are
the same in all rows of a file, so that rows of several files can be told apart. The file is described
for other tools in docs/format.md.

Samples are an Arrow stream a rank, in the folder ``samples``: a stream, not a file, so that it can
be read as far as it was written. Its schema's metadata give the rate.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tracelens.schema.gate import open_regular
from tracelens.schema.rules import RULES

if TYPE_CHECKING:
    from pathlib import Path

BATCH_ROWS: Final = 1 << 16
_WORD: Final = pa.dictionary(pa.int8(), pa.string())
_NAME: Final = pa.dictionary(pa.int32(), pa.string())
_EVENT_TYPES: Final[dict[str, pa.DataType]] = {
    "start_ns": pa.int64(),
    "duration_ns": pa.int64(),  # null = still open; instants and counters: 0
    "type": _WORD,
    "kind": _WORD,
    "op": _WORD,
    "name": _NAME,
    "status": _WORD,
    "thread": pa.uint16(),
    "depth": pa.uint16(),
    "step": pa.int32(),  # -1 = outside
    "micro_step": pa.uint16(),
    "communicator": pa.int32(),  # index into the communicator table
    "seq": pa.uint32(),
    "bytes": pa.int64(),
    "algorithm": _WORD,
    "bucket": pa.int32(),
    "peer": pa.int32(),
    "shard": pa.int32(),
    "key": pa.int32(),
    "queue_depth": pa.uint16(),
    "request": pa.uint64(),
    "device_start_ns": pa.int64(),
    "device_duration_ns": pa.int64(),
    "stream": pa.uint16(),
    "value": pa.float64(),
}
EVENT_SCHEMA: Final = pa.schema(
    [pa.field(name, kind, RULES[name].is_nullable) for name, kind in _EVENT_TYPES.items()]
)
# What is the same in a whole file: the last dictionary of each, which counts, has one value.
_CONSTANT_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("rank", pa.dictionary(pa.int8(), pa.int32()), nullable=False),
    pa.field("process", _WORD, nullable=False),  # role, rank and pid as in names of files
]
FILE_SCHEMA: Final = pa.schema([*EVENT_SCHEMA, *_CONSTANT_FIELDS])
# One thread: whoever writes does so beside a training.
WRITE_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1), use_threads=False)
UNFINISHED_SAMPLES: Final = ".unfinished"  # suffix of the folder in which py-spy writes
SAMPLE_RATE_KEY: Final = b"tracelens.rate_hz"
# A row is a run: samples in a row that found the same stack.
_SAMPLE_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("pid", pa.int64(), nullable=False),  # the rank's, or a child's of it
    pa.field("thread", pa.int64(), nullable=False),  # as the operating system numbers it
    pa.field("thread_name", pa.string(), nullable=False),
    pa.field("start_ns", pa.int64(), nullable=False),  # monotonic clock of the rank
    pa.field("end_ns", pa.int64(), nullable=False),
    pa.field("frames", pa.list_(pa.string()), nullable=False),
]
SAMPLE_SCHEMA: Final = pa.schema(_SAMPLE_FIELDS)


def map_file(path: Path) -> pa.Buffer:
    """Map a file, for as long as the buffer or a view of it is referenced.

    Raises:
        NotATrace: it is no regular file, or beyond the limit of a file.
        OSError: it cannot be opened.
        ValueError: it is empty.
    """
    with open_regular(path) as file:
        return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

"""Samples of call stacks beside a trace: an Arrow stream a rank, in the folder ``samples``.

A stream, not a file: it can be read as far as it was written. Its schema's metadata say the rate.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["RATE_KEY", "SAMPLES", "UNFINISHED", "read_batches"]

UNFINISHED: Final = ".unfinished"  # suffix of the folder in which py-spy writes
RATE_KEY: Final = b"tracelens.rate_hz"

# A row is a run: samples in a row that found the same stack.
_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("pid", pa.int64(), nullable=False),  # the rank's, or a child's of it
    pa.field("thread", pa.int64(), nullable=False),  # as the operating system numbers it
    pa.field("thread_name", pa.string(), nullable=False),
    pa.field("start_ns", pa.int64(), nullable=False),  # monotonic clock of the rank
    pa.field("end_ns", pa.int64(), nullable=False),
    pa.field("frames", pa.list_(pa.string()), nullable=False),
]
SAMPLES: Final = pa.schema(_FIELDS)


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Read as many batches as there are whole.

    Raises:
        OSError: there is no such file.
        pyarrow.ArrowInvalid: it does not begin as one of these.
    """
    with path.open("rb") as file:
        stream = pa.ipc.open_stream(file)
        with contextlib.suppress(pa.ArrowInvalid, OSError):
            yield from stream

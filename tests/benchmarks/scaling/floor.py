"""The floor: reads the columns that any report needs of all files of a trace, once; no more.

One thread, one file after the other, mapped: of each record batch pyarrow decompresses eight columns.
Whatever explains a run has to do at least this, so costs are told as multiples of it: those carry over
between machines, seconds do not. The start of the interpreter and of pyarrow is part of it.

Run: python tests/benchmarks/scaling/floor.py TRACE
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pyarrow as pa

COLUMNS: Final = ("start_ns", "duration_ns", "type", "kind", "op", "name", "thread", "step")


def read(trace: Path) -> int:
    """Decompress the columns of all files; return how many events there are."""
    files = sorted(trace.glob("*.arrow"))
    with pa.memory_map(str(files[0])) as source, pa.ipc.open_file(source) as first:
        places = [first.schema.get_field_index(name) for name in COLUMNS]
    options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
    events = 0
    for path in files:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source, options=options) as file:
            for number in range(file.num_record_batches):
                batch = file.get_batch(number)
                assert batch.num_columns == len(COLUMNS)
                events += batch.num_rows
    return events


if __name__ == "__main__":
    sys.stdout.write(f"{read(Path(sys.argv[1]))}\n")

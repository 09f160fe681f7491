"""Times the maps of a report by the clock, and nothing between or after them.

A run is gone through process by process, twice: to outline each, and to account for its time. What
comes between (clocks, steps, matching) and after (analyses) is done by one process, whoever does the
maps. They are done twice, and the second time counts: workers have started and imported by then.

Run: PYTHONPATH=. python tests/benchmarks/scaling/passes.py TRACE EXECUTOR
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tracelens import load
from tracelens.accounting import phases
from tracelens.executors import open_executor
from tracelens.memory import keep_freed_memory
from tracelens.readers.base import Reading
from tracelens.readers.native.reader import NativeReader


def main(trace: str, executor: str) -> None:
    keep_freed_memory()
    durations_s = []
    with open_executor(executor) as workers:
        for _ in range(2):
            begun_s = time.perf_counter()
            read = NativeReader().read(Path(trace), Reading(executor=workers))
            outlined = time.perf_counter() - begun_s
            prepared = load.prepare(read)
            begun_s = time.perf_counter()
            phases.run(prepared, executor=workers)
            durations_s.append(outlined + time.perf_counter() - begun_s)
    sys.stdout.write(json.dumps({"maps_s": durations_s[-1]}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

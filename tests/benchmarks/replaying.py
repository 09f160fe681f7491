"""CPU seconds that a replay of a large run takes, beside the rest of what an answer needs.

The run is synchronous, written by `support/runs/large_runs.py`; `whatif` opens it, accounts for its
time, makes moments of it and replays them. CPU seconds are those of this process, all its threads.

Run: make bench NAME=replaying [ARGS="--spans 10000000 --ranks 64"]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.quick import parse_quick
from support.runs.large_runs import LargeRun

import tracelens as tl
from tracelens.accounting import phases
from tracelens.replay.event_graph import EventGraph

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


def time_work(name: str, work: Callable[[], _T]) -> _T:
    """Do some work, and print what CPU time it took."""
    begin = time.process_time()
    found = work()
    sys.stdout.write(f"| {name} | {time.process_time() - begin:.1f} |\n")
    return found


def main() -> None:
    """Write the run, and print a row for each part of an answer."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--spans", type=int, default=10_000_000)
    parser.add_argument("--ranks", type=int, default=64)
    given = parse_quick(parser, spans=20_000, ranks=2)
    large = LargeRun.of(given.spans, given.ranks)
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(large.ranks):
            large.write(rank, Path(folder))
        sys.stdout.write(f"| {large.spans:,} spans, {large.ranks} ranks | CPU s |\n|---|---|\n")
        trace = time_work("open", lambda: tl.open(folder))
        account = time_work("account for time", lambda: phases.run(trace))
        graph = time_work("make moments", lambda: EventGraph.from_trace(trace, account))
        assert graph
        time_work("put them in order", lambda: graph.layered_graph)
        time_work("replay", lambda: graph.replay(graph.edges.lag_ns))
    sys.stdout.write(f"| moments | {len(graph.recorded_times_ns):,} |\n")


if __name__ == "__main__":
    main()

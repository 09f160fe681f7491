"""How much of a worker's time the methods of the EASGD family spend on communication, in real runs.

Runs of the methods take turns, so that a busy machine slows all alike. Printed are medians over the
runs: the communication share (all of the steps' time that is neither computing nor loading data), and,
apart, waiting for the turn. It fails if the original is not the one that communicates most, and most
of that waiting for the turn (You, Buluc, Demmel, SC 2017: 87 % for the original, 14 % for Sync 3).

Run: PYTHONPATH=tests python tests/benchmarks/easgd.py [runs]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import polars as pl
from support.examples import run_example

import tracelens as tl
from tracelens.analyses import phases
from tracelens.schema.vocabulary import USEFUL_KINDS

METHODS = {"original": 5, "async": 5, "hogwild": 5, "sync1": 5, "sync2": 4, "sync3": 4}  # ranks
RUNS = 5
SETTINGS = ("--steps=40", "--hidden=384")


def shares(method: str, folder: Path) -> tuple[float, float]:
    """Record a run with four workers; return its shares of communication and of turn waiting."""
    done = run_example("mpi_easgd.py", METHODS[method], folder, f"--method={method}", *SETTINGS)
    if done.returncode:
        raise RuntimeError(done.stderr)
    trace = tl.open(folder)
    times = phases.run(trace).times.filter(pl.col("step") >= 0)
    own = pl.col("category").cast(pl.String).is_in([*USEFUL_KINDS, "data"])
    total = int(times["ns"].sum())
    turns = trace.spans.filter(pl.col("op") == "turn_wait").select(
        (pl.col("end_ns") - pl.col("start_ns")).sum()
    )
    communication = int(times.filter(~own)["ns"].sum()) / total
    return communication, int(turns.collect().item()) / total


def measure(runs: int) -> dict[str, list[tuple[float, float]]]:
    """Run every method so many times, in turns."""
    found: dict[str, list[tuple[float, float]]] = {method: [] for method in METHODS}
    for number in range(runs):
        for method, shares_of_runs in found.items():
            with tempfile.TemporaryDirectory() as folder:
                shares_of_runs.append(shares(method, Path(folder) / "trace"))
            sys.stderr.write(f"run {number + 1} {method}: {shares_of_runs[-1][0]:.1%}\n")
    return found


def main() -> int:
    """Print the table; return 1 if the original is not as the paper says."""
    found = measure(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
    medians = {
        method: tuple(statistics.median(column) for column in zip(*runs, strict=True))
        for method, runs in found.items()
    }
    write = sys.stdout.write
    write(f"{'method':10} {'communication':>14} {'of it turn wait':>16} {'runs':>22}\n")
    for method, (share, turn) in medians.items():
        each = [run[0] for run in found[method]]
        write(f"{method:10} {share:14.1%} {turn:16.1%} {min(each):12.1%} to {max(each):.1%}\n")
    share, turn = medians["original"]
    return int(share < max(row[0] for row in medians.values()) or turn < share / 2)


if __name__ == "__main__":
    sys.exit(main())

"""How much of a worker's time the methods of the EASGD family spend on communication, in real runs.

Runs of the methods take turns, so that a busy machine slows all alike. Printed are medians over the
runs: the communication share (all of the steps' time that is neither computing nor loading data), and
what it consists of, waiting for the turn and the rest (transfers, and waiting for them). It fails if
the original is not the one that communicates most, if most of that is not waiting for the turn, or if
Sync 1, 2 and 3 do not end with the same centre (You, Buluc, Demmel, SC 2017: 87 % for the original,
14 % for Sync 3).

Run: make bench NAME=easgd [PUBLISH=1] [ARGS="--runs 7"]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from support.launch.examples import run_example

import tracelens as tl
from tracelens.accounting import phases
from tracelens.schema.vocabulary import USEFUL_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

SCRIPT: Final = "tests/benchmarks/easgd.py"
PAGE: Final = "easgd.md"
RANKS: Final = {"original": 5, "async": 5, "hogwild": 5, "sync1": 5, "sync2": 4, "sync3": 4}
SYNCHRONOUS: Final = ("sync1", "sync2", "sync3")
SAME: Final = 1e-4


@dataclass(frozen=True)
class Run:
    """A run's shares of its workers' steps, and the centre that it ended with."""

    communication: float
    turn: float
    centre: NDArray[np.float32]

    @property
    def rest(self) -> float:
        """Share of communication that is not waiting for the turn."""
        return self.communication - self.turn


def run(method: str, settings: Sequence[str], folder: Path) -> Run:
    """Record a run with four workers."""
    saved = folder / "centre.npy"
    arguments = (f"--method={method}", f"--save={saved}", *settings)
    done = run_example("mpi_easgd.py", RANKS[method], folder / "trace", *arguments)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return Run(*shares(folder / "trace"), np.load(saved))


def shares(folder: Path) -> tuple[float, float]:
    """Return what communication, and what waiting for the turn, is of the workers' steps."""
    trace = tl.open(folder)
    times = phases.run(trace).times.filter(pl.col("step") >= 0)
    is_own = pl.col("category").cast(pl.String).is_in([*USEFUL_KINDS, "data"])
    total = int(times["ns"].sum())
    turns = trace.spans.filter(pl.col("op") == "turn_wait").select(
        (pl.col("end_ns") - pl.col("start_ns")).sum()
    )
    return int(times.filter(~is_own)["ns"].sum()) / total, int(turns.collect().item()) / total


def measure(methods: Sequence[str], count: int, settings: Sequence[str]) -> dict[str, list[Run]]:
    """Run every method so many times, in turns."""
    runs_by_method: dict[str, list[Run]] = {method: [] for method in methods}
    for number in range(count):
        for method, runs in runs_by_method.items():
            with tempfile.TemporaryDirectory() as folder:
                runs.append(run(method, settings, Path(folder)))
            sys.stderr.write(f"run {number + 1} {method}: {runs[-1].communication:.1%}\n")
    return runs_by_method


def medians(found: dict[str, list[Run]]) -> dict[str, tuple[float, float, float]]:
    """Return each method's communication, turn waiting and other communication."""
    return {
        method: (
            statistics.median(run.communication for run in runs),
            statistics.median(run.turn for run in runs),
            statistics.median(run.rest for run in runs),
        )
        for method, runs in found.items()
    }


def rows(found: dict[str, list[Run]]) -> Iterable[list[str]]:
    """Write each method's medians as a row."""
    for method, (share, turn, rest_share) in medians(found).items():
        each = [run.communication for run in found[method]]
        spread = f"{min(each):.1%} to {max(each):.1%}"
        yield [method, f"{share:.1%}", f"{turn:.1%}", f"{rest_share:.1%}", spread]


def apart(found: dict[str, list[Run]]) -> float:
    """Return by how much the centres of the synchronous methods differ at most, in all runs."""
    centres = np.stack([run.centre for method in SYNCHRONOUS for run in found.get(method, ())])
    return float((centres.max(axis=0) - centres.min(axis=0)).max())


def failures(runs_by_method: dict[str, list[Run]]) -> list[str]:
    """Say what is not as in the paper."""
    middle = medians(runs_by_method)
    share, turn, rest_share = middle["original"]
    wrong = []
    if share < max(row[0] for row in middle.values()):
        wrong.append("the original does not have the largest communication share")
    if turn < rest_share:
        wrong.append("most of the original's communication is not waiting for the turn")
    if apart(runs_by_method) > SAME:
        wrong.append(f"centres of the synchronous methods differ by {apart(runs_by_method):.1e}")
    return wrong


def report(runs_by_method: dict[str, list[Run]], settings: Sequence[str]) -> str:
    """Write what was measured, as a table with what it was measured on."""
    count = len(runs_by_method["original"])
    head = ("method", "communication", "waiting for the turn", "other", "least to most")
    title = f"Share of the workers' steps, medians of {count} runs"
    summary = (
        f"4 workers with `{' '.join(settings)}` on {os.cpu_count()} processors. The final common "
        "weights of sync1, sync2 and sync3 in these runs differ by "
        f"{apart(runs_by_method):.1e} at most; the largest weight is "
        f"{float(np.abs(runs_by_method['sync1'][0].centre).max()):.2f}."
    )
    return f"{table(title, head, rows(runs_by_method))}\n\n{summary}"


def main() -> int:
    """Print the table, and maybe publish it; return 1 if it is not as the paper says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--methods", nargs="+", choices=RANKS, default=[*RANKS])
    parser.add_argument("--steps", type=int, default=40, help="of each run")
    parser.add_argument("--hidden", type=int, default=384, help="width of the network")
    parser.add_argument("--publish", action="store_true", help=f"write into {PAGE}")
    arguments = parse_quick(parser, runs=1, steps=4, hidden=16, methods=["original", "sync1"])
    settings = (f"--steps={arguments.steps}", f"--hidden={arguments.hidden}")
    runs_by_method = measure(arguments.methods, arguments.runs, settings)
    text = report(runs_by_method, settings)
    sys.stdout.write(f"{text}\n")
    wrong = failures(runs_by_method)
    if arguments.publish and not wrong:
        publish(PAGE, SCRIPT, text)
    sys.stderr.writelines(f"{sentence}\n" for sentence in wrong)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

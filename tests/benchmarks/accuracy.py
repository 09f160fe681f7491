"""Measure how right the verdicts are, on labelled runs of every kind, beside the rules of other tools.

Run: make bench NAME=accuracy [PUBLISH=1] [ARGS="--part kinds --seeds tuning"]
A full run of all parts takes an hour of two idle cores; `--kept FILE` lets it go on
where it was stopped (`--minutes`), and tables say how many runs they are of. With --publish it writes
docs/accuracy.json and the tables of docs/accuracy.md; those are made with the published seeds only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # runs, not threads, fill the cores

from benchmarks.labelled import clockwork, endtoend, tables
from benchmarks.labelled.kept import Performer
from benchmarks.labelled.markdown import tables_of, with_tables
from benchmarks.labelled.setting import FIRST_SEED, RANKS
from benchmarks.quick import parse_quick

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMAT: Final = "tracelens.accuracy/1"
PARTS: Final = ("healthy", "clocks", "kinds")
DOCS: Final = Path(__file__).parents[2] / "docs"
# By size: healthy tables a noise, and tables a slowdown and family.
TABLES: Final = {8: (400, 100), 64: (200, 60), 512: (40, 20)}
QUICK_TABLES: Final = {8: (2, 1)}
# Of each kind, by size, in each noise: one of 512 ranks takes as long as ten of 8.
RUNS: Final = {8: 20, 64: 20, 512: 4}
CLOCK_RUNS: Final = 5


def measure(
    sections: Sequence[str],
    seeds: str,
    *,
    quick: bool,
    performer: Performer,
    ranks: Sequence[int] = RANKS,
    runs: Mapping[int, int] = RUNS,
    only: str = "",
) -> dict[str, Any]:
    """Measure some parts and return the results as plain data."""
    first_seed = FIRST_SEED[seeds]
    out: dict[str, Any] = {"format": FORMAT, "seeds": seeds, "quick": quick}
    if "healthy" in sections:
        sizes = QUICK_TABLES if quick else {size: TABLES[size] for size in ranks}
        judged = list(performer.each(tables.perform, tables.tasks(sizes, seeds)))
        out |= {"healthy": tables.healthy(judged), "recall": tables.recall(judged)}
    if "clocks" in sections:
        size = (8, 200) if quick else (clockwork.HOSTS, clockwork.STEPS)
        situations = [
            (index, first_seed + run, *size)
            for index in range(len(clockwork.SITUATIONS))
            for run in range(1 if quick else CLOCK_RUNS)
        ]
        out["clocks"] = clockwork.gather_rows(list(performer.each(clockwork.perform, situations)))
    if "kinds" in sections:
        counts = {ranks[0]: 1} if quick else {size: runs[size] for size in ranks}
        todo = endtoend.tasks(counts, seeds, only, quick=quick)
        out["kinds"] = endtoend.gather_rows(performer.each(endtoend.perform, todo))
    return out


def publish(results: dict[str, Any]) -> None:
    """Write the results beside the page about them, and its tables."""
    results_path, page = DOCS / "accuracy.json", DOCS / "accuracy.md"
    known = json.loads(results_path.read_text()) if results_path.exists() else {}
    merged = known | results
    results_path.write_text(json.dumps(merged, indent=1, sort_keys=True) + "\n")
    page.write_text(with_tables(page.read_text(), merged))


def main() -> None:
    """Measure, print the tables, and publish them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this (repeatable)")
    parser.add_argument("--ranks", type=int, action="append", choices=RANKS, help="only this size")
    parser.add_argument("--kind", default="", help="only kinds of run whose names hold this")
    parser.add_argument("--runs", type=int, help="runs a kind, size and noise")
    parser.add_argument("--seeds", choices=tuple(FIRST_SEED), default="published")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kept", type=Path, help="keep outcomes there, and go on from them")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so many")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--publish", action="store_true", help="write docs/accuracy.*")
    options = parse_quick(parser, workers=1, kind="healthy")
    partial = options.kind or options.ranks
    if options.publish and (partial or options.seeds != "published"):
        parser.error("only full runs with the published seeds are published")
    results = measure(
        options.part or PARTS,
        options.seeds,
        quick=options.quick,
        performer=Performer(options.workers, options.kept, time.monotonic() + 60 * options.minutes),
        ranks=options.ranks or RANKS,
        runs=dict.fromkeys(RANKS, options.runs) if options.runs else RUNS,
        only=options.kind,
    )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    if options.publish:
        publish(results)
    sys.stdout.write(tables_of(results) + "\n")


if __name__ == "__main__":
    main()

"""Measure false alarms and recall of the straggler statistics (docs/analyses/stragglers.md).

Run: make bench NAME=stragglers [ARGS="--runs N"]
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.quick import parse_quick
from support.runs.matrices import PHASES, healthy, own_time

from tracelens.accounting.compute_time import WARM_UP
from tracelens.analyses.stragglers import detection

if TYPE_CHECKING:
    from tracelens.analyses.stragglers.detection import Episode

PLANTED = (0.05, 0.1, 0.3)  # of a step, in 40 % of the steps, in the last phase


def measure(ranks: int, steps: int, runs: int, *, spiky: bool) -> tuple[float, list[float]]:
    """Return the share of healthy runs that accuse somebody, and of late ranks that are found."""
    runs = runs if ranks < 64 else max(runs // 3, 1)
    alarms, hits = 0, np.zeros(len(PLANTED))
    for seed in range(runs):
        alarms += bool(_find_ranks(seed, ranks, steps, None, spiky=spiky))
        for index, extra in enumerate(PLANTED):
            hits[index] += _hit(seed, ranks, steps, extra, spiky=spiky)
    return alarms / runs, [float(share) for share in hits / runs]


def _hit(seed: int, ranks: int, steps: int, extra: float, *, spiky: bool) -> bool:
    draw = np.random.default_rng([7, seed])
    length, rank = int(0.4 * steps), int(draw.integers(ranks))
    first = int(draw.integers(WARM_UP, steps - length + 1))
    found = _find_ranks(seed, ranks, steps, (first, length, rank, extra), spiky=spiky)
    return any(late.rank_columns == (rank,) and late.phase == "backprop" for late in found)


def _find_ranks(
    seed: int,
    ranks: int,
    steps: int,
    planted: tuple[int, int, int, float] | None,
    *,
    spiky: bool,
) -> list[Episode]:
    matrices = healthy(seed, ranks, steps, spiky=spiky)
    if planted:
        first, length, rank, extra = planted
        matrices[len(PHASES) - 1][first : first + length, rank] += extra
    return detection.find_episodes(own_time(matrices))


def main() -> None:
    """Print one line for each size and noise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="of each size and noise")
    parser.add_argument("--ranks", type=int, nargs="+", default=(2, 3, 4, 8, 64))
    options = parse_quick(parser, runs=1, ranks=(2, 3))
    planted = "".join(f"{extra:>8.0%}" for extra in PLANTED)
    sys.stdout.write(f"ranks steps noise   alarms{planted}\n")
    for ranks in options.ranks:
        for steps in (60, 100):
            for spiky in (False, True):
                alarms, recall = measure(ranks, steps, options.runs, spiky=spiky)
                noise = "spiky" if spiky else "smooth"
                shares = "".join(f"{share:8.2f}" for share in recall)
                sys.stdout.write(f"{ranks:5} {steps:5} {noise:6} {alarms:8.3f}{shares}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()

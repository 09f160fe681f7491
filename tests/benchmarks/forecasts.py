"""How far forecasts of `tracelens scaling` are from runs of that size, and how good the interval is.

Simulated runs of 2 to 32 workers are measured as recorded ones would be, a step on 64 and on 128 workers
is forecast, and runs of these sizes are simulated, too. Systems: allreduce by three algorithms, one of
them also beside backprop, and parameter servers; weak and strong scaling; little and much noise.

Run: make bench NAME=forecasts [PUBLISH=1] [ARGS="--seeds 3"]
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.published import publish, table
from benchmarks.quick import parse_quick

from tracelens.load import prepare
from tracelens.replay.whatif import Replay
from tracelens.scaling import Point, curves
from tracelens.simulator import synthetic
from tracelens.simulator.scenario_file import make_scenario
from tracelens.verdicts.report import analyze

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.model.trace import Trace
    from tracelens.scaling.curves import Kind

SCRIPT: Final = "tests/benchmarks/forecasts.py"
PAGE: Final = "scaling.md"
STEPS: Final = 30
NOISE: Final = (0.02, 0.1)
BUCKETS: Final = [8_000_000] * 4
COMPUTE_MS: Final = {"data_ms": 1.0, "forward_ms": 8.0, "backprop_ms": 16.0}
SYSTEMS: Final[dict[str, dict[str, Any]]] = {
    "ring": {"allreduce": {"overlap": False, "buckets": BUCKETS}},
    "ring beside backprop": {"allreduce": {"overlap": True, "buckets": BUCKETS}},
    "tree": {"allreduce": {"algorithm": "tree", "overlap": False, "buckets": BUCKETS}},
    "Rabenseifner": {
        "allreduce": {"algorithm": "rabenseifner", "overlap": False, "buckets": BUCKETS}
    },
    "2 servers": {"servers": {"shards": 2, "variables": [4_000_000] * 4}},
}


class Outcome(NamedTuple):
    """A forecast less the run's step, relative; whether the interval holds that; its width, relative."""

    error: float
    held: bool
    width: float


class Sizes(NamedTuple):
    """How many workers the runs have that are known, and those that are forecast."""

    known: tuple[int, ...] = (2, 4, 8, 16, 32)
    asked: tuple[int, ...] = (64, 128)


def simulated(system: str, noise: float, seed: int, workers: int, speedup: float) -> Trace:
    """Simulate a run of a size, whose workers compute so many times faster."""
    planned = make_scenario(
        {
            "run": {"workers": workers, "steps": STEPS, "seed": 1000 * seed + workers},
            "compute": {name: ms / speedup for name, ms in COMPUTE_MS.items()} | {"noise": noise},
            "network": {"gbytes_per_s": 2.0, "latency_us": 30},
            **SYSTEMS[system],
        }
    )
    return prepare(synthetic.generate(planned))


def outcomes(
    system: str, kind: Kind, noise: float, seed: int, sizes: Sizes
) -> Iterator[tuple[int, Outcome]]:
    """Yield what became of the forecast for each size that was asked."""

    def simulate(workers: int) -> Trace:
        speedup = workers / sizes.known[0] if kind == "strong" else 1.0
        return simulated(system, noise, seed, workers, speedup)

    def run(workers: int) -> Point:
        trace = simulate(workers)
        return Point.from_trace(trace, analyze(trace), f"{workers} workers")

    def replay(point: Point) -> Replay:
        return Replay.from_trace(simulate(point.worker_count))

    points = [*map(run, sizes.known)]
    (curve,) = curves(points, kind=kind, at=sizes.asked, replay=replay).curves
    for forecast in curve.forecasts:
        true = run(forecast.rank_count).step_ns
        low, high = forecast.interval_ns
        yield (
            forecast.rank_count,
            Outcome(
                forecast.step_ns / true - 1, low <= true <= high, (high - low) / forecast.step_ns
            ),
        )


def main() -> int:
    """Measure, print, and write the page if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--known", type=int, nargs="+", default=Sizes().known, help="workers")
    parser.add_argument("--asked", type=int, nargs="+", default=Sizes().asked, help="workers")
    parser.add_argument("--only", default="", help="only systems whose names hold this")
    parser.add_argument("--publish", action="store_true", help=f"write docs/{PAGE}")
    options = parse_quick(parser, seeds=1, only="tree", known=(2, 4, 6, 8), asked=(16,))
    sizes = Sizes(tuple(options.known), tuple(options.asked))
    rows, all_outcomes = [], []
    kinds: tuple[Kind, ...] = ("weak", "strong")
    systems = [system for system in SYSTEMS if options.only in system]
    for system, kind in product(systems, kinds):
        outcomes_by_workers: dict[int, list[Outcome]] = {workers: [] for workers in sizes.asked}
        for noise, seed in product(NOISE, range(options.seeds)):
            for workers, outcome in outcomes(system, kind, noise, seed, sizes):
                outcomes_by_workers[workers].append(outcome)
        for workers, several in outcomes_by_workers.items():
            all_outcomes += several
            rows.append([f"{system}, {kind}", str(workers), *_sum_up(several)])
            sys.stdout.write(f"{rows[-1]}\n")
    rows.append(["all", "", *_sum_up(all_outcomes)])
    text = table(
        f"Forecasts from {sizes.known[0]} to {sizes.known[-1]} workers",
        ("system", "workers", "median error", "largest", "interval holds the run", "width"),
        rows,
    )
    levels = " and ".join(f"{one:.0%}" for one in NOISE)
    text += f"\n\n{STEPS} steps a run, noise of {levels}, {options.seeds} seeds each."
    sys.stdout.write(text + "\n")
    if options.publish:
        publish(PAGE, SCRIPT, text)
    return 0


def _sum_up(several: list[Outcome]) -> list[str]:
    errors = [outcome.error for outcome in several]
    return [
        f"{median(map(abs, errors)):.1%}",
        f"{max(errors, key=abs):+.1%}",
        f"{sum(outcome.held for outcome in several)} of {len(several)}",
        f"{median(outcome.width for outcome in several):.0%}",
    ]


if __name__ == "__main__":
    sys.exit(main())

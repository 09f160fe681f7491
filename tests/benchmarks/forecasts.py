"""How far forecasts of `tracelens scaling` are from runs of that size, and how good the interval is.

Simulated runs of 2 to 32 workers are measured as recorded ones would be, a step on 64 and on 128 workers
is forecast, and runs of these sizes are simulated, too. Systems: allreduce by three algorithms, one of
them also beside backprop, and parameter servers; weak and strong scaling; little and much noise.

Run: make bench-forecasts [PUBLISH=1] [ARGS="--seeds 3"]
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.published import publish, table

from tracelens.analyses import analyze
from tracelens.load import prepare
from tracelens.scaling import Point, curves
from tracelens.simulator import synthetic
from tracelens.simulator.scenario_file import scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.scaling.curves import Kind

SCRIPT: Final = "tests/benchmarks/forecasts.py"
PAGE: Final = "scaling.md"
KNOWN: Final = (2, 4, 8, 16, 32)
ASKED: Final = (64, 128)
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


def measured(system: str, kind: Kind, noise: float, seed: int, workers: int) -> Point:
    """Simulate a run of a size, and measure it."""
    shared = workers / KNOWN[0] if kind == "strong" else 1.0
    made = scenario(
        {
            "run": {"workers": workers, "steps": STEPS, "seed": 1000 * seed + workers},
            "compute": {name: ms / shared for name, ms in COMPUTE_MS.items()} | {"noise": noise},
            "network": {"gbytes_per_s": 2.0, "latency_us": 30},
            **SYSTEMS[system],
        }
    )
    trace = prepare(synthetic.generate(made))
    return Point.of_trace(trace, analyze(trace), f"{workers} workers")


def outcomes(system: str, kind: Kind, noise: float, seed: int) -> Iterator[tuple[int, Outcome]]:
    """Yield what became of the forecast for each size that was asked."""
    runs = [measured(system, kind, noise, seed, workers) for workers in KNOWN]
    (curve,) = curves(runs, kind=kind, at=ASKED).curves
    for one in curve.forecasts:
        true = measured(system, kind, noise, seed, one.ranks).step_ns
        low, high = one.interval
        yield (
            one.ranks,
            Outcome(one.step_ns / true - 1, low <= true <= high, (high - low) / one.step_ns),
        )


def main() -> int:
    """Measure, print, and write the page if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--publish", action="store_true", help=f"write docs/{PAGE}")
    given = parser.parse_args()
    rows, every = [], []
    kinds: tuple[Kind, ...] = ("weak", "strong")
    for system, kind in product(SYSTEMS, kinds):
        found: dict[int, list[Outcome]] = {workers: [] for workers in ASKED}
        for noise, seed in product(NOISE, range(given.seeds)):
            for workers, outcome in outcomes(system, kind, noise, seed):
                found[workers].append(outcome)
        for workers, several in found.items():
            every += several
            rows.append([f"{system}, {kind}", str(workers), *_summed(several)])
        sys.stdout.write(f"{rows[-2]}\n{rows[-1]}\n")
    rows.append(["all", "", *_summed(every)])
    text = table(
        "Forecasts from 2 to 32 workers",
        ("system", "workers", "median error", "largest", "interval holds the run", "width"),
        rows,
    )
    levels = " and ".join(f"{one:.0%}" for one in NOISE)
    text += f"\n\n{STEPS} steps a run, noise of {levels}, {given.seeds} seeds each."
    sys.stdout.write(text + "\n")
    if given.publish:
        publish(PAGE, SCRIPT, text)
    return 0


def _summed(several: list[Outcome]) -> list[str]:
    errors = [one.error for one in several]
    return [
        f"{median(map(abs, errors)):.1%}",
        f"{max(errors, key=abs):+.1%}",
        f"{sum(one.held for one in several)} of {len(several)}",
        f"{median(one.width for one in several):.0%}",
    ]


if __name__ == "__main__":
    sys.exit(main())

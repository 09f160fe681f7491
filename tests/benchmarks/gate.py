"""How often `tracelens compare --fail-if` fails equal runs, and misses slower ones.

Simulated: runs of 4 ranks whose speed differs from run to run by a known standard deviation, on top of
the noise between steps; each new run is compared with 1, 3 and 5 baselines, equal and with every phase
5 % longer. Real: trainings over MPI of 2 ranks that record, equal ones and slower ones in turns; each is
compared with the three equal ones recorded last before it, as a CI job would.

Run: make bench NAME=gate [PUBLISH=1] [KEEP=DIR] [ARGS="--seconds 200"]
Real runs are added to those in DIR.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from benchmarks.verdicts import PROGRAMS, record
from support.launch.mpi import launch

from tracelens.accounting import phases
from tracelens.comparison import RunMetrics, compare
from tracelens.comparison.gates import judge, parse
from tracelens.comparison.series import STEP_TIME, measure_metrics
from tracelens.load import open as open_trace
from tracelens.load import prepare
from tracelens.lod import opening, residuals
from tracelens.lod.step_times import CategoryTimes
from tracelens.simulator.synthetic import Scenario, generate

if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPT: Final = "tests/benchmarks/gate.py"
GATE: Final = "step_time>+3%"
REAL_GATES: Final = ("step_time>+3%", "step_time>+10%")
CASES: Final = 200
SPREADS: Final = (0.003, 0.005, 0.01)  # of a run's speed: standard deviations
BASELINES: Final = (1, 3, 5)
SLOWER: Final = 1.05
RANKS: Final = 2
STEPS: Final = 80
FAULT: Final = {"equal": "none", "slower": "fifth"}  # of plain_mpi.py: one rank's work, 20 % longer
YIELD: Final = (
    "MPIR_CVAR_POLLS_BEFORE_YIELD=1"  # busy waits of MPICH give way to whatever else runs
)
ORDER: Final = ("equal", "equal", "slower")


def simulated(seed: int, factor: float) -> RunMetrics:
    """Simulate a run whose work takes `factor` times as long, and measure it."""
    work = Scenario()
    scenario = replace(
        work,
        steps=100,
        seed=seed,
        noise=0.04,
        common=0.02,
        spread=0.0,
        correlation=0.3,
        data_ms=work.data_ms * factor,
        forward_ms=work.forward_ms * factor,
        backprop_ms=work.backprop_ms * factor,
        transfer_ms=work.transfer_ms * factor,
        update_ms=work.update_ms * factor,
    )
    trace = prepare(generate(scenario))
    parts = phases.run(trace)
    times = CategoryTimes.from_partition(
        parts.spent_ns, parts.pieces.step_windows, trace.workers["rank"].to_list()
    )
    windows = residuals.find_step_windows(trace.steps)
    lengths = (windows["end_ns"] - windows["start_ns"]).to_numpy().astype(float)
    return RunMetrics(
        "simulated", scenario.ranks, 0, len(lengths), measure_metrics(lengths, times), ()
    )


def fails(gate: str, baselines: Sequence[RunMetrics], new: RunMetrics) -> bool:
    """Return whether a gate fails a run."""
    return judge([parse(gate)], compare(baselines, new))[0].has_failed


def simulate(cases: int) -> str:
    """Return a table: how often equal and slower runs fail the gate."""
    rows = []
    for spread in SPREADS:
        equal, slower = (dict.fromkeys(BASELINES, 0) for _ in range(2))
        for case in range(cases):
            random = np.random.default_rng([case, round(spread * 1e4)])
            factors = np.exp(spread * random.standard_normal(max(BASELINES) + 2))
            factors[-1] *= SLOWER
            seeds = random.integers(1 << 30, size=len(factors))
            *runs, same, slow = [simulated(int(s), f) for s, f in zip(seeds, factors, strict=True)]
            for count in BASELINES:
                equal[count] += fails(GATE, runs[:count], same)
                slower[count] += fails(GATE, runs[:count], slow)
        rows += [
            [f"{spread:.1%}", str(n), f"{equal[n]} of {cases}", f"{slower[n]} of {cases}"]
            for n in BASELINES
        ]
        sys.stderr.write("\n".join(map(str, rows[-len(BASELINES) :])) + "\n")
    head = [
        "runs differ by (SD)",
        "baselines",
        "equal runs failed",
        f"{SLOWER - 1:.0%} slower caught",
    ]
    return table(f"Simulated runs, `{GATE}`", head, rows)


def record_some(folder: Path, seconds: float) -> None:
    """Add real runs to a folder for so long."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        number = len(list(folder.glob("run-*")))
        kind = ORDER[number % len(ORDER)]
        program = launch(PROGRAMS / "plain_mpi.py", RANKS)
        command = ("env", YIELD, *program, FAULT[kind], "phases", str(STEPS))
        record(folder / f"run-{number:03}-{kind}", command)


def measure(folder: Path) -> RunMetrics:
    """Measure a recorded run as `tracelens compare` does."""
    return RunMetrics.from_run(
        opening.open_indexed(folder) or opening.explain_trace(open_trace(folder))
    )


def judge_real(folder: Path) -> str:
    """Return a table: how often real runs fail, beside the three equal ones before them."""
    runs = [(path.name.rpartition("-")[2], measure(path)) for path in sorted(folder.glob("run-*"))]
    equal = [run for kind, run in runs if kind == "equal"]
    medians = np.array([np.median(run.values_by_metric[STEP_TIME]) for run in equal])
    spread = float(np.std(medians, ddof=1) / medians.mean())
    rows = []
    for gate in REAL_GATES:
        failed: dict[str, list[bool]] = {"equal": [], "slower": []}
        last_runs: list[RunMetrics] = []
        for kind, run in runs:
            if len(last_runs) == 3:
                failed[kind].append(fails(gate, last_runs, run))
            if kind == "equal":
                last_runs = [*last_runs, run][-3:]
        shown = [f"{sum(found)} of {len(found)}" for found in failed.values()]
        rows.append([f"`{gate}`", f"{spread:.1%}", *shown])
    head = ["gate", "equal runs differ by (SD)", "equal runs failed", "20 % slower caught"]
    return table(f"Real runs: MPI, {RANKS} ranks on 2 cores, 3 baselines", head, rows)


def main() -> None:
    """Simulate, record, judge, print, and publish if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--cases", type=int, default=CASES, help="simulated, 0 for none")
    parser.add_argument("--keep", type=Path, help="folder of the real runs")
    parser.add_argument("--seconds", type=float, default=240.0, help="to record for")
    arguments = parse_quick(parser, cases=1, seconds=0.0)
    sections = [simulate(arguments.cases)] if arguments.cases else []
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        record_some(folder, arguments.seconds)
        if list(folder.glob("run-*")):
            sections.append(judge_real(folder))
    sys.stdout.write("\n\n".join(sections) + "\n")
    if arguments.publish:
        publish("compare.md", SCRIPT, "\n\n".join(sections))


if __name__ == "__main__":
    main()

"""Whether a watch raises false alarms, how soon it tells a late rank, and what it costs.

Healthy jobs run with time that passes faster and drive the stall detector of the watch. Their stacks
during a compilation are given, where a watch asks py-spy. Planted lives have a known use of each
nanosecond. Ranks that come late are simulated, with noise in each step. The cost is the CPU time of
one look at a real training, and at ranks that record steps without work.

Run: make bench NAME=watching [PUBLISH=1] [ARGS="--only cost"]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl
from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from support.launch.patience import wait_until
from support.launch.recording import clean_environment
from support.watch.healthy import COMPILATION, HealthyJob
from support.watch.late_ranks import (
    STEP_NS,
    STEPS_PER_LOOK,
    LateRanksJob,
    make_straggler_watch,
    watch_steps,
)
from support.watch.lives import plant_life
from support.watch.training import training

from tracelens.accounting.life.ledger import measure_life
from tracelens.schema.detail import REQUEST_FILE
from tracelens.watch.pauses import START
from tracelens.watch.watcher import LOOK_EVERY_S_IF_GOING_ON, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

SCRIPT: Final = "tests/benchmarks/watching.py"
PAGE: Final = "watch.md"
RANKS_PROGRAM: Final = (
    Path(__file__).parents[1] / "support" / "launch" / "programs" / "forked_ranks.py"
)
HOURS_OF_JOB: Final = 2
RANKS: Final = (2, 3, 8)
LATE_BY: Final = {0.2: 30, 0.08: 100}  # of a step: goal, steps
NOISES: Final = (0.02, 0.05)  # of a step: standard deviation
NOISES_OF_HEALTHY: Final = (0.02, 0.05, 0.1)
STEPS_OF_HEALTHY: Final = 1000
MAX_STEPS_LATE: Final = 500
RECORDING_RANKS: Final = (8, 64)
STEPS_PER_S: Final = 10
MAX_S_OF_RECORDING: Final = 3600
WARM_UP_S: Final = 10
LOOK_EVERY_S: Final = 1.0
STATS_PER_BATCH: Final = 10_000
GOAL_OF_COST: Final = 0.001  # of a step, and so of each second


_MET: Final = {True: "yes", False: "no", None: ""}


class Row(NamedTuple):
    """A figure of the table, and whether its goal is met; null without a goal."""

    figure: str
    cases: str
    measured: str
    goal: str
    is_met: bool | None


def measure_false_alarms(hours: int, pool: Executor) -> Iterator[Row]:
    """Run healthy jobs of two hours each, and count the alarms."""
    alarms = 0
    pauses: Counter[str] = Counter()
    seeds = range(max(hours // HOURS_OF_JOB, 1))
    for alarm_count, pause_counts in pool.map(_run_healthy_job, seeds):
        alarms += alarm_count
        pauses.update(pause_counts)
    cases = (
        f"{len(seeds) * HOURS_OF_JOB} hours in jobs of {HOURS_OF_JOB}: {pauses['checkpoint']} "
        f"checkpoints, {pauses['evaluation']} evaluations, {pauses[COMPILATION]} compilations, "
        f"{pauses[START]} pauses at the start"
    )
    yield Row("false alarms", cases, str(alarms), "0 in 20 hours", alarms == 0)


def _run_healthy_job(seed: int) -> tuple[int, dict[str, int]]:
    job = HealthyJob(seed)
    job.run(HOURS_OF_JOB)
    return len(job.stalls), job.pause_counts


def measure_lives(count: int) -> Iterator[Row]:
    """Account for planted lives, and compare with the truth."""
    errors: list[float] = []
    attempts = exact = 0
    for seed in range(count):
        planted = plant_life(seed)
        life = measure_life(planted.trace())
        assert life is not None
        measured_ns = dict(life.uses.group_by("use").agg(pl.col("ns").sum()).iter_rows())
        exact += sum(measured_ns.values()) == sum(planted.truth.values()) == life.wall_ns
        attempts += life.attempts.height
        errors.append(
            max(
                abs(measured_ns.get(use, 0) - planted.truth[use])
                for use in {*measured_ns, *planted.truth}
            )
            / life.wall_ns
        )
    cases = f"{count} planted lives with {attempts} attempts"
    share = f"{_percent(max(errors), 2)} of the wall time"
    yield Row("largest error of a use", cases, share, "1 %", max(errors) <= 0.01)
    text = f"{exact} of {count}"
    yield Row("uses add up exactly", cases, text, "all", exact == count)


def measure_late_ranks(seeds: int, pool: Executor) -> Iterator[Row]:
    """Let one rank be late from some step on, and count the steps until it is told."""
    for lag, goal in LATE_BY.items():
        for noise in NOISES:
            for ranks in RANKS:
                count_steps = partial(_count_steps_until_told, ranks=ranks, lag=lag, noise=noise)
                steps = list(pool.map(count_steps, range(seeds)))
                told = [number for number in steps if number is not None]
                median, slow = (
                    statistics.quantiles(told, n=10, method="inclusive")[index] for index in (4, 8)
                )
                is_met = len(told) == seeds and slow <= goal
                yield Row(
                    f"steps until a rank that is late by {_percent(lag)} of a step is told",
                    f"{seeds} runs of {ranks} ranks, noise {_percent(noise)}",
                    f"median {median:.0f}, 90 % within {slow:.0f}"
                    + (f", {seeds - len(told)} not told" if len(told) < seeds else ""),
                    str(goal),
                    is_met,
                )


def _count_steps_until_told(seed: int, ranks: int, lag: float, noise: float) -> int | None:
    """Return after how many late steps the rank is told; None if never, or another one is."""
    draw = random.Random(f"{seed} {ranks} {lag} {noise}")
    onset = draw.randrange(2, STEPS_OF_HEALTHY // STEPS_PER_LOOK) * STEPS_PER_LOOK
    late_rank = draw.randrange(ranks)
    job, stragglers = LateRanksJob(ranks, seed, int(noise * STEP_NS)), make_straggler_watch()
    watch_steps(job, stragglers, onset)
    for _ in range(0, MAX_STEPS_LATE, STEPS_PER_LOOK):
        changes = watch_steps(
            job, stragglers, STEPS_PER_LOOK, straggler=late_rank, lag_ns=int(lag * STEP_NS)
        )
        for change in changes:
            if change.rank == late_rank and not change.is_over:
                return change.last_step - onset + 1
    return None


def measure_healthy_runs(runs: int, pool: Executor) -> Iterator[Row]:
    """Count healthy runs in which a rank is told as late."""
    alarms = sum(pool.map(_is_any_rank_told, range(runs)))
    noises = ", ".join(_percent(noise) for noise in NOISES_OF_HEALTHY)
    yield Row(
        "healthy runs in which a rank is told as late",
        f"{runs:,} runs of {STEPS_OF_HEALTHY:,} steps, 2, 3 or 8 ranks, noise {noises}",
        f"{alarms} ({_percent(alarms / runs, 2)})",
        "0.3 %",
        alarms <= 0.003 * runs,
    )


def _is_any_rank_told(seed: int) -> bool:
    noise = NOISES_OF_HEALTHY[seed // len(RANKS) % len(NOISES_OF_HEALTHY)]
    job = LateRanksJob(RANKS[seed % len(RANKS)], seed, int(noise * STEP_NS))
    return bool(watch_steps(job, make_straggler_watch(), STEPS_OF_HEALTHY))


def measure_cost(seconds: int) -> Iterator[Row]:
    """Measure the CPU time of looks at jobs that run, and what the training itself pays."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with training("none", folder / "ddp", ranks=3, fault_step=1_000_000):
            yield _measure_looks("3 ranks of DDP", folder / "ddp", 3, seconds, GOAL_OF_COST)
        for ranks in RECORDING_RANKS:
            trace = folder / f"{ranks} ranks"
            with _recording_ranks(trace, ranks):
                yield _measure_looks(f"{ranks} ranks that record", trace, ranks, seconds, None)
        yield _measure_request_look(folder / REQUEST_FILE)


def _measure_looks(job: str, trace: Path, ranks: int, seconds: int, max_share: float | None) -> Row:
    """Watch as `record --watch` does: each second the watcher looks, if it needs to.

    `max_share` is the goal, as a share of a core; None without one.
    """
    watcher = Watcher(trace)

    def has_begun() -> bool:
        watcher.look()
        status = watcher.status
        return status is not None and len(status.ranks) == ranks and (status.step or 0) > 10

    wait_until(has_begun)
    cpu_ms, full_looks_ms = [], []
    for second in range(WARM_UP_S + seconds):
        time.sleep(LOOK_EVERY_S)
        last_status, before_ns = watcher.status, time.process_time_ns()
        watcher.look_if_needed()
        if second >= WARM_UP_S:
            cpu_ms.append((time.process_time_ns() - before_ns) / 1e6)
            if watcher.status is not last_status:
                full_looks_ms.append(cpu_ms[-1])
    pace = 0.0 if watcher.status is None else watcher.status.steps_per_s or 0.0
    watcher.close()
    share = statistics.fmean(cpu_ms) / 1e3 / LOOK_EVERY_S
    return Row(
        f"CPU time of a watch of {job}",
        f"{seconds} s, {pace:.0f} steps/s",
        f"{len(full_looks_ms)} full looks, median {statistics.median(full_looks_ms):.1f} ms: "
        f"{_percent(share, 2)} of a core",
        "none" if max_share is None else _percent(max_share, 1),
        None if max_share is None else share <= max_share,
    )


@contextmanager
def _recording_ranks(trace: Path, ranks: int) -> Iterator[None]:
    """Let ranks record until the end of the context."""
    command: list[str | Path] = [sys.executable, RANKS_PROGRAM, trace]
    command += [str(ranks), str(STEPS_PER_S), str(MAX_S_OF_RECORDING)]
    with subprocess.Popen(
        command,
        env=clean_environment(OMP_NUM_THREADS="1"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield
        finally:
            process.kill()  # its ranks end with it


def _measure_request_look(file: Path) -> Row:
    """Measure what a recorder does once a second for a watch: it asks for a file that is missing."""
    batches_ns = []
    for _ in range(20):
        before_ns = time.process_time_ns()
        for _ in range(STATS_PER_BATCH):
            try:  # as the recorder does; `suppress` costs as much again
                os.stat(file)  # noqa: PTH116
            except OSError:
                continue
        batches_ns.append((time.process_time_ns() - before_ns) / STATS_PER_BATCH)
    share = statistics.median(batches_ns) / 1e9
    return Row(
        "CPU time in the training process",
        f"it looks for `{REQUEST_FILE}` once a second",
        f"least {min(batches_ns):,.0f} ns, median {statistics.median(batches_ns):,.0f} ns: "
        f"{_percent(share, 5)} of a core",
        "nothing beyond recording",
        share <= GOAL_OF_COST,
    )


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--hours", type=int, default=200, help="of healthy jobs")
    parser.add_argument("--lives", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=100, help="of each kind of late rank")
    parser.add_argument("--runs", type=int, default=1000, help="without a late rank")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=int, default=60, help="for which each job is watched")
    parser.add_argument("--publish", action="store_true", help=f"write the table into docs/{PAGE}")
    parser.add_argument("--only", choices=("alarms", "lives", "late", "healthy", "cost"))
    arguments = parse_quick(parser, hours=2, lives=2, seeds=2, runs=6, seconds=12)
    if arguments.seconds <= LOOK_EVERY_S_IF_GOING_ON:
        parser.error(f"--seconds: a full look is made every {LOOK_EVERY_S_IF_GOING_ON:g} s")
    if arguments.publish and arguments.only:
        parser.error("a part of the table is not published")
    is_shared = os.getloadavg()[0] > (os.cpu_count() or 1) / 2
    pool = ProcessPoolExecutor(arguments.workers)
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "alarms": lambda: measure_false_alarms(arguments.hours, pool),
        "lives": lambda: measure_lives(arguments.lives),
        "healthy": lambda: measure_healthy_runs(arguments.runs, pool),
        "late": lambda: measure_late_ranks(arguments.seeds, pool),
        "cost": lambda: measure_cost(arguments.seconds),
    }
    rows: list[Row] = []
    for name, measure in parts.items():
        if arguments.only in {None, name}:
            for row in measure():
                sys.stderr.write(f"{row.figure}: {row.cases}: {row.measured}\n")
                rows.append(row)
    text = describe(rows, is_shared=is_shared)
    sys.stdout.write(f"{text}\n")
    if arguments.publish:
        publish(PAGE, SCRIPT, text)


def describe(rows: list[Row], *, is_shared: bool) -> str:
    """Return the table of figures; `is_shared`: other work ran on this machine."""
    cells = [(row.figure, row.cases, row.measured, row.goal, _MET[row.is_met]) for row in rows]
    title = f"Figures of a watch, on {os.cpu_count()} cores{', shared' if is_shared else ''}"
    return table(title, ("figure", "cases", "measured", "goal", "met"), cells)


if __name__ == "__main__":
    main()

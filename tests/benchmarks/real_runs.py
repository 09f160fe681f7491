"""How often the verdict on real trainings is right: each planted fault recorded anew, several times.

Faults are planted in the example trainings by their switches, by stopping a rank from outside, by a
quota of a processor, by slow networks between pretend hosts and by shifted clocks. A verdict is right if
the first finding is of the planted kind, names the planted rank, shard or link, its phase where there is
one, and the planted steps but for five, or a block, at either end; a healthy run's if it reports no
fault. Cases take turns, so that what else the machine does hits all alike.

Run, as root for pretended networks: make bench NAME=real [PUBLISH=1] [ARGS="--runs 3 --case stopped"]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from support.launch.disturb import Disturber, stop_repeatedly, throttled
from support.samples import Sample, differences, manifest, record

import tracelens as tl
from tracelens.schema.vocabulary import COMMUNICATION_KINDS, OWN_KINDS

if TYPE_CHECKING:
    from support.launch.disturb import Burden

    from tracelens.model.trace import Trace

SCRIPT: Final = "tests/benchmarks/real_runs.py"
PAGE: Final = "accuracy.md"
SAMPLES: Final = {sample.name: sample for sample in manifest()}
HEALTHY_RUNS: Final = 2  # times as many
AFTER_S, FOR_S = 2.5, 4.0
LEAST_BLOCK, BLOCKS = 5, 64


@dataclass(frozen=True)
class Case:
    """A training, what is planted in it, and how the rank is burdened from outside, if it is."""

    name: str
    sample: Sample
    burden: Burden | None = None
    rank: int = 1

    @property
    def healthy(self) -> bool:
        """Whether nothing is planted."""
        return not self.sample.expect


def _sample_of(name: str, *more: str, **changes: Any) -> Sample:
    """An entry of the samples with further arguments."""
    sample = SAMPLES[name]
    return replace(sample, arguments=[*sample.arguments, *more], **changes)


_LATE: Final = {"kind": "straggler", "ranks": [1]}
_LOADER: Final = _LATE | {"phase": "data"}
_MPI: Final = Sample(
    "mpi", "ring allreduce", "mpiexec", 3, "mpi_allreduce.py", ["--algorithm=ring", "--hidden=256"]
)
_SHIFTED: Final[dict[str, Any]] = {
    "launcher": "pretend_hosts",
    "hosts": ["--rate=1gbit", "--shift=0,-3.5,0.2"],
}
_PAIR: Final[dict[str, Any]] = {
    "launcher": "pretend_hosts",
    "hosts": ["--rate=1gbit", "--shift=0,-3.5"],
}


def _mpi(*more: str, steps: int = 150, **changes: Any) -> Sample:
    return replace(_MPI, arguments=[*_MPI.arguments, f"--steps={steps}", *more], **changes)


def _slow(rank: int, phase: str, first: int, last: int) -> tuple[list[str], dict[str, Any]]:
    """Return the switches of a late rank, and what is to be found."""
    planted = [f"--slow-rank={rank}", f"--slow-phase={phase}", f"--slow-steps={first}:{last}"]
    truth = {"kind": "straggler", "ranks": [rank], "phase": phase, "steps": [first, last]}
    return [*planted, "--slow-ms=40"], truth


_FORWARD, _FORWARD_TRUTH = _slow(1, "forward", 60, 119)
_BACKPROP, _BACKPROP_TRUTH = _slow(1, "backprop", 60, 119)
_LONG: Final = ["--steps=500"]
_LARGE: Final = ["--steps=300", "--batch=2048"]  # else it does little but wait for messages
CASES: Final = (
    Case("DDP, healthy", _sample_of("ddp-healthy", "--steps=300")),
    Case("DDP, late in backprop", SAMPLES["ddp-slow-backprop"]),
    Case("DDP, slow loader", SAMPLES["ddp-slow-loader"]),
    Case("DDP, stopped", _sample_of("ddp-healthy", *_LONG, expect=_LATE), stop_repeatedly),
    Case("DDP, quota of a processor", _sample_of("ddp-healthy", *_LONG, expect=_LATE), throttled),
    Case(
        "DDP, slow network",
        replace(SAMPLES["ddp-slow-network"], expect={"kind": "exposed_communication"}),
    ),
    Case(
        "DDP, late, clocks shifted",
        _sample_of("ddp-healthy", "--steps=150", *_FORWARD, expect=_FORWARD_TRUTH, **_PAIR),
    ),
    Case("MPI, healthy", _mpi()),
    Case("MPI, late in backprop", _mpi(*_BACKPROP, expect=_BACKPROP_TRUTH)),
    Case("MPI, slow loader", _mpi("--slow-loader=1", "--slow-ms=30", expect=_LOADER)),
    Case("MPI, stopped", _mpi(*_LARGE, expect=_LATE), stop_repeatedly),
    Case("MPI, quota of a processor", _mpi(*_LARGE, expect=_LATE), throttled),
    Case("MPI, slow link", SAMPLES["mpi-slow-link"]),
    Case("MPI, late, clocks shifted", _mpi(*_FORWARD, expect=_FORWARD_TRUTH, **_SHIFTED)),
    Case("parameter server, hot shard", SAMPLES["ps-hot-shard"]),
)


@dataclass
class Outcome:
    """Of the runs of a case, those that were judged wrongly, each with what was wrong."""

    runs: int = 0
    wrong: list[str] = field(default_factory=list)


def perform(case: Case, folder: Path) -> list[str]:
    """Record a case unless `folder` holds it, and explain it; return what is wrong with the verdict."""
    truth = folder / "truth.json"
    if not truth.exists():
        shutil.rmtree(folder, ignore_errors=True)  # a recording that was broken off
        folder.mkdir(parents=True)
        truth.write_text(json.dumps(_recorded(case, folder / "trace")))
    trace = tl.open(folder / "trace")
    expect = dict(case.sample.expect)
    if case.burden:
        steps = _steps(trace, case.rank, json.loads(truth.read_text()))
        if not steps:
            return ["the training ended before it was disturbed"]
        expect |= {"steps": [steps[0], steps[-1]]}
    return differences(tl.analyze(trace), expect, edge=max(LEAST_BLOCK, _block(trace)))


def _recorded(case: Case, folder: Path) -> list[int]:
    """Record a case; return when its rank was burdened from outside, if it was."""
    if case.burden is None:
        record(case.sample, folder)
        return []
    disturber = Disturber(folder, case.rank, case.burden, AFTER_S, FOR_S)
    with disturber.at_work():
        record(case.sample, folder)
    return disturber.moments_ns


def _steps(trace: Trace, rank: int, moments_ns: list[int]) -> list[int]:
    """Return the steps in which a rank was burdened while it did not wait for others anyway."""
    mine = pl.col("rank") == rank
    spans, steps = trace.spans.filter(mine).collect(), trace.steps.filter(mine)
    transfers, worked = (
        spans.filter(pl.col("kind").is_in(kinds)) for kinds in (COMMUNICATION_KINDS, OWN_KINDS)
    )
    felt = [
        now
        for now in moments_ns
        if _spans_at(transfers, now).is_empty() or not _spans_at(worked, now).is_empty()
    ]
    return sorted({int(step) for now in felt for step in _spans_at(steps, now)["step"]})


def _spans_at(spans: pl.DataFrame, now: int) -> pl.DataFrame:
    return spans.filter(pl.col("start_ns") <= now, pl.col("end_ns") > now)


def _block(trace: Trace) -> int:
    """Return how many steps the detector takes together."""
    return -(-trace.steps["step"].n_unique() // BLOCKS)


def judge_cases(cases: list[Case], runs: int, recordings: Path) -> dict[str, Outcome]:
    """Judge every case so many times, healthy ones twice as often, in turns."""
    outcomes: dict[str, Outcome] = defaultdict(Outcome)
    for turn in range(runs * HEALTHY_RUNS):
        for case in cases:
            if turn >= runs and not case.healthy:
                continue
            wrong = perform(case, recordings / f"{case.name} {turn}")
            outcome = outcomes[case.name]
            outcome.runs += 1
            outcome.wrong += ["; ".join(wrong)] * bool(wrong)
            sys.stderr.write(f"{turn} {case.name}: {json.dumps(wrong) if wrong else 'right'}\n")
    return outcomes


def main() -> None:
    """Measure, print the table, publish it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--case", default="", help="only cases whose names hold this")
    parser.add_argument("--kept", type=Path, help="keep recordings there; judge those there again")
    parser.add_argument(
        "--publish", action="store_true", help="write the table of docs/accuracy.md"
    )
    options = parse_quick(parser, runs=1, case="MPI, late in backprop")
    cases = [case for case in CASES if options.case in case.name]
    with tempfile.TemporaryDirectory() as scratch:
        outcomes = judge_cases(cases, options.runs, options.kept or Path(scratch))
    rows = [
        (name, f"{one.runs - len(one.wrong)} of {one.runs}", " / ".join(dict.fromkeys(one.wrong)))
        for name, one in outcomes.items()
    ]
    text = table("Real trainings, recorded anew", ("training", "right", "else"), rows)
    sys.stdout.write(f"{text}\n")
    if options.publish:
        publish(PAGE, SCRIPT, text)


if __name__ == "__main__":
    main()

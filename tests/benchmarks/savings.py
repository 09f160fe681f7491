"""What fixing a real fault saves, beside the saving that the report of the faulty run states.

Each program runs with a fault and without it, in turns, always in fresh processes that record. They
sleep where the fault is, and no more ranks compute than there are cores: where ranks share them, who
waits lends its own to the others, and no trace says what becomes of that. The true saving is the
difference of the median job times; what a run states is the saving of its first finding, with the 95 %
interval, if that names who has the fault. It is right if the true saving lies in the interval of the
first run, as a user has one run; how many of all runs' intervals hold it stands beside.

As root, for links of limited bandwidth.

Run: make bench NAME=savings [PUBLISH=1] [ARGS="--rounds 2 --only MPI --kept DIR"]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.interventions import LAUNCH
from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from benchmarks.verdicts import DDP, LATE, MPI, PROGRAMS, RANKS, record
from support.launch.mpi import launch
from support.launch.torchrun import torchrun_command
from support.samples import EXAMPLES, departures

import tracelens as tl

if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPT: Final = "tests/benchmarks/savings.py"
PAGE: Final = "accuracy.md"
ROUNDS: Final = 5
_GRPC: Final = (sys.executable, str(EXAMPLES / "grpc_parameter_server.py"), "--hidden=96")
_SERVERS: Final = (
    *(sys.executable, str(LAUNCH / "shaped_links.py"), "100mbit", "2"),
    *(*_GRPC[:2], "--own-addresses", "--hidden=256", "--layers=2", "--steps=40"),
)
_STAGES: Final = (*launch(PROGRAMS / "neighbours_mpi.py", 4), "pipeline")


@dataclass(frozen=True)
class Fault:
    """A program with a fault and without it; `expect` is what its first finding must say."""

    name: str
    faulty: tuple[str, ...]
    fixed: tuple[str, ...]
    expect: dict[str, Any] = field(default_factory=lambda: {"kind": "straggler", "ranks": [LATE]})


def _mpi(fault: str) -> tuple[str, ...]:
    return (*launch(MPI, RANKS), fault, "none", "120")


def _ddp(fault: str) -> tuple[str, ...]:
    return tuple(torchrun_command(DDP, 2, [fault]))


def _slow(where: str, *more: str) -> tuple[str, ...]:
    return (*_GRPC, f"--slow-rank={LATE}", f"--slow-phase={where}", "--slow-ms=40", *more)


FAULTS: Final = (
    Fault("MPI, work 2.5 times as long", _mpi("work"), _mpi("none")),
    Fault("MPI, 40 ms before the reduction", _mpi("apart"), _mpi("none")),
    Fault("MPI, 250 ms every 9th step", _mpi("stalls"), _mpi("none")),
    Fault("MPI, a stage 2.5 times as long", (*_STAGES, "work"), (*_STAGES, "none")),
    Fault("DDP, loader 30 ms longer", _ddp("loader"), _ddp("none")),
    Fault("DDP, backward 30 ms longer", _ddp("backward"), _ddp("none")),
    Fault(
        "gRPC, updates of a shard 40 ms longer",
        _slow("update"),
        _GRPC,
        {"kind": "ps_cpu_bound", "shards": [LATE]},
    ),
    Fault("gRPC, a worker 40 ms longer", _slow("backprop"), _GRPC),
    Fault("gRPC, the same in a third of the steps", _slow("backprop", "--slow-steps=20:39"), _GRPC),
    Fault(
        "gRPC over links of 100 Mb/s, variables placed in turn",
        (*_SERVERS, "--placement=round_robin"),
        (*_SERVERS, "--placement=chunked"),
        {"kind": "ps_hot_shard", "shards": [1]},
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Stated:
    """What a report of a faulty run states; or why it states nothing about the fault."""

    saving: float = 0.0
    interval: tuple[float, float] = (0.0, 0.0)
    wrong: str = ""

    def holds(self, truth: float) -> bool:
        """Return whether the interval holds the true saving."""
        return not self.wrong and self.interval[0] <= truth <= self.interval[1]


def stated(report: tl.Report, expect: dict[str, Any]) -> Stated:
    """Return what is stated of a fault."""
    if not report.findings:
        return Stated(wrong="no finding")
    finding = report.findings[0]
    if wrong := departures(finding, expect):
        return Stated(wrong=wrong[0])
    if finding.saving is None or finding.interval is None:
        return Stated(wrong="no saving")
    return Stated(finding.saving, finding.interval)


def reported(folder: Path, command: Sequence[str]) -> tl.Report:
    """Record a command, unless that was done before, and explain it."""
    return tl.analyze(tl.open(folder)) if folder.exists() else record(folder, command)


def _job_ns(report: tl.Report) -> int:
    if report.efficiency is None:
        raise ValueError("no steps were found")
    return report.efficiency.job_ns


def measure_faults(faults: Sequence[Fault], rounds: int, folder: Path) -> list[tuple[str, ...]]:
    """Run all in turns; programs without a fault once a round, however many faults they have."""
    names = dict.fromkeys(fault.fixed for fault in faults)
    healthy: dict[tuple[str, ...], list[int]] = {command: [] for command in names}
    faulty: dict[str, list[tuple[int, Stated]]] = {fault.name: [] for fault in faults}
    for turn in range(rounds):
        for number, (command, times) in enumerate(healthy.items()):
            name = f"fixed {Path(_script(command)).stem} {number}"
            times.append(_job_ns(reported(folder / f"{turn} {name}", command)))
            _say(f"{turn} {name}: {times[-1] / 1e9:.2f} s")
            for fault in faults:
                if fault.fixed == command:
                    report = reported(folder / f"{turn} {fault.name}", fault.faulty)
                    found = _job_ns(report), stated(report, fault.expect)
                    faulty[fault.name].append(found)
                    _say(f"{turn} {fault.name}: {found[0] / 1e9:.2f} s, {found[1]}")
    return [_row(fault.name, healthy[fault.fixed], faulty[fault.name]) for fault in faults]


def _script(command: Sequence[str]) -> str:
    return next(word for word in command if word.endswith(".py"))


def _row(name: str, fixed: Sequence[int], runs: Sequence[tuple[int, Stated]]) -> tuple[str, ...]:
    usual = median(fixed)
    truth = 1 - usual / median(ns for ns, _ in runs)
    true_shares = [1 - usual / ns for ns, _ in runs]
    first_stated, holding = runs[0][1], sum(one.holds(truth) for _, one in runs)
    low, high = first_stated.interval
    right = f"{first_stated.saving:.1%} ({low:.1%} to {high:.1%})"
    return (
        name,
        f"{truth:.1%} ({min(true_shares):.1%} to {max(true_shares):.1%})",
        first_stated.wrong or right,
        "yes" if first_stated.holds(truth) else "no",
        f"{holding} of {len(runs)}",
    )


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main() -> None:
    """Run, print the table, publish it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="", help="only faults whose names hold this")
    parser.add_argument("--kept", type=Path, help="keep recordings there; judge those there again")
    parser.add_argument("--publish", action="store_true", help=f"write the table of docs/{PAGE}")
    options = parse_quick(parser, rounds=1, only="MPI, work")
    faults = [fault for fault in FAULTS if options.only in fault.name]
    with tempfile.TemporaryDirectory() as scratch:
        rows = measure_faults(faults, options.rounds, options.kept or Path(scratch))
    head = (
        "fault",
        "true saving (runs)",
        "stated by the first run (95 %)",
        "inside",
        "of all runs",
    )
    held = sum(row[3] == "yes" for row in rows)
    title = f"Savings beside runs without the fault: inside the interval in {held} of {len(rows)}"
    text = table(title, head, rows)
    sys.stdout.write(f"{text}\n")
    if options.publish:
        publish(PAGE, SCRIPT, text)


if __name__ == "__main__":
    main()

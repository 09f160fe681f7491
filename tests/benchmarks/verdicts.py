"""Rank and place of the first finding on plain programs with a planted fault, ours beside TraceML's.

The program is a DDP training without marks (tests/support/launch/programs/plain_ddp.py), on three ranks
that sleep where the fault is, so that they share no core; rank 1 has it. Ours is recorded by `tracelens
record -- torchrun` as it is. TraceML asks for marks in a loop of one's own, so its run has them. A
verdict is right if it names rank 1 alone, and the planted place; without a fault, if it accuses no rank.
What TraceML says is read from the `final_summary.json` that it writes.

With `--often` ours alone is asked more often, also under load and on a program over MPI: how often rank
1 is named first (at least 9 of 10), and how often nothing is wrong with a healthy twin (20 of 20).

Run: make bench NAME=verdicts [PUBLISH=1] [ARGS="--often --load 2"]
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from support.launch.disturb import Disturber, stopped_long
from support.launch.mpi import launch
from support.launch.patience import PATIENCE_S
from support.launch.recording import clean_environment
from support.launch.torchrun import torchrun_command

import tracelens as tl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SCRIPT: Final = "tests/benchmarks/verdicts.py"
PAGE: Final = "verdicts.md"
PROGRAMS: Final = Path(__file__).parents[1] / "support" / "launch" / "programs"
DDP, MPI = PROGRAMS / "plain_ddp.py", PROGRAMS / "plain_mpi.py"
RANKS, LATE, ROUNDS = 3, 1, 2
STEPS_OF_STOPS: Final = 1500  # else it ends before it is stopped often
NAMED_OF, SILENT_OF = 10, 20
UNCOVERED: Final = "uninstrumented"


@dataclass(frozen=True)
class Planted:
    """A fault as the programs name it, in words, and what ours and TraceML call its place."""

    fault: str
    words: str
    ours: str
    theirs: str


FAULTS: Final = (
    Planted("backward", "backward 30 ms longer", "backprop", "backward"),
    Planted("loader", "loader 30 ms longer", "data", "input"),
    Planted("forward", "forward 30 ms longer", "forward", "forward"),
    Planted("stalls", "250 ms every 9th step", f"{UNCOVERED}, update to data", "residual"),
    Planted("apart", "40 ms before the update", f"{UNCOVERED}, backprop to update", "residual"),
)
HEALTHY: Final = Planted("none", "none", "", "")


@dataclass(frozen=True)
class Answer:
    """Which ranks a verdict accuses, and of what; or why there is none."""

    ranks: tuple[int, ...] = ()
    place: str = ""
    failed: str = ""

    def right(self, place: str) -> bool:
        """Return whether it is rank 1 in this place; without a place, whether no rank is accused."""
        return not self.failed and (self.ranks, self.place) == (
            ((LATE,), place) if place else ((), "")
        )

    def __str__(self) -> str:
        """Return rank and place, as in the table."""
        if self.failed or not (self.ranks or self.place):
            return self.failed or "no rank"
        return f"rank {', '.join(map(str, self.ranks))}: {self.place}" if self.ranks else self.place


def own_answer(report: tl.Report) -> Answer:
    """Return what the first finding says, if it is a fault."""
    finding = next(iter(report.findings), None)
    if finding is None or finding.category != "fault":
        return Answer()
    location, around = finding.phase or finding.kind, finding.evidence.get("place")
    if location == UNCOVERED and around:
        location = f"{location}, {around['before']} to {around['after']}"
    return Answer(finding.ranks, location)


def their_answer(summary: dict[str, Any]) -> Answer:
    """Return what TraceML's primary diagnosis says, if it is more than information."""
    primary, of_steps = summary["primary_diagnosis"], summary["step_time"]["diagnosis"]
    if primary["severity"] == "info" or primary["section"] != "step_time":
        return Answer()
    return Answer(tuple(of_steps["ranks"]), of_steps["phase"] or primary["kind"])


def record(folder: Path, command: Sequence[str]) -> tl.Report:
    """Record a command as a user does, and explain it."""
    tracelens = str(Path(sys.executable).with_name("tracelens"))
    _run([tracelens, "record", "--no-verdict", "--out", str(folder), "--", *command])
    return tl.analyze(tl.open(folder))


def _run(command: Sequence[str]) -> None:
    environment = clean_environment(OMP_NUM_THREADS="1")
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip().splitlines()[-1:]}")


def ask_traceml(program: Path, fault: str, folder: Path) -> Answer:
    """Run the same training under TraceML, with its marks."""
    if not program.exists():
        return Answer(failed="not installed")
    try:
        _run(traceml_command(program, DDP, RANKS, folder, [fault, "--traceml"]))
        return their_answer(json.loads((folder / "run" / "final_summary.json").read_text()))
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        return Answer(failed=str(error).splitlines()[0])


def traceml_command(
    program: Path, script: Path, ranks: int, folder: Path, given: Sequence[object]
) -> list[str]:
    """Return the command that runs a script under TraceML, which writes below `folder`."""
    options = ["--nproc-per-node", ranks, "--logs-dir", folder, "--run-name", "run"]
    ports = ["--aggregator-port", _free_port(), "--master-port", _free_port()]
    return [str(word) for word in (program, "run", script, *options, *ports, "--args", *given)]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def beside_traceml(program: Path, faults: Sequence[Planted], rounds: int, place: Path) -> str:
    """Ask both about each fault, in turns; return the table."""
    answers: dict[str, list[tuple[Answer, Answer]]] = {planted.fault: [] for planted in faults}
    for turn in range(rounds):
        for planted in faults:
            where = place / f"{turn}-{planted.fault}"
            command = torchrun_command(DDP, RANKS, [planted.fault])
            pair = (
                own_answer(record(where / "ours", command)),
                ask_traceml(program, planted.fault, where / "traceml"),
            )
            answers[planted.fault].append(pair)
            _say(f"{turn} {planted.words}: ours {pair[0]} / TraceML {pair[1]}")
    head = ("planted in rank 1", "TraceLens says", "right", "TraceML says", "rank right", "right")
    return table(
        "Rank and place", head, (_row(planted, answers[planted.fault]) for planted in faults)
    )


def _row(planted: Planted, said: list[tuple[Answer, Answer]]) -> tuple[str, ...]:
    own_answers, their_answers = zip(*said, strict=True)
    late_ranks = (LATE,) if planted.ours else ()
    return (
        planted.words,
        _all(own_answers),
        _write_share(answer.right(planted.ours) for answer in own_answers),
        _all(their_answers),
        _write_share(not answer.failed and answer.ranks == late_ranks for answer in their_answers),
        _write_share(answer.right(planted.theirs) for answer in their_answers),
    )


def _all(answers: Sequence[Answer]) -> str:
    return " / ".join(dict.fromkeys(map(str, answers)))


def _write_share(right: Iterator[bool]) -> str:
    each = list(right)
    return f"{sum(each)} of {len(each)}"


@dataclass(frozen=True)
class Program:
    """A program with a fault that is run often; a rank of it may be stopped from outside."""

    name: str
    command: tuple[str, ...]
    planted: Planted
    stopped: bool = False

    def report(self, folder: Path) -> tl.Report:
        """Record it once more."""
        stops = Disturber(folder, LATE, stopped_long, 0.5, PATIENCE_S).at_work()
        with stops if self.stopped else nullcontext():
            return record(folder, self.command)


def _over_mpi(words: str, fault: str, *more: str, stopped: bool = False) -> Program:
    healthy = fault == "none" and not stopped
    planted = HEALTHY if healthy else Planted(fault, words, UNCOVERED, "")
    command = (*launch(MPI, RANKS), fault, "none", *more)
    return Program(f"MPI, {words}", command, planted, stopped)


PROGRAMS_OFTEN: Final = (
    _over_mpi("work 2.5 times as long", "work"),
    _over_mpi("250 ms every 9th step", "stalls"),
    _over_mpi("40 ms before the reduction", "apart"),
    _over_mpi("stopped 0.6 s of every 3 s", "none", str(STEPS_OF_STOPS), stopped=True),
    _over_mpi("healthy", "none"),
    *(
        Program(f"DDP, {one.words}", tuple(torchrun_command(DDP, RANKS, [one.fault])), one)
        for one in FAULTS
    ),
    Program("DDP, healthy", tuple(torchrun_command(DDP, RANKS, ["none"])), HEALTHY),
)


def often(programs: Sequence[Program], runs: int, twins: int, load: int, place: Path) -> str:
    """Run each program so many times, in turns; return how often the verdict was right."""
    right: Counter[str] = Counter()
    wrong: dict[str, list[str]] = {program.name: [] for program in programs}
    for turn in range(max(runs, twins)):
        for program in programs:
            if turn >= (runs if program.planted.ours else twins):
                continue
            with loaded(load):
                answer = own_answer(program.report(place / f"{turn}-{program.name}"))
            # With the rank named first it is right: places are asked for beside TraceML.
            if answer.ranks == ((LATE,) if program.planted.ours else ()):
                right[program.name] += 1
            else:
                wrong[program.name].append(str(answer))
            _say(f"{turn} {program.name}: {answer}")
    rows = [
        (
            program.name,
            f"{right[program.name]} of {right[program.name] + len(wrong[program.name])}",
            " / ".join(dict.fromkeys(wrong[program.name])),
        )
        for program in programs
    ]
    busy = f"beside {load} busy processes" if load else "with nothing beside it"
    return table(f"Named first, or no rank accused, {busy}", ("program", "right", "else"), rows)


@contextmanager
def loaded(processes: int) -> Iterator[None]:
    """Keep so many cores busy beside the body."""
    burners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main() -> None:
    """Run, print the table, publish it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traceml", type=Path, default=Path(".venv-traceml/bin/traceml"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--only", default="", help="only faults, or programs, whose names hold this"
    )
    parser.add_argument("--often", action="store_true", help="ours alone, more often")
    parser.add_argument("--runs", type=int, default=NAMED_OF, help="with --often: of each fault")
    parser.add_argument(
        "--twins", type=int, default=SILENT_OF, help="with --often: of healthy ones"
    )
    parser.add_argument(
        "--load", type=int, default=0, help="with --often: busy processes beside it"
    )
    parser.add_argument("--publish", action="store_true", help=f"write the table of docs/{PAGE}")
    options = parse_quick(parser, rounds=1, only="loader", runs=1, twins=1)
    with tempfile.TemporaryDirectory() as scratch:
        if options.often:
            programs = [program for program in PROGRAMS_OFTEN if options.only in program.name]
            text = often(programs, options.runs, options.twins, options.load, Path(scratch))
        else:
            faults = [program for program in (*FAULTS, HEALTHY) if options.only in program.words]
            text = beside_traceml(options.traceml.absolute(), faults, options.rounds, Path(scratch))
    sys.stdout.write(f"{text}\n")
    if options.publish:
        what = f" --often --load {options.load}" if options.often else ""
        publish(PAGE, f"{SCRIPT}{what}", text)


if __name__ == "__main__":
    main()

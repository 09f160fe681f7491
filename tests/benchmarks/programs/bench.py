"""Verdicts on small programs of tutorials and bug reports, healthy and with one fault each.

Each is recorded as it is by `tracelens record`, and its verdict compared with `truths.py`: its state,
and its place (rank, phase or code, steps). TraceLens was not tuned on these programs.

Run: python tests/benchmarks/programs/bench.py [--only ema] [--ranks 2,3] [--kept DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from benchmarks.programs.truths import ALL, BUSY, LAST, PROGRAMS, Program, Truth  # noqa: E402

BIN: Final = Path(sys.executable).parent
FORMS: Final = ("healthy", "faulty")
STEPS_OFF: Final = 10  # steps by which the first or last step may be off
PATIENCE_S: Final = 180


class Outcome(NamedTuple):
    program: str
    form: str
    ranks: int
    verdict: str
    headline: str
    state: bool
    place: bool


def environment(form: str) -> dict[str, str]:
    paths = os.pathsep.join(str(ROOT / folder) for folder in (".", "instrument", "dashboard"))
    return {
        **os.environ,
        "PYTHONPATH": paths,
        "FORM": form,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def launch_command(name: str, launcher: str, ranks: int) -> list[str]:
    script = str(HERE / f"{name}.py")
    if launcher == "torch":
        return [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(ranks), script]
    return [str(BIN / "mpiexec"), "-n", str(ranks), sys.executable, "-m", "mpi4py", script]


def run_tracelens(form: str, *arguments: str) -> str:
    finished = subprocess.run(
        [str(BIN / "tracelens"), *arguments],
        env=environment(form),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if finished.returncode:
        raise RuntimeError(finished.stderr[-2000:])
    return finished.stdout


def explain(name: str, form: str, ranks: int, folder: Path) -> dict[str, Any]:
    command = launch_command(name, PROGRAMS[name].launcher, ranks)
    run_tracelens(form, "record", "--no-verdict", "--out", str(folder), "--", *command)
    report: dict[str, Any] = json.loads(
        run_tracelens(form, "analyze", "--format", "json", str(folder))
    )
    return report


def is_right_place(truth: Truth, report: dict[str, Any], ranks: int) -> bool:
    summary = report["summary"]
    conclusion = f"{summary['headline']} {summary['why']}"
    kind = summary["kind"]
    finding = next((f for f in report["findings"] if f["kind"] == kind), None)
    if truth.place and not re.search(truth.place, conclusion, re.IGNORECASE):
        return False
    rank = ranks - 1 if truth.rank == LAST else truth.rank
    if rank == ALL:
        named = finding["ranks"] if finding else []
        if named and len(named) < ranks:
            return False
    elif rank is not None:
        if finding and finding["ranks"] != [rank]:
            return False
        if not re.search(rf"\brank {rank}\b", conclusion, re.IGNORECASE):
            return False
    if truth.steps and finding and finding["steps"]:
        return all(
            abs(a - b) <= STEPS_OFF for a, b in zip(finding["steps"], truth.steps, strict=True)
        )
    return True


def judge(name: str, form: str, ranks: int, report: dict[str, Any]) -> Outcome:
    program: Program = PROGRAMS[name]
    truth = program.faulty if form == "faulty" else program.healthy
    headline = report["summary"]["headline"]
    verdict = report["verdict"]
    if truth.place == BUSY:
        crowded = verdict == "inconclusive" and BUSY in headline and ranks > 2
        state = verdict in truth.verdicts or crowded
        is_right = state
    else:
        state = verdict in truth.verdicts
        is_right = is_right_place(truth, report, ranks)
    return Outcome(name, form, ranks, verdict, headline, state, is_right)


def table_row(outcome: Outcome) -> str:
    right = {(True, True): "right", (True, False): "place wrong", (False, True): "state wrong"}
    word = right.get((outcome.state, outcome.place), "wrong")
    return f"| {outcome.program} | {outcome.form} | {outcome.ranks} | {outcome.headline} | {word} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(PROGRAMS))
    parser.add_argument("--form", action="append", choices=FORMS)
    parser.add_argument("--ranks", default="2,3")
    parser.add_argument(
        "--kept", type=Path, help="keep all reports, and the recordings of wrong verdicts, here"
    )
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    print("| program | form | ranks | verdict | judged |\n|---|---|---|---|---|")  # noqa: T201
    for name in options.only or PROGRAMS:
        for ranks in (int(text) for text in options.ranks.split(",")):
            if ranks not in PROGRAMS[name].ranks:
                continue
            for form in options.form or FORMS:
                with tempfile.TemporaryDirectory() as folder:
                    trace = Path(folder) / f"{name}-{form}-{ranks}"
                    report = explain(name, form, ranks, trace)
                    outcome = judge(name, form, ranks, report)
                    outcomes.append(outcome)
                    print(table_row(outcome), flush=True)  # noqa: T201
                    if options.kept:
                        options.kept.mkdir(parents=True, exist_ok=True)
                        (options.kept / f"{trace.name}.json").write_text(
                            json.dumps(report, indent=1)
                        )
                    if options.kept and not (outcome.state and outcome.place):
                        shutil.rmtree(options.kept / trace.name, ignore_errors=True)
                        shutil.move(trace, options.kept / trace.name)
    for form in FORMS:
        judged = [o for o in outcomes if o.form == form]
        right = sum(o.state and o.place for o in judged)
        print(f"\n{form}: {right} of {len(judged)} right")  # noqa: T201
    accused = sum(o.form == "healthy" and o.verdict == "fault" for o in outcomes)
    print(f"healthy runs called a fault: {accused}")  # noqa: T201


if __name__ == "__main__":
    main()

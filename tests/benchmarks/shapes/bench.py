"""Whether reports see losses of every shape, size and number of ranks, and find no fault in controls.

Prints a line for each wrong report, and a summary. A loss of 10 % or more must not be called healthy;
from 15 % on the verdict and the place must be right; a control must not be called a fault.
The folder `--out` keeps results as JSON lines, and the tables of wrong reports.

Run from the root of the checkout:
  PYTHONPATH=.:instrument:tests python tests/benchmarks/shapes/bench.py --ranks 2,3 --sizes 30
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import zlib
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.quick import parse_quick
from benchmarks.shapes.answers import is_called_healthy, read_state
from benchmarks.shapes.catalog import Control, Shape, list_controls, list_shapes
from benchmarks.shapes.noise import FAMILIES, Setting

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.shapes.simulation import Job

STEPS: Final = 100
STEPS_OF_PIPELINES: Final = 60  # their simulation takes longest
AIM: Final = 1.03  # planted share / size asked for: just above it, so that bounds are decided
TOLERANCE: Final = 0.01  # of the share that a loss is solved for, relative
MAX_HALVINGS: Final = 50  # of the interval in which the amount of a loss is
SEVERITY: Final = ("healthy", "inconclusive", "bottleneck", "fault")


@dataclass(frozen=True)
class Case:
    """One run: a shape or a control, ranks, size in percent (0 of controls), noise and seed."""

    name: str
    ranks: int
    size: int
    family: str
    seed: int

    @property
    def label(self) -> str:
        return f"{self.name}-{self.ranks}-{self.size}-{self.family}-{self.seed}"

    def draw_setting(self) -> Setting:
        """Return the setting, which is the same for all sizes: only the loss grows."""
        seed = zlib.crc32(f"{self.name} {self.ranks} {self.seed}".encode())
        steps = STEPS_OF_PIPELINES if "pipeline" in self.name else STEPS
        return Setting(self.ranks, steps, self.family, seed)


def measure_share(shape: Shape, setting: Setting, amount: float) -> float:
    """Return the share of the job's time that the loss takes."""
    reference_ns = shape.build_reference(setting, amount).measure_ns()
    return 1 - reference_ns / shape.build(setting, amount).measure_ns()


def solve_amount(shape: Shape, setting: Setting, share: float) -> float | None:
    """Return the amount for which the loss takes `share` of the time, or None if none does."""
    low, high = 0.0, 0.1
    while measure_share(shape, setting, high) < share:
        low, high = high, 3 * high
        if high > shape.largest_amount:
            return None
    for _ in range(MAX_HALVINGS):
        amount = (low + high) / 2
        deviation = measure_share(shape, setting, amount) - share
        if abs(deviation) < TOLERANCE * share:
            return amount
        low, high = (amount, high) if deviation < 0 else (low, amount)
    return None


def analyze_job(job: Job, table: Path) -> dict[str, Any]:
    """Write the job's table and return the report on it as plain values."""
    import tracelens as tl  # noqa: PLC0415 - in the process that uses it

    job.write_table(table)
    report: dict[str, Any] = tl.analyze(tl.Trace.from_table(str(table))).to_dict()
    return report


def run_case(case: Case, folder: Path) -> dict[str, Any]:
    """Simulate a case, analyze it and judge the report."""
    setting = case.draw_setting()
    result: dict[str, Any] = asdict(case)
    table = folder / f"{case.label}.csv"
    control = list_controls().get(case.name)
    if control is not None:
        report = analyze_job(control.build(setting), table)
        result |= judge_control(control, report)
    else:
        shape = list_shapes()[case.name]
        amount = solve_amount(shape, setting, AIM * case.size / 100)
        if amount is None:
            return result | {"skipped": True, "errors": []}
        share = measure_share(shape, setting, amount)
        report = analyze_job(shape.build(setting, amount), table)
        answer = shape.answer(setting)
        errors = answer.find_errors(report, share)
        result |= {"share": share, "amount": amount, "errors": errors}
        result |= {"right_ranks": sorted(answer.place.ranks), "right_steps": answer.place.steps}
    kept = ("kind", "category", "saving", "cost", "ranks", "phase", "steps", "sentence")
    findings = [{key: finding[key] for key in kept} for finding in report["findings"][:5]]
    state = "healthy" if is_called_healthy(report) else read_state(report)
    result |= {"state": state, "summary": report["summary"], "findings": findings}
    if not result["errors"]:
        table.unlink()
    return result


def judge_control(control: Control, report: dict[str, Any]) -> dict[str, Any]:
    """A fault is an error; any other verdict than HEALTHY is counted for jobs that are healthy."""
    state = read_state(report)
    return {
        "errors": ["fault"] if state == "fault" else [],
        "not_healthy": control.is_healthy and state != "healthy",
    }


def choose_family(name: str, ranks: int, seed: int) -> str:
    """Give each shape another family of noise with each number of ranks and seed."""
    return FAMILIES[(zlib.crc32(name.encode()) + ranks + seed) % len(FAMILIES)]


def list_cases(arguments: argparse.Namespace) -> list[Case]:
    """Return all cases that were asked for."""
    cases = []
    for ranks, seed in product(arguments.ranks, range(arguments.seeds)):
        for name, shape in list_shapes().items():
            if is_chosen(name, arguments.shapes) and ranks >= shape.fewest_ranks:
                family = choose_family(name, ranks, seed)
                cases += [Case(name, ranks, size, family, seed) for size in arguments.sizes]
        for name in list_controls():
            if is_chosen(name, arguments.shapes):
                cases += [Case(name, ranks, 0, family, seed) for family in FAMILIES]
    return cases


def is_chosen(name: str, wanted: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in wanted)


def describe_error(result: dict[str, Any]) -> str:
    """Return the line of a wrong report."""
    share = f"{result['share']:.1%}" if "share" in result else "none"
    location = f"ranks {result['right_ranks']}" if "right_ranks" in result else result["family"]
    errors = ", ".join(result["errors"])
    return (
        f"{result['name']:32} {result['ranks']:2} ranks {result['size']:3} % (true {share}, {location})"
        f"  wrong: {errors}  said: {result['summary']['headline']}"
    )


def find_milder(results: list[dict[str, Any]]) -> list[str]:
    """Return where a larger loss has a milder verdict than a smaller one of the same run."""
    series: dict[tuple[str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        if "share" in result:
            series[result["name"], result["ranks"], result["seed"]].append(result)
    lines = []
    for (name, ranks, _), runs in sorted(series.items()):
        runs.sort(key=lambda run: run["size"])
        for smaller, larger in pairwise(runs):
            if SEVERITY.index(larger["state"]) < SEVERITY.index(smaller["state"]):
                sizes = (
                    f"{smaller['size']} % {smaller['state']}, {larger['size']} % {larger['state']}"
                )
                lines.append(f"{name:32} {ranks:2} ranks  {sizes}")
    return lines


def summarize(results: list[dict[str, Any]]) -> list[str]:
    """Return a line for each shape and size: wrong of all, and how."""
    judged = [result for result in results if "skipped" not in result]
    lines = []
    for name in dict.fromkeys(result["name"] for result in judged):
        runs = [result for result in judged if result["name"] == name]
        errors = [error for run in runs for error in run["errors"]]
        kinds = ", ".join(f"{errors.count(kind)} {kind}" for kind in sorted(set(errors)))
        wrong = sum(bool(run["errors"]) for run in runs)
        unsure = sum(run.get("not_healthy", False) for run in runs)
        note = f"{kinds}{f'  ({unsure} not called healthy)' if unsure else ''}"
        lines.append(f"{name:32} {wrong:3} of {len(runs):3} wrong  {note}".rstrip())
    for size, ranks in sorted({(run["size"], run["ranks"]) for run in judged}):
        runs = [run for run in judged if (run["size"], run["ranks"]) == (size, ranks)]
        wrong = sum(bool(run["errors"]) for run in runs)
        label = f"{size} %" if size else "controls"
        lines.append(f"{label}, {ranks} ranks: {wrong} of {len(runs)} wrong")
    skipped = len(results) - len(judged)
    return [*lines, f"{skipped} cases left out: no loss of that shape is so large"]


def parse_numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def write_lines(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", type=parse_numbers, default=[2, 3, 8])
    parser.add_argument("--sizes", type=parse_numbers, default=[5, 10, 15, 30, 60], help="percent")
    parser.add_argument(
        "--shapes", type=lambda text: text.split(","), default=["*"], help="patterns"
    )
    parser.add_argument("--seeds", type=int, default=1, help="runs of each case")
    parser.add_argument("--out", type=Path, default=Path("shapes-of-loss"))
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parse_quick(parser, ranks=[2], sizes=[30], shapes=["one_rank_forward_e*"])
    tables = arguments.out / "tables"
    tables.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    context = multiprocessing.get_context("spawn")
    results = []
    with (
        ProcessPoolExecutor(arguments.jobs, mp_context=context) as pool,
        (arguments.out / "results.jsonl").open("w") as file,
    ):
        for result in pool.map(partial(run_case, folder=tables), list_cases(arguments)):
            results.append(result)
            file.write(json.dumps(result) + "\n")
            if result["errors"]:
                write_lines(describe_error(result))
    milder = find_milder(results)
    write_lines("", *summarize(results))
    write_lines("", f"{len(milder)} larger losses have a milder verdict", *milder)
    return 1 if any(result["errors"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())

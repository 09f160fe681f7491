"""CPU time of explaining a profiled training: Holistic Trace Analysis (HTA) beside `tracelens analyze`.

The same events as each reads them: HTA the Kineto files that `torch.profiler` exports, ours the Arrow
files that our recorder would have written (`analyzers/converted.py`; converting is not counted, as the
profiler's own export is not). HTA loads and answers three questions (`analyzers/of_hta.py`), ours writes
the whole report. Neither keeps anything; what ours takes when it does, which is usual, is beside it.
All are processes of their own, in turns; ratios are taken within a round.

Without `--sample` the trainings are simulated, with about as many rows a rank as a real one has: that of
tests/data/df_index_resolver in HTA's repository, a NCCL training. With `--sample` a real rank's file is
copied for all ranks.

Run: make bench NAME=peers-analysis [PUBLISH=1] [SAMPLE=FILE] [KEEP=DIR]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from benchmarks.scaling.bounds import Bound, Section, machine, write_spread
from benchmarks.scaling.cost import GIB, Cost, Failed, measure_command
from benchmarks.scaling.rounds import Bench, say
from benchmarks.scaling.runs import same_imports

SCRIPT: Final = "tests/benchmarks/analysis.py"
PAGE: Final = "scale.md"
STEPS, QUICK_STEPS = 46, 4
MICRO_STEPS: Final = 50
LEAST: Final = {2: 12.0, 8: 25.0}  # CPU time of HTA over ours, by ranks
_OF_HTA: Final = Path(__file__).parent / "analyzers" / "of_hta.py"
_HEAD: Final = ("command", "CPU s", "wall s", "peak GiB")
_COUNTED: Final = "complete-events.txt"


def prepare(folder: Path, ranks: int, steps: int, sample: Path | None) -> None:
    """Write the Kineto files and our trace of the same events, and how many those are."""
    from benchmarks.analyzers import kineto  # noqa: PLC0415 - whoever measures must be small
    from benchmarks.analyzers.converted import convert  # noqa: PLC0415 - likewise

    if sample:
        kineto.copy_ranks(sample, ranks, folder / "kineto")
    else:
        kineto.simulate(ranks, steps, MICRO_STEPS, folder / "kineto")
    complete = convert(folder / "kineto", folder / "trace")
    (folder / _COUNTED).write_text(str(complete))


def prepared(bench: Bench, ranks: int, sample: Path | None) -> Path:
    """Return the folder of a run; made in a process of its own if it is not there."""
    steps = QUICK_STEPS if bench.quick else STEPS
    name = f"{sample.name.split('.')[0]}-{ranks}" if sample else f"kineto-{ranks}x{steps}"
    folder = bench.folder / name
    if not (folder / _COUNTED).exists():
        command = [sys.executable, __file__, "--prepare", str(folder), str(ranks), str(steps)]
        command += ["--sample", str(sample)] if sample else []
        measure_command(command, bench.output, environment=same_imports())
    return folder


def compare(bench: Bench, ranks: int, hta: Path, sample: Path | None) -> Section:
    """Measure both on a run."""
    folder = prepared(bench, ranks, sample)
    trace = folder / "trace"
    what = f"copies of {sample.name}" if sample else "simulated"
    complete = int((folder / _COUNTED).read_text())
    section = Section(f"HTA beside ours, {ranks} ranks, {complete:,} complete events, {what}")
    bound = Bound(f"{ranks} ranks: CPU time of HTA over ours", LEAST[ranks], "x", at_least=True)
    hta_costs: list[Cost] = []
    own_costs: list[Cost] = []
    keeping: list[Cost] = []
    failure = ""
    try:
        for _ in range(bench.rounds):
            hta_costs.append(
                measure_command([str(hta), str(_OF_HTA), str(folder / "kineto")], bench.output)
            )
            say(f"{ranks} ranks, HTA ", hta_costs)
            bench.forget(trace)
            own_costs.append(bench.analyze(trace, "--no-keep"))
            say(f"{ranks} ranks, ours", own_costs)
            keeping.append(bench.analyze(trace))
    except (Failed, OSError) as error:
        failure = " ".join(str(error).split())[-300:]
    ratios = [] if failure else [a.cpu / b.cpu for a, b in zip(hta_costs, own_costs, strict=True)]
    section.judge(bound, ratios, judged=not bench.quick, why=failure)
    costs_by_name = {
        f"HTA {_version(hta)}": hta_costs,
        "`tracelens analyze --no-keep`": own_costs,
        "`tracelens analyze`, which keeps report and index": keeping,
    }
    rows = [_row(name, costs) for name, costs in costs_by_name.items() if costs]
    section.texts.append(table("What each takes", _HEAD, rows))
    return section


def _row(name: str, costs: list[Cost]) -> list[str]:
    cpu, wall = [cost.cpu for cost in costs], [cost.wall for cost in costs]
    return [
        name,
        write_spread(cpu),
        write_spread(wall),
        write_spread([cost.peak / GIB for cost in costs]),
    ]


def _version(hta: Path) -> str:
    """Say which versions of HTA and pandas are installed; nothing where there is none."""
    code = "from importlib.metadata import version as v; "
    code += "print(v('HolisticTraceAnalysis'), 'with pandas', v('pandas'))"
    try:
        answer = subprocess.run([hta, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return "(not installed)"
    return answer.stdout.strip() or "(not installed)"


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hta", type=Path, help="the Python that HTA is installed for")
    parser.add_argument("--sample", type=Path, help="a rank's Kineto file, copied for all ranks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="folder for the runs, which stay and serve again")
    parser.add_argument("--publish", action="store_true", help="write docs/scale.md")
    parser.add_argument("--prepare", nargs=3, help=argparse.SUPPRESS)
    return parser


def main() -> int:
    """Compare on each number of ranks; 1 if a bound is missed."""
    args = parse_quick(options(), rounds=1)
    if args.prepare:
        folder, ranks, steps = args.prepare
        prepare(Path(folder), int(ranks), int(steps), args.sample)
        return 0
    if not args.hta:
        options().error(
            "--hta PYTHON is needed; make bench NAME=peers-analysis installs HTA and gives it"
        )
    if args.publish and args.rounds < 3:
        options().error("what is published is of at least 3 rounds")
    host = machine()
    place = nullcontext(args.keep) if args.keep else tempfile.TemporaryDirectory()
    with place as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        bench = Bench(Path(folder).resolve(), args.rounds, quick=args.quick)
        sections = [compare(bench, ranks, args.hta, args.sample) for ranks in LEAST]
    text = "\n\n".join([*(section.markdown() for section in sections), f"Measured on {host}."])
    missed = [bound for section in sections for bound in section.missed]
    sys.stdout.write(f"{text}\n\n")
    sys.stdout.write("\n".join(["Missed:", *missed] if missed else ["No bound was missed."]) + "\n")
    if args.publish:
        publish(PAGE, SCRIPT, text)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

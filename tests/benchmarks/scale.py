"""What it takes to explain large runs, as multiples of a floor, beside what is promised.

Simulated runs are written as recorders would have; then the floor (`scaling/floor.py`: pyarrow reads
the columns that are needed, once) and our verbs run on them in turns, each a process of its own. CPU
time, memory and open files are measured (`scaling/cost.py`). Each arm judges its bounds; what this
version cannot do counts as missed. The exit code is 1 if a bound is missed; the last lines say which.

Run: make bench NAME=scale [PUBLISH=1] [KEEP=DIR] [ARGS="--arms report"]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.published import publish
from benchmarks.quick import parse_quick
from benchmarks.scaling.arms import hundred_million, many_files, small_run, whole_report
from benchmarks.scaling.bounds import machine
from benchmarks.scaling.cost import Failed
from benchmarks.scaling.executors import two_workers
from benchmarks.scaling.rounds import Bench

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.scaling.bounds import Section

SCRIPT: Final = "tests/benchmarks/scale.py"
PAGE: Final = "scale.md"
ARMS: Final[dict[str, Callable[[Bench], Section]]] = {
    "small": small_run,
    "report": whole_report,
    "files": many_files,
    "large": hundred_million,
    "workers": two_workers,
}


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--arms", nargs="+", choices=ARMS, default=list(ARMS), help="all if not given"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of each arm")
    parser.add_argument("--keep", type=Path, help="folder for the runs, which stay and serve again")
    parser.add_argument("--publish", action="store_true", help="write docs/scale.md")
    return parser


def main() -> int:
    """Measure the arms; 1 if a bound is missed."""
    arguments = parse_quick(options(), rounds=1)
    if arguments.publish and arguments.rounds < 3:
        options().error("what is published is of at least 3 rounds")
    machine_words = f"Measured on {machine()}."
    say(machine_words)
    missed: list[str] = []
    place = nullcontext(arguments.keep) if arguments.keep else tempfile.TemporaryDirectory()
    with place as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        bench = Bench(Path(folder).resolve(), arguments.rounds, quick=arguments.quick)
        for name in arguments.arms:
            say(f"{name}:")
            try:
                section = ARMS[name](bench)
            except Failed as error:
                missed.append(f"{name}: not measured: {error}")
                continue
            text = f"{section.markdown()}\n\n{machine_words}"
            say(f"\n{text}\n")
            if arguments.publish:
                publish(PAGE, f"{SCRIPT} --arms {name}", text)
            missed += [f"{name}: {bound}" for bound in section.missed]
    say("\n".join(["Missed:", *missed]) if missed else "No bound was missed.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

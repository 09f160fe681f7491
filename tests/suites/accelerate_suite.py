"""Accelerate's own test scripts, without and under `tracelens record` (`make suite-accelerate`).

Its wheel holds them. A script is one test, which passes if its exit code is 0: by `accelerate launch` in
one process, by torchrun in two, on gloo and the CPU. What does not end within a minute is stopped.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from suites.comparison import Outcome, Suite, compare, conclude, run
from support.launch.torchrun import torchrun_command

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["compare_scripts", "find_scripts"]

_ENDS_WITHIN_S: Final = 60
_LAUNCH: Final = (
    sys.executable,
    "-m",
    "accelerate.commands.launch",
    "--cpu",
    "--num_processes",
    "1",
)
_RANKS: Final = (1, 2)


def find_scripts() -> dict[str, Path]:
    """Return the scripts of the installed Accelerate, by name.

    Raises:
        SystemExit: it is not installed.
    """
    spec = importlib.util.find_spec("accelerate")
    if spec is None or spec.origin is None:
        raise SystemExit("Accelerate is not installed: make suite-accelerate installs it")
    folder = Path(spec.origin).parent / "test_utils" / "scripts"
    return {path.stem: path for path in sorted(folder.glob("test_*.py"))}


def compare_scripts(ranks: int, names: Sequence[str]) -> Suite:
    """Run some scripts in `ranks` processes, without and under `tracelens record`."""

    def run_scripts(chosen: Sequence[str], recorded: bool) -> Outcome:  # noqa: FBT001 - as `Run` says
        def command(outcomes: Path) -> list[str]:
            outcome = str(outcomes / "all.txt")
            return [sys.executable, __file__, "--run", str(ranks), outcome, *chosen]

        return run(command, chosen, 1, {"ACCELERATE_USE_CPU": "true"}, recorded=recorded)

    return compare("gloo" if ranks > 1 else "one process", ranks, names, run_scripts)


def run_each(ranks: int, outcomes: Path, names: Sequence[str]) -> None:
    """Run scripts one after the other, and write which passed."""
    scripts = find_scripts()
    with outcomes.open("w", encoding="utf-8") as file:
        for name in names:
            script = scripts[name]
            command = torchrun_command(script, ranks) if ranks > 1 else [*_LAUNCH, str(script)]
            file.write(f"{'passed' if _passes(command) else 'failed'} {name}\n")
        file.write("ended\n")


def _passes(command: Sequence[str]) -> bool:
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            return process.wait(_ENDS_WITHIN_S) == 0
        except subprocess.TimeoutExpired:
            process.terminate()  # upon which a launcher ends its processes, and kills them if need be
            return False


def main() -> int:
    """Run the scripts, all or some, and print what they came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scripts", nargs="+", help="their names (default: all)")
    parser.add_argument("--run", nargs="+", metavar="WHAT", help="ranks, a file, names of scripts")
    parser.add_argument("--publish", action="store_true")
    arguments = parser.parse_args()
    if arguments.run:
        ranks, outcomes, *names = arguments.run
        run_each(int(ranks), Path(outcomes), names)
        return 0
    names = arguments.scripts or list(find_scripts())
    suites = [compare_scripts(ranks, names) for ranks in _RANKS]
    title = f"Accelerate {metadata.version('accelerate')}"
    script = "tests/suites/accelerate_suite.py"
    return conclude(title, "scripts", suites, script, published=arguments.publish)


if __name__ == "__main__":
    sys.exit(main())

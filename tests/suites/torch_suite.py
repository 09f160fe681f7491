"""PyTorch's own distributed tests, without and under `tracelens record` (`make suites`)."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from suites.comparison import Outcome, Suite, compare, conclude, run

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["compare_tests", "find_tests"]

_TESTS: Final = Path(__file__).with_name("torch_tests.py")
_RANKS: Final = 2


def find_tests(*classes: str) -> list[str]:
    """Return the names of all tests of some classes of `torch_tests.py`, or of all but the spawned.

    Raises:
        CalledProcessError: the wheel's tests cannot be imported; its standard error says why.
    """
    listed = subprocess.run(
        [sys.executable, str(_TESTS), "--list", *classes],
        env={"PYTHONPATH": str(_TESTS.parents[1])},
        check=True,
        capture_output=True,
        text=True,
    )
    return listed.stdout.split()


def compare_tests(tests: Sequence[str]) -> Suite:
    """Run some tests, named Class.test, without and under `tracelens record`."""

    def run_tests(chosen: Sequence[str], recorded: bool) -> Outcome:  # noqa: FBT001 - as `Run` says
        def command(outcomes: Path) -> list[str]:
            return [sys.executable, str(_TESTS), str(outcomes / "all.txt"), *chosen]

        return run(command, chosen, 1, {}, recorded=recorded)

    return compare("gloo", _RANKS, tests, run_tests)


def main() -> int:
    """Run the tests, all or those of some classes, and print what they came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", nargs="+", default=[])
    parser.add_argument("--tests", nargs="+", help="names as Class.test (default: all)")
    parser.add_argument("--publish", action="store_true")
    arguments = parser.parse_args()
    tests = arguments.tests or find_tests(*arguments.classes)
    title = f"PyTorch {metadata.version('torch')}"
    script = "tests/suites/torch_suite.py"
    suites = [compare_tests(tests)]
    return conclude(title, "tests chosen", suites, script, published=arguments.publish)


if __name__ == "__main__":
    sys.exit(main())

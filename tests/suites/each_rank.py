"""One rank of a suite: runs the tests of mpi4py and writes a line for each as soon as it has ended.

Usage: each_rank.py TESTS OUTCOMES REGEX, the folder of the tests, that of the outcomes, and which files.
"""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from typing import Any

from suites.unittest_outcomes import result_class


def runner(outcomes: Path) -> type[unittest.TextTestRunner]:
    """Make a class of runners that make their class of results when MPI has begun."""

    class Runner(unittest.TextTestRunner):
        def __init__(self, **options: Any) -> None:
            from mpi4py import MPI  # noqa: PLC0415 - the suite says how MPI begins

            super().__init__(**options)
            self.resultclass = result_class(outcomes / f"{MPI.COMM_WORLD.rank}.txt")

    return Runner


if __name__ == "__main__":
    tests, outcomes, files = sys.argv[1:]
    sys.path.insert(0, tests)
    sys.dont_write_bytecode = True
    from main import main  # type: ignore[import-not-found]

    main(
        module=None,
        argv=["main.py", "--no-builddir", "-i", files],
        testRunner=runner(Path(outcomes)),
    )

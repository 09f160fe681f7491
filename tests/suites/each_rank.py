"""One rank of a suite: runs the tests of mpi4py and writes a line for each as soon as it has ended.

Usage: each_rank.py TESTS OUTCOMES REGEX, the folder of the tests, that of the outcomes, and which files.
"""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from typing import Any


def result_class(outcomes: Path) -> type[unittest.TextTestResult]:
    """Make a class of results that writes them to a file of this rank."""
    from mpi4py import MPI  # noqa: PLC0415 - the suite says how MPI begins

    file = (outcomes / f"{MPI.COMM_WORLD.rank}.txt").open("w", encoding="utf-8", buffering=1)

    class Result(unittest.TextTestResult):
        def stopTestRun(self) -> None:  # noqa: N802 - unittest's
            super().stopTestRun()
            file.write("ended\n")

        def addSuccess(self, test: Any) -> None:  # noqa: N802
            super().addSuccess(test)
            file.write(f"passed {test.id()}\n")

        def addError(self, test: Any, err: Any) -> None:  # noqa: N802
            super().addError(test, err)
            file.write(f"failed {test.id()}\n")

        def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
            super().addFailure(test, err)
            file.write(f"failed {test.id()}\n")

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
            super().addSubTest(test, subtest, err)
            if err is not None:
                file.write(f"failed {test.id()}\n")

        def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
            super().addUnexpectedSuccess(test)
            file.write(f"failed {test.id()}\n")

    return Result


def runner(outcomes: Path) -> type[unittest.TextTestRunner]:
    """Make a class of runners that make their class of results when MPI has begun."""

    class Runner(unittest.TextTestRunner):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.resultclass = result_class(outcomes)

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

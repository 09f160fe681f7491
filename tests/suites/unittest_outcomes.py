"""Results of unittest, written as lines to a file as soon as each test has ended.

They are there when the process dies, too: `passed NAME`, `failed NAME`, `skipped NAME`, and `ended`.
"""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["result_class"]


def result_class(path: Path) -> type[unittest.TextTestResult]:
    """Make a class of results that writes them to a file."""
    file = path.open("w", encoding="utf-8", buffering=1)

    class Result(unittest.TextTestResult):
        def stopTestRun(self) -> None:  # noqa: N802 - unittest's
            super().stopTestRun()
            file.write("ended\n")

        def addSuccess(self, test: Any) -> None:  # noqa: N802
            super().addSuccess(test)
            file.write(f"passed {_name(test)}\n")

        def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
            super().addSkip(test, reason)
            file.write(f"skipped {_name(test)}\n")

        def addError(self, test: Any, err: Any) -> None:  # noqa: N802
            super().addError(test, err)
            file.write(f"failed {_name(test)}\n")

        def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
            super().addFailure(test, err)
            file.write(f"failed {_name(test)}\n")

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
            super().addSubTest(test, subtest, err)
            if err is not None:
                file.write(f"failed {_name(test)}\n")

        def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
            super().addUnexpectedSuccess(test)
            file.write(f"failed {_name(test)}\n")

    return Result


def _name(test: Any) -> str:
    return str(test.id()).removeprefix("__main__.")

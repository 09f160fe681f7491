"""Every test that docs/faults.md names exists."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs/faults.md"
ROW = re.compile(r"^\| (\d*) ?\|")


def listed_tests() -> set[str]:
    return set(re.findall(r"`([\w/]+\.py::\w+)`", PAGE.read_text(encoding="utf-8")))


def is_there(test: str) -> bool:
    file, _, name = test.partition("::")
    path = TESTS / file
    if not path.is_file():
        return False
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in ast.walk(tree))


def test_every_test_is_there() -> None:
    assert listed_tests()
    assert [test for test in sorted(listed_tests()) if not is_there(test)] == []


def test_every_row_names_one() -> None:
    """The numbers are those of the list of faults that the work began with."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if ROW.match(line)][1:]
    assert [row for row in rows if "::test_" not in row] == []
    numbers = [int(found[1]) for row in rows if (found := ROW.match(row)) and found[1]]
    assert numbers == [*range(1, 49)]

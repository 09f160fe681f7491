"""Each number that was chosen decides one test, and says its unit, its decision and what set it."""

import ast
import re
from functools import cache
from typing import Final

import pytest
from benchmarks import calibrate
from support.constants import (
    PAGE,
    WHEN_IMPORTED,
    Constant,
    read_all,
    read_constants,
    render_page,
    replace_value,
)
from support.layout import ROOT, Module, modules

REFERENCE: Final = re.compile(r"[A-Z].* \d{4}(, .+)?")  # authors, year, where to look
EXAMPLE: Final = """
# steps: fewer are not
# judged [Künsch 1989]
MIN_STEPS: Final = 30
MAX_ROWS: Final = 1 << 4  # rows: of a table [policy; one decision in show, Table.cut]
NO_UNIT: Final = 3  # fewer are not judged
_COLOURS: Final = (1, 2)


def show(rows: int = MAX_ROWS) -> bool:
    return rows > MAX_ROWS


class Table:
    def cut(self) -> int:
        def inner() -> int:
            return MAX_ROWS + MIN_STEPS

        return inner()
"""


@cache
def all_constants() -> list[Constant]:
    """Return the constants of all packages."""
    return read_all()


def is_source(source: str) -> bool:
    """Return True if a comment may name `source` as what set a value."""
    if source in {"calibrate", "policy", "chosen", "definition"}:
        return True
    if source.endswith(".py"):
        return (ROOT / source).is_file()
    return REFERENCE.fullmatch(source) is not None


def importers(constant: Constant) -> list[str]:
    """Return the modules that take a constant from its module."""
    module = constant.module.name
    return [
        module_file.name
        for module_file in modules().values()
        if module_file.name != module
        and constant.name in module_file.text
        and constant.name in names_taken(module_file).get(module, set())
    ]


@cache
def names_taken(module: Module) -> dict[str, set[str]]:
    """Return the upper-case names that a module takes from each other one, by import or attribute."""
    names_by_module: dict[str, set[str]] = {}
    bound: dict[str, str] = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names_by_module.setdefault(node.module, set()).add(alias.name)
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names_by_module.setdefault(bound.get(node.value.id, ""), set()).add(node.attr)
    return names_by_module


def test_each_says_unit_decision_and_source() -> None:
    assert [constant.label for constant in all_constants() if not constant.source] == []


def test_each_source_exists() -> None:
    found = [constant for constant in all_constants() if constant.source]
    assert [one.label for one in found if not is_source(one.source)] == []


def test_each_serves_one_decision() -> None:
    """One function reads it, or its comment names all functions that do."""
    decisions = [constant for constant in all_constants() if constant.source != "definition"]
    assert [
        f"{one.label} is read in {', '.join(one.readers)}"
        for one in decisions
        if (len(one.readers) > 1 or one.shared_by) and set(one.readers) != set(one.shared_by)
    ] == []


def calibrated_constants() -> list[Constant]:
    """Return the constants that the bench tunes."""
    return [constant for constant in all_constants() if constant.source == "calibrate"]


def test_no_module_imports_what_is_calibrated() -> None:
    assert {one.label: importers(one) for one in calibrated_constants() if importers(one)} == {}


def test_what_is_calibrated_is_read_when_a_function_runs() -> None:
    """The bench changes an attribute of the module, which default values would not see."""
    assert [
        one.label
        for one in calibrated_constants()
        if not one.readers or WHEN_IMPORTED in one.readers
    ] == []


def test_runs_judge_what_is_calibrated() -> None:
    assert [one.label for one in calibrated_constants() if not calibrate.is_judged(one)] == []


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_page(all_constants()), "run: make constants"


@pytest.fixture
def example() -> dict[str, Constant]:
    module = Module("tracelens.example", ROOT / "tracelens" / "example.py", EXAMPLE)
    return {constant.name: constant for constant in read_constants(module)}


def test_comments_above_and_behind_are_read(example: dict[str, Constant]) -> None:
    steps, rows = example["MIN_STEPS"], example["MAX_ROWS"]
    assert (steps.unit, steps.decision, steps.source) == (
        "steps",
        "fewer are not judged",
        "Künsch 1989",
    )
    assert (rows.value, rows.unit, rows.source) == ("1 << 4", "rows", "policy")
    assert rows.shared_by == ("show", "Table.cut")


def test_readers_are_functions_or_the_module(example: dict[str, Constant]) -> None:
    assert example["MIN_STEPS"].readers == ("Table.cut",)
    assert example["MAX_ROWS"].readers == (WHEN_IMPORTED, "show", "Table.cut")


@pytest.mark.parametrize("name", ["NO_UNIT", "_COLOURS"])
def test_what_lacks_a_complete_comment_has_no_source(
    example: dict[str, Constant], name: str
) -> None:
    assert example[name].source == ""


def test_a_value_is_replaced_in_its_line_alone(example: dict[str, Constant]) -> None:
    text = replace_value(example["MAX_ROWS"], EXAMPLE, "32")
    assert text == EXAMPLE.replace("1 << 4", "32")


def test_the_page_has_a_row_for_each(example: dict[str, Constant]) -> None:
    page = render_page(example.values())
    assert "| `MAX_ROWS` | 1 << 4 | rows | of a table | policy |" in page
    assert "NO_UNIT" not in page

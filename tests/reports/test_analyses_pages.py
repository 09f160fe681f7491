"""docs/analyses: worked examples are what the samples give, constants are those of the code."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any, Final

import pytest
from support.layout import constants, modules
from support.samples import sample_report

from tracelens.reports import to_json

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs" / "analyses"
PAGES: Final = sorted(page for page in FOLDER.glob("*.md") if page.name != "README.md")
EXAMPLE: Final = re.compile(
    r"```console\n\$ tracelens analyze (\S+) --format json\n```\n\n```json\n(.*?)```", re.DOTALL
)
ROW: Final = re.compile(r"\| `(_?[A-Z][A-Z_]*)` \| ([^|]+) \| [^|]+ \| [^|]+ \| ([^|]+) \|")
ROOMS: Final = (
    "tracelens.accounting",
    "tracelens.analyses",
    "tracelens.replay",
    "tracelens.stats",
    "tracelens.verdicts",
)
DIGITS: Final = 0.006  # relative: three digits are shown, or more


@cache
def report(folder: str) -> dict[str, Any]:
    """Return the report of a sample as JSON."""
    loaded: dict[str, Any] = json.loads(to_json.render(sample_report(Path(folder).name)))
    return loaded


def differences(shown: Any, told: Any, where: str = "report") -> list[str]:
    """Return what a page shows that the report does not say; a list may show some rows only."""
    if isinstance(shown, dict):
        known = told if isinstance(told, dict) else {}
        return [
            problem
            for key, value in shown.items()
            for problem in differences(value, known.get(key, "nothing"), f"{where}.{key}")
        ]
    if isinstance(shown, list) and isinstance(told, list) and shown and isinstance(shown[0], dict):
        tried = [[differences(one, row, where) for row in told] for one in shown]
        return [problem for each in tried if all(each) for problem in min(each, key=len)]
    if isinstance(shown, list) and isinstance(told, list) and len(shown) == len(told):
        pairs = zip(shown, told, strict=True)
        return [problem for a, b in pairs for problem in differences(a, b, where)]
    if isinstance(shown, float) and isinstance(told, float | int):
        return [] if isclose(shown, told, rel_tol=DIGITS) else [f"{where}: {shown}, not {told}"]
    return [] if shown == told else [f"{where}: {shown}, not {told}"]


def rows(page: Path) -> list[tuple[str, str, str]]:
    """Return file, name and value of each constant that a page's tables give."""
    found = []
    for part in re.split(r"^In `", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        path = part.partition("`")[0]
        found += [(path, name, value) for name, value, _by in ROW.findall(part)]
    return found


def in_code(path: str, name: str) -> str:
    """Return a constant's value as the source has it."""
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name and node.value:
            return ast.unparse(node.value)
    return "nothing"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_has_an_example_that_is_true(page: Path) -> None:
    """Every number of the report that a page shows is what the sample gives."""
    examples = EXAMPLE.findall(page.read_text(encoding="utf-8"))
    assert examples
    assert [
        d for sample, shown in examples for d in differences(json.loads(shown), report(sample))
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_constants_are_those_of_the_code(page: Path) -> None:
    shown = rows(page)
    assert shown
    values = {
        (path, name): ast.unparse(ast.parse(value, mode="eval")) for path, name, value in shown
    }
    true = {(path, name): in_code(path, name).strip("()") for path, name in values}
    assert {key: value.strip("()") for key, value in values.items()} == true


def test_no_constant_is_missing() -> None:
    """Every public constant that an analysis rests on is in a table of some page."""
    of = {name: module for name, module in modules().items() if name.startswith(ROOMS)}
    paths = {name: str(module.path.relative_to(ROOT)) for name, module in of.items()}
    shown = {(path, name) for page in PAGES for path, name, _value in rows(page)}
    public = {(paths[where], name) for where, name in constants(of) if not name.startswith("_")}
    assert public - shown == set()


def test_the_index_links_every_page() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f"({page.name})" not in index] == []

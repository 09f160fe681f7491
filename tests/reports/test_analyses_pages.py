"""docs/analyses: worked examples are what the samples give."""

import json
import re
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any, Final

import pytest
from support.samples import sample_report

from tracelens.reports import to_json

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs" / "analyses"
PAGES: Final = sorted(page for page in FOLDER.glob("*.md") if page.name != "README.md")
EXAMPLE: Final = re.compile(
    r"```console\n\$ tracelens analyze (\S+) --format json\n```\n\n```json\n(.*?)```", re.DOTALL
)
DIGITS: Final = 0.006  # relative: three digits are shown, or more


@cache
def report(folder: str) -> dict[str, Any]:
    """Return the report of a sample as JSON."""
    loaded: dict[str, Any] = json.loads(to_json.render(sample_report(Path(folder).name)))
    return loaded


def differences(on_page: Any, computed: Any, where: str = "report") -> list[str]:
    """List the values of a page that differ from the report; a list may show some rows only."""
    if isinstance(on_page, dict):
        expected = computed if isinstance(computed, dict) else {}
        return [
            problem
            for key, value in on_page.items()
            for problem in differences(value, expected.get(key, "nothing"), f"{where}.{key}")
        ]
    if (
        isinstance(on_page, list)
        and isinstance(computed, list)
        and on_page
        and isinstance(on_page[0], dict)
    ):
        differences_of_rows = [
            [differences(row_on_page, row, where) for row in computed] for row_on_page in on_page
        ]
        return [
            problem for each in differences_of_rows if all(each) for problem in min(each, key=len)
        ]
    if isinstance(on_page, list) and isinstance(computed, list) and len(on_page) == len(computed):
        pairs = zip(on_page, computed, strict=True)
        return [problem for a, b in pairs for problem in differences(a, b, where)]
    if isinstance(on_page, float) and isinstance(computed, float | int):
        return (
            []
            if isclose(on_page, computed, rel_tol=DIGITS)
            else [f"{where}: {on_page}, not {computed}"]
        )
    return [] if on_page == computed else [f"{where}: {on_page}, not {computed}"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_has_an_example_that_is_true(page: Path) -> None:
    """Every number of the report that a page shows is what the sample gives."""
    examples = EXAMPLE.findall(page.read_text(encoding="utf-8"))
    assert examples
    assert [
        d for sample, shown in examples for d in differences(json.loads(shown), report(sample))
    ] == []


def test_the_index_links_every_page() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f"({page.name})" not in index] == []

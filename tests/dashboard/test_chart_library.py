"""The charts' library is what its lock file says, and draws every trace that a figure has."""

import json
import re
from pathlib import Path

from tracelens_dashboard import chart_library

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "dashboard" / "charts-library"
SOURCES = ROOT / "dashboard" / "tracelens_dashboard"
FRAME = {"Figure", "Layout"}


def test_its_version_is_the_locked_one() -> None:
    """In its first line, in what it says of itself, and in the address that browsers keep it by."""
    version = json.loads((RECIPE / "package.json").read_text())["dependencies"]["plotly.js"]
    locked = json.loads((RECIPE / "package-lock.json").read_text())["packages"]
    assert locked["node_modules/plotly.js"]["version"] == version == chart_library.VERSION
    assert chart_library.source().startswith(f"/*! plotly.js v{version},")


def test_all_that_it_is_made_of_has_a_hash() -> None:
    """Whoever makes it anew gets the same bytes."""
    locked = json.loads((RECIPE / "package-lock.json").read_text())["packages"]
    assert [name for name, one in locked.items() if name and "integrity" not in one] == []


def test_it_has_the_traces_of_the_figures_and_no_others() -> None:
    """One more in a figure needs one more line in the recipe; scatter is always there."""
    recipe = (RECIPE / "bundle.js").read_text()
    built_traces = {"scatter", *re.findall(r"plotly\.js/lib/(\w+)", recipe)} - {"core"}
    code = "".join(file.read_text() for file in Path(SOURCES).rglob("*.py"))
    drawn = set(re.findall(r"\bgo\.([A-Z]\w+)\(", code)) - FRAME
    assert {name.lower() for name in drawn} == built_traces
    for name in built_traces:
        assert re.search(rf'moduleType:"trace",name:"{name}"', chart_library.source())

"""docs/notebook.ipynb runs, and its outputs are those that it has now."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.notebook import NOTEBOOK

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def structure(cell: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the kinds and formats of the outputs."""
    return [(one["output_type"], sorted(one.get("data", {}))) for one in cell["outputs"]]


def test_its_outputs_are_current(tmp_path: Path) -> None:
    """Executed anew it has the same outputs of the same kinds, and the same lines of text."""
    out = tmp_path / "executed.ipynb"
    command = [sys.executable, "-m", "support.notebook", str(out)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=NOTEBOOK.parents[1] / "tests"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    cells_before, new = cells(NOTEBOOK), cells(out)
    assert [cell["source"] for cell in cells_before] == [cell["source"] for cell in new]
    assert [structure(cell) for cell in cells_before] == [structure(cell) for cell in new], (
        "make notebook"
    )
    assert all(cell["outputs"] for cell in cells_before)
    texts = [
        [output.get("text", output.get("data", {}).get("text/plain")) for output in cell["outputs"]]
        for cell in (*cells_before, *new)
    ]
    assert texts[: len(cells_before)] == texts[len(cells_before) :], "make notebook"
    pages = [
        "".join(output["data"]["text/html"])
        for output in cells_before[0]["outputs"] + cells_before[1]["outputs"]
    ]
    assert "data:image/png;base64," in pages[0]
    assert "STRAGGLER rank 1" in pages[1]

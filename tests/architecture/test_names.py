"""Names are nouns and verbs; `found` or `_joined` alone says nothing."""

from pathlib import Path
from typing import Final

import pytest
from support.plain_names import measure_names

ROOT: Final = Path(__file__).parents[2]
# Largest shares of vague locals, functions and docstrings. A share may only shrink.
LIMITS: Final = {
    "tracelens": (0.006, 0.004, 0.002),
    "instrument/tracelens_instrument": (0.002, 0.002, 0.001),
    "dashboard/tracelens_dashboard": (0.004, 0.008, 0.001),
    "tests": (0.023, 0.023, 0.016),  # nearly all in tests/support and tests/benchmarks
}

EXAMPLE: Final = """
def _joined(runs):
    found = 1
    longest = max(one for one in runs)
    shortest = min(runs)
    return found + longest + shortest
"""


@pytest.mark.parametrize("folder", LIMITS)
def test_names_say_what_they_hold(folder: str) -> None:
    """`python tests/support/plain_names.py FOLDER` lists the vague ones."""
    names = measure_names(ROOT / folder)
    assert names.function_count > 500
    shares = dict(zip(("locals", "functions", "docstrings"), names.shares, strict=True))
    limits = dict(zip(shares, LIMITS[folder], strict=True))
    assert {kind: share for kind, share in shares.items() if share > limits[kind]} == {}


def test_vague_names_are_counted(tmp_path: Path) -> None:
    """A participle alone counts if it lives for four lines, a short loop's variable does not."""
    (tmp_path / "module.py").write_text(EXAMPLE)
    names = measure_names(tmp_path)
    assert [entry.split(": ")[1] for entry in names.vague_functions] == ["_joined"]
    assert [entry.split(": ")[1] for entry in names.vague_locals] == ["found in _joined"]

"""Training pays for nothing it does not use: no numpy, no pyarrow, no analyzer while it records."""

from pathlib import Path

import pytest
from support.launch.recording import read_one, run_child

pytestmark = pytest.mark.end_to_end

MODULE_BUDGET = 106  # 102 with Python 3.12: about half TraceLens, half the standard library

CODE = """
import sys
before = set(sys.modules)
import tracelens as tl
tl.start(sys.argv[1])
with tl.span("piece"):
    pass
print(*set(sys.modules) - before)
"""


def test_a_start_and_a_span_load_little(tmp_path: Path) -> None:
    """No library, and few modules of the standard library: each costs a start milliseconds."""
    loaded = run_child(CODE, tmp_path).stdout.split()
    assert not {"numpy", "pyarrow", "polars", "wrapt", "torch"} & set(loaded)
    assert len(loaded) <= MODULE_BUDGET, sorted(loaded)
    assert len(read_one(tmp_path).events) == 1


def test_versions_of_what_is_loaded_are_told(tmp_path: Path) -> None:
    """A library's version is written down if the training has it loaded, and only then."""
    code = "import sys, tracelens as tl\ntl.start(sys.argv[1])"
    run_child(code, tmp_path / "bare")
    run_child(f"import numpy\n{code}", tmp_path / "numpy")
    bare = read_one(tmp_path / "bare").side.process.versions
    assert sorted(bare) == ["python", "tracelens"]
    assert "numpy" in read_one(tmp_path / "numpy").side.process.versions

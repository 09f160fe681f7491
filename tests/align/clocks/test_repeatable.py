"""The same trace gets the same report each time, however many threads polars shares the work between."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from benchmarks.labelled.kinds import KINDS
from benchmarks.labelled.setting import setting

if TYPE_CHECKING:
    from pathlib import Path

OPENED = 3
PROGRAM = f"""
import sys
import tracelens as tl
from tracelens.reports import to_json
for _ in range({OPENED}):
    print(to_json.render(tl.analyze(tl.open(sys.argv[1]))), end="\\0")
"""
SEED = 3_000_001


def reports(folder: Path, threads: int) -> list[str]:
    """Return what is said of a run each time that a process opens it."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder],
        env=os.environ | {"POLARS_MAX_THREADS": str(threads)},
        capture_output=True,
        check=True,
        encoding="utf-8",
    )
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("name", ["PS healthy", "PS incast"])
def test_requests_that_tell_as_much(tmp_path: Path, name: str) -> None:
    """Clocks hang on the most telling requests, of which several may leave as little room."""
    (kind,) = (kind for kind in KINDS if kind.name == name)
    kind.make(setting(8, "harsh", "lognormal", SEED)).recording.write(tmp_path)
    found = [*reports(tmp_path, 1), *reports(tmp_path, 2)]
    assert len(found) == 2 * OPENED
    assert len(set(found)) == 1

"""Training pays for nothing it does not use: no numpy, no pyarrow, no analyzer while it records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.launch.recording import read_one, run_child

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.end_to_end

# What a start does without: each takes milliseconds, and some leave traces in the process.
SLOW = {
    "asyncio",
    "concurrent",
    "ctypes",
    "hashlib",
    "logging",
    "multiprocessing",
    "select",
    "signal",
    "socket",
    "subprocess",
    "sysconfig",
    "tempfile",
    "typing",
}
HEAVY = {
    "numpy",
    "pyarrow",
    "polars",
    "plotly",
    "dash",
    "rich",
    "scipy",
    "wrapt",
    "torch",
    "mpi4py",
}

REPORT = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"


def loaded(code: str, *arguments: object) -> set[str]:
    return set(run_child(f"{code}\n{REPORT}", *arguments).stdout.split())


def test_front_door_is_empty() -> None:
    """`import tracelens` imports nothing but itself."""
    found = loaded("import tracelens")
    assert HEAVY & found == set()
    assert "tracelens_instrument" not in found


def test_recording_is_light(tmp_path: Path) -> None:
    """Neither does starting to record, nor recording itself."""
    code = """
import sys
import tracelens as tl
tl.start(sys.argv[1])
@tl.traced
def work(): pass
with tl.step(1, samples=2), tl.span("piece"), tl.span("other")(nbytes=2):
    work()
tl.instant("instant")
tl.counter("counter", 2)
"""
    found = loaded(code, tmp_path)
    assert HEAVY & found == set()
    assert len(read_one(tmp_path).events) == 7


def test_starting_is_quick(tmp_path: Path) -> None:
    """A start and a span load little of the standard library; the front door hardly anything."""
    bare = loaded("")
    code = "import sys\nimport tracelens as tl\ntl.start(sys.argv[1])\nwith tl.span('piece'): pass"
    assert SLOW & (loaded(code, tmp_path) - bare) == set()
    door = loaded("import tracelens") - bare
    assert {name for name in door if not name.startswith("_")} == {"tracelens"}


def test_rare_things_are_loaded_when_asked_for(tmp_path: Path) -> None:
    """A start loads nothing for decorators, devices, signals, long recordings or the last steps."""
    found = run_child(
        "import sys, tracelens as tl\ntl.start(sys.argv[1])\nprint(*sys.modules)", tmp_path
    ).stdout
    rare = ("traced", "device.spans", "device.times", "retention.last_steps", "storage.conversion")
    assert [name for name in rare if f"tracelens_instrument.{name}" in found.split()] == []


def test_versions_of_what_is_loaded_are_told(tmp_path: Path) -> None:
    """A library's version is written down if the training has it loaded, and only then."""
    code = "import sys, tracelens as tl\ntl.start(sys.argv[1])"
    run_child(code, tmp_path / "bare")
    run_child(f"import numpy\n{code}", tmp_path / "numpy")
    bare = read_one(tmp_path / "bare").side.process.versions
    assert sorted(bare) == ["python", "tracelens"]
    assert "numpy" in read_one(tmp_path / "numpy").side.process.versions

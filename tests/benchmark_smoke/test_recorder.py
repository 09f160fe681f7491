"""The benchmark of recorders measures what it says, and leaves out nobody in silence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks.published import with_measured
from benchmarks.recorder import last_line
from benchmarks.recorders import starting
from benchmarks.recorders.by_hand import INLINE, JsonLines
from benchmarks.recorders.found import Found, middle
from benchmarks.recorders.known import RECORDERS
from benchmarks.recorders.ours import MAIN, WAYS, TraceLens
from benchmarks.recorders.timing import Row
from support.launch.patience import PATIENCE_S
from support.launch.recording import clean_environment
from support.tiers import mark_slow

if TYPE_CHECKING:
    from benchmarks.recorders.arm import Recorder

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "benchmarks" / "recorder.py"


def run(*arguments: object) -> str:
    path = ":".join(str(ROOT / place) for place in (".", "instrument", "tests"))
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    environment = clean_environment(PYTHONPATH=path)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return done.stdout


@pytest.mark.end_to_end
@pytest.mark.slow
@pytest.mark.alone
def test_every_recorder_is_measured_or_told_why_not() -> None:
    """Both switched off and on; a time is a time."""
    backend, rows, failed = json.loads(run("--one", "--rounds", 1).splitlines()[-1])
    measured_recorders = {row["recorder"] for row in rows if row["on"]}
    expected = RECORDERS if backend == "native" else (TraceLens,)
    assert measured_recorders | set(failed) == {kind.name for kind in expected} | {""}
    assert all(failed.values())
    arms = {(row["arm"], row["on"]) for row in rows if row["recorder"] == TraceLens.name}
    assert {
        (arm.name, measured_recorders) for arm in WAYS for measured_recorders in (True, False)
    } <= arms
    assert all(row["ns"][0] > 0 for row in rows if row["arm"] in {MAIN, INLINE})


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", mark_slow((TraceLens, JsonLines), quick={TraceLens}))
def test_spans_on_disk_are_counted(kind: type[Recorder], tmp_path: Path) -> None:
    """As many as the child says it has closed, not fewer, not what it has not."""
    output, folder = tmp_path / "said", tmp_path / "folder"
    output.write_bytes(bytes(8))
    folder.mkdir()
    run("--child", kind.__name__, folder, output, 60)
    assert int.from_bytes(output.read_bytes(), sys.byteorder) == 60
    assert kind.count_kept(folder) == 60


def test_an_error_of_a_child_is_shown() -> None:
    """The error of a failing child process is part of the parent's error."""
    command = [sys.executable, "-c", "raise SystemExit('no room for it')"]
    with pytest.raises(SystemExit, match=r"exit code 1(.|\n)*no room for it"):
        last_line(command, clean_environment())


def test_ratios_are_taken_round_by_round() -> None:
    """A round in which the machine was slow for all counts like any other."""
    results = Found([])
    for slow in (1.0, 9.0):
        results.add([row("", INLINE, 10 * slow), row("TraceLens", MAIN, 5 * slow)])
    assert results.to_inline(results.of("TraceLens", MAIN)) == (0.5, 0.5, 0.5)
    assert results.peers(on=True) == []


def test_a_start_is_what_is_beyond_a_bare_one() -> None:
    """Round by round for the medians, of wall and CPU time; the least of each kind for the least."""
    found = starting._extra_start([(20.0, 12.0), (30.0, 14.0)], [(10.0, 9.0), (10.0, 10.0)])
    assert found == starting.Start(wall_ms=15.0, cpu_ms=3.5, least_ms=3.0, bare_ms=9.5)


def test_interval_of_a_median() -> None:
    """Of 100 values it lies about ten places to each side."""
    assert middle(range(100)) == (49.5, 40, 59)
    assert middle([3.0]) == (3.0, 3.0, 3.0)


def test_a_page_keeps_what_others_wrote() -> None:
    """Each script writes between its own marks."""
    page = "".join(
        f"{name}\n<!-- measured: written by {name} -->\nold {name}\n<!-- end of measured -->\n"
        for name in ("a", "b")
    )
    changed = with_measured(page, "a", "new")
    assert "old a" not in changed
    assert "new" in changed
    assert changed.endswith(page[page.index("b\n") :])
    assert with_measured(changed, "a", "new") == changed


def row(recorder: str, arm: str, ns: float, **values: Any) -> Row:
    return Row(recorder, arm, "attributes", "public", values.get("on", True), [ns])

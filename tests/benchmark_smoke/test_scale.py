"""The benchmark of large runs measures what it says, and takes nothing as held that was not shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.scale import ARMS, PAGE, SCRIPT
from benchmarks.scaling.bounds import Bound, Outcome, Section
from benchmarks.scaling.cost import Failed, measure_command
from benchmarks.scaling.runs import FILES, Size, forget, make_run
from support.launch.patience import PATIENCE_S
from support.turns import select_turn

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
SIZE = Size(8, 10)

# Has 150 MiB and a file open; if there is code for another one, both have that at once for a while.
HOLD = """
import subprocess, sys, time
held, opened = bytearray(b"x") * (150 << 20), open(sys.argv[1])
if sys.argv[2:]:
    command = [sys.executable, "-c", sys.argv[2], sys.argv[1]]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    other.stdout.readline()
    time.sleep(2)
    other.communicate(b"enough")
else:
    print("ready", flush=True)
    sys.stdin.read()
"""
BUSY = "import time\nwhile time.process_time() < {}: pass"


@pytest.mark.end_to_end
@pytest.mark.slow
def test_memory_and_files_are_those_of_all_processes(tmp_path: Path) -> None:
    """What two processes have is the sum; what is outside of the trace is not counted."""
    file_inside, file_outside = tmp_path / "trace" / "file", tmp_path / "other"
    file_inside.parent.mkdir()
    file_inside.touch()
    file_outside.touch()
    output = tmp_path / "output.txt"
    command = [sys.executable, "-c", HOLD]
    cost = measure_command([*command, str(file_inside), HOLD], output, trace=file_inside.parent)
    assert 300 * MIB < cost.peak < 420 * MIB
    assert cost.files == 2
    assert (
        measure_command([*command, str(file_outside), HOLD], output, trace=file_inside.parent).files
        == 0
    )


@pytest.mark.slow
def test_time_is_that_of_all_processes(tmp_path: Path) -> None:
    """The processor time of a child of the child counts, too; waiting does not."""
    inner = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY.format(0.4)!r}])\n"
    )
    cost = measure_command(
        [sys.executable, "-c", inner + BUSY.format(0.4)], tmp_path / "output.txt"
    )
    assert 0.8 < cost.cpu < 1.6
    assert measure_command(["sleep", "0.5"], tmp_path / "output.txt").cpu < 0.2


def test_a_command_that_fails_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"ended with 3: .*so it is"):
        measure_command(
            [sys.executable, "-c", "import sys; sys.stderr.write('so it is'); exit(3)"],
            tmp_path / "o",
        )


@pytest.mark.slow
def test_the_floor_reads_every_event(tmp_path: Path) -> None:
    """As many events as the run has; of a file cut short it says so, instead of reading less."""
    trace = make_run(SIZE, tmp_path)
    command = [sys.executable, str(ROOT / "tests/benchmarks/scaling/floor.py"), str(trace)]
    output = tmp_path / "output.txt"
    measure_command(command, output)
    assert int(output.read_text()) == SIZE.events
    file = min(trace.glob(FILES))
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(Failed):
        measure_command(command, output)


def test_a_first_verb_finds_nothing_kept(tmp_path: Path) -> None:
    """Whatever a verb left is removed, in the user's cache, too; what was recorded is not."""
    trace, cache = make_run(SIZE, tmp_path), tmp_path / "cache"
    recorded = {path: path.read_bytes() for path in trace.iterdir()}
    (trace / "index").mkdir()
    (trace / "index" / "part").touch()
    (trace / "kept").touch()
    cache.mkdir()
    (cache / "kept").touch()
    forget(trace, cache)
    assert {path: path.read_bytes() for path in trace.iterdir()} == recorded
    assert list(cache.iterdir()) == []


def test_a_bound_is_judged_by_the_median() -> None:
    """The median counts, the bound itself is within, and what was not measured is not held."""
    upper_bound, lower_bound = Bound("a", 10, "x"), Bound("b", 1.7, "x", at_least=True)
    assert Outcome(upper_bound, (9, 10, 50)).verdict == "yes"
    assert Outcome(upper_bound, (9, 10.1, 50)).missed
    assert Outcome(lower_bound, (1.7,)).verdict == "yes"
    assert Outcome(lower_bound, (1.69,)).missed
    assert Outcome(upper_bound, (), why="this version has no --executor").missed
    assert not Outcome(upper_bound, (50,), judged=False).missed
    assert Outcome(upper_bound, (), judged=False).missed
    assert Outcome(Bound.yes("c"), (0.0,)).row == ["c", "yes", "no", "**no**"]
    section = Section("t")
    section.judge(upper_bound, [11, 12, 13], judged=True, why="because")
    assert section.missed == ["a: <= 10 x: 12 x (11 to 13); because"]


def test_every_arm_has_its_place_on_the_page() -> None:
    page = (ROOT / "docs" / PAGE).read_text()
    places = [f"{SCRIPT} --arms {name}" for name in ARMS] + ["tests/benchmarks/analysis.py"]
    assert [place for place in places if f"<!-- measured: written by {place} -->" not in page] == []


@pytest.mark.end_to_end
@pytest.mark.slow
@pytest.mark.parametrize("arm", select_turn([*ARMS]))
def test_a_small_run_passes_through_the_arm(arm: str) -> None:
    """The exit code says whether a bound was missed, and the last lines name each."""
    paths = os.pathsep.join(str(ROOT / path) for path in (".", "instrument", "tests"))
    done = subprocess.run(
        [sys.executable, str(ROOT / SCRIPT), "--quick", "--arms", arm],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr
    listed = done.stdout.partition("Missed:\n")[2].splitlines()
    assert done.returncode == bool(listed)
    marked = [
        row for row in done.stdout.splitlines() if row.endswith(("**no** |", "**not measured** |"))
    ]
    assert len(listed) == len(marked)
    assert f"\n{arm}:\n" in done.stdout

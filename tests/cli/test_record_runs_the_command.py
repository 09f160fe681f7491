"""`tracelens record` runs the command as it is, and reports in one line where its trace is."""

import sys
from pathlib import Path
from typing import Final

import pytest
from support.launch.record import record_command, run_record, short
from support.launch.recording import read_one

pytestmark = pytest.mark.end_to_end

TRAINING = """
import sys
import tracelens as tl
WORK = tl.span("work")
for i in range(3):
    with tl.step(i), WORK:
        pass
print("trained")
sys.exit(int(sys.argv[1]))
"""


def _line(text: str) -> str:
    return text.splitlines()[0]


@pytest.mark.parametrize("code", [pytest.param(0, marks=pytest.mark.slow), 7])
def test_its_exit_code_is_the_commands(code: int, tmp_path: Path) -> None:
    """The trace is written also after a failure; the announced command can be pasted."""
    command = ("--", sys.executable, "-c", TRAINING, code)
    done = run_record("--no-verdict", "--out", "a run", *command, cwd=tmp_path)
    assert done.returncode == code
    assert done.stdout == "trained\n"
    line = _line(done.stderr)
    assert "recorded 1 process with 6 events" in line
    assert "next: tracelens analyze 'a run'" in line
    assert ("exit code 7" in line) == (code == 7)
    assert len(done.stderr.splitlines()) == 1
    assert len(read_one(tmp_path / "a run").named("work")) == 3


def test_the_verdict_is_printed_last(tmp_path: Path) -> None:
    """The last four lines are the verdict."""
    command = ("--", sys.executable, "-c", TRAINING, 0)
    names = ["Verdict", "Why", "Next", "Scope"]
    lines = run_record("--out", tmp_path / "t", *command).stderr.splitlines()
    assert [name for name in names if any(line.startswith(name) for line in lines)] == names


def test_a_folder_of_its_own_by_default(tmp_path: Path) -> None:
    done = run_record("--no-verdict", "--", sys.executable, "-c", TRAINING, 0, cwd=tmp_path)
    (folder,) = (tmp_path / "traces").iterdir()
    assert f"tracelens analyze traces/{folder.name}" in done.stderr
    assert read_one(folder).side.complete


@pytest.mark.slow
def test_only_what_is_new_is_announced(tmp_path: Path) -> None:
    """A second recording into the same folder tells of its own processes."""
    command = ("--", sys.executable, "-c", TRAINING, 0)
    for _ in range(2):
        done = run_record("--no-verdict", "--out", tmp_path / "t", *command)
        assert "recorded 1 process " in done.stderr
    assert len(list((tmp_path / "t").glob("*.arrow"))) == 2


def test_a_command_that_records_nothing_is_told_so(tmp_path: Path) -> None:
    """It ran all the same: its exit code stands, and no empty folder is left."""
    done = run_record("--out", tmp_path / "t", "--", sys.executable, "-c", "raise SystemExit(5)")
    assert done.returncode == 5
    assert "nothing was recorded" in _line(done.stderr)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("options", [(), ("--detail", "step")])
def test_a_framework_that_did_nothing_is_named(options: tuple[str, ...], tmp_path: Path) -> None:
    """It is not said that the command did not use it."""
    pytest.importorskip("mpi4py")
    program = "from mpi4py import MPI; assert MPI.COMM_WORLD.size == 1"
    if options:
        program += "; MPI.COMM_WORLD.Barrier()"
    done = run_record(*options, "--out", tmp_path / "t", "--", sys.executable, "-c", program)
    assert "nothing was recorded: the command used mpi4py" in _line(done.stderr)
    assert done.returncode == 0


# Two ranks: one loads a framework, and the other one not yet, as it is ended.
STARTING: Final = """
import os, subprocess, sys
environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "2"}
program = "from mpi4py import MPI; import sys; sys.exit(int(sys.argv[1]))"
sys.exit(subprocess.run([sys.executable, "-c", program, sys.argv[1]], env=environment).returncode)
"""


@pytest.mark.parametrize("code", [0, 1])
def test_a_rank_that_has_loaded_nothing_yet_is_named(code: int, tmp_path: Path) -> None:
    """Another rank may have waited for it, so it is not said that the command did nothing."""
    pytest.importorskip("mpi4py")
    done = run_record("--out", tmp_path / "t", "--", sys.executable, "-c", STARTING, code)
    assert "nothing was recorded: rank 0 of 2 loaded mpi4py" in _line(done.stderr)
    assert "rank 1 had not loaded it here" in _line(done.stderr)
    assert done.returncode == code


def test_a_rank_that_ended_before_it_loaded_anything_is_named(tmp_path: Path) -> None:
    """MPI, for example, waits for other ranks while it is imported."""
    starting = STARTING.replace("from mpi4py import MPI; ", "")
    done = run_record("--out", tmp_path / "t", "--", sys.executable, "-c", starting, 1)
    assert "nothing was recorded: rank 0 of 2 started, and ended before torch" in _line(done.stderr)


@pytest.mark.slow
def test_a_recorder_inside_is_named(tmp_path: Path) -> None:
    """It is not said that the command used nothing that is recorded: it is recorded, but elsewhere."""
    program = "import tracelens as tl\nwith tl.span('work'): pass"
    inner = record_command("--out", tmp_path / "inner", "--", sys.executable, "-c", program)
    done = run_record("--no-verdict", "--out", tmp_path / "outer", "--", *inner)
    last = done.stderr.splitlines()[-1]
    assert f"the command's own `tracelens record` records to {short(tmp_path / 'inner')}" in last
    assert list((tmp_path / "inner").glob("*.arrow"))
    assert not (tmp_path / "outer").exists()


def test_a_python_that_keeps_us_out_is_not_said_to_use_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-c", "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"]
    done = run_record("--out", tmp_path / "t", "--", *command)
    assert "python -I" in _line(done.stderr)


@pytest.mark.slow
def test_a_python_without_asserts_is_recorded_as_well(tmp_path: Path) -> None:
    done = run_record("--out", tmp_path / "t", "--", sys.executable, "-O", "-c", TRAINING, 0)
    assert done.stdout == "trained\n"
    assert len(read_one(tmp_path / "t").named("work")) == 3


def test_arguments_after_the_dashes_belong_to_the_command(tmp_path: Path) -> None:
    show = "import sys; print(sys.argv[1:])"
    done = run_record("--", sys.executable, "-c", show, "--out", "x", "--", "y", cwd=tmp_path)
    assert done.stdout == "['--out', 'x', '--', 'y']\n"


@pytest.mark.slow
def test_open_files_reach_the_command(tmp_path: Path) -> None:
    """An MPI launcher talks to its ranks through one."""
    script = tmp_path / "through.py"
    script.write_text(
        "import os, subprocess, sys\n"
        "here, there = os.pipe()\n"
        "os.set_inheritable(there, True)\n"
        "say = f'import os; os.write({there}, b\"hello\")'\n"
        "command = [*sys.argv[1:], '--', sys.executable, '-c', say]\n"
        "subprocess.run(command, close_fds=False, check=True)\n"
        "print(os.read(here, 5).decode())\n"
    )
    done = run_record("--", sys.executable, script, sys.executable, "-m", "tracelens", "record")
    assert done.stdout == "hello\n"

"""A file that crashes its reader or exhausts memory or time costs its rank only; the verb goes on.

Files that pass the gate and still end a reader are not to be had, so the children of these tests have a
`sitecustomize` that does it where a file of some name is opened.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest
from support.launch.patience import PATIENCE_S
from support.runs.damage import VICTIM, write_run
from support.tiers import mark_slow, mark_slow_in_turn

from tracelens.cli import main
from tracelens.schema.vocabulary import SAMPLES_FOLDER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SITE: Final = """
import ctypes, os, signal
from tracelens.schema import gate

def segv(): ctypes.string_at(0)
def abort(): os.abort()
def kill(): os.kill(os.getpid(), signal.SIGKILL)
def spin():
    while True: pass
def memory():
    import numpy
    held = []
    while True: held.append(numpy.empty(1 << 30, "u1"))  # which asks for it, and leaves it untouched

harm, name = globals()[os.environ["HARM"]], os.environ["VICTIM"]
real = gate.open_regular

def opened(path, *kind):
    file = real(path, *kind)
    if str(path).endswith(name):
        harm()
    return file

gate.open_regular = opened
"""
LIMITS: Final = ("--limit", "cpu=3", "--limit", "memory=4GiB")
SAID: Final = {
    "segv": "ended the process by signal 11 (SIGSEGV)",
    "abort": "ended the process by signal 6 (SIGABRT)",
    "kill": "ended the process by signal 9 (SIGKILL)",
    "spin": "more than the limit of 3 seconds of CPU ('--limit cpu=...' raises it)",
    "memory": "more than the limit of 4294967296 bytes of memory ('--limit memory=...' raises it)",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(SITE)
    return folder


def harmed(site: Path, harm: str, name: str = VICTIM) -> dict[str, str]:
    """Return the environment of a process that a file does harm to."""
    return os.environ | {"PYTHONPATH": search_path(site), "HARM": harm, "VICTIM": name}


def search_path(folder: Path) -> str:
    """Return the search path of this process, with a folder before it."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def run(
    *arguments: str | Path,
    environment: dict[str, str] | None = None,
    start: Sequence[str] = ("-m", "tracelens"),
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *start, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment,
    )


def report(text: str) -> tuple[dict[str, Any], list[str]]:
    """Return a report without its notes, and the sentences of those on files that cannot be read."""
    found: dict[str, Any] = json.loads(text)
    notes = found.pop("notes")
    return found, [note["sentence"] for note in notes if note["kind"] == "unreadable"]


@pytest.mark.parametrize("harm", mark_slow_in_turn([*SAID], ("segv",)))
def test_the_other_ranks_are_explained_as_without_it(
    harm: str, site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same report as where that file is damaged, and one sentence says what it did."""
    command = ("analyze", str(tmp_path), "--contained", "--format", "json", "--no-keep")
    victim = write_run(tmp_path)
    done = run(*command, *LIMITS, environment=harmed(site, harm))
    assert done.returncode == 0
    assert f"'{VICTIM}' is left out: reading it" in done.stderr
    assert "Traceback" not in done.stderr
    contained_report, (note,) = report(done.stdout)
    assert note.startswith(f"'{VICTIM}' was left out: ")
    assert SAID[harm] in note
    victim.write_bytes(b"damaged")
    assert main([*command]) == 0
    report_without, (other,) = report(capsys.readouterr().out)
    assert "not an Arrow file" in other
    assert json.dumps(contained_report) == json.dumps(report_without)


@pytest.mark.parametrize(
    "verb",
    mark_slow_in_turn(
        [
            ["info"],
            ["validate"],
            ["index"],
            ["convert", "--to", "csv"],
            ["whatif", "--what", "all"],
        ],
        (["validate"],),
    ),
)
def test_every_verb_goes_on(verb: list[str], site: Path, tmp_path: Path) -> None:
    """Each that reads a run; one that only checks it finds a problem."""
    run_folder = tmp_path / "run"
    write_run(run_folder)
    out = ["--out", str(tmp_path / "out.csv")] if verb[0] == "convert" else []
    done = run(
        *verb[:1], run_folder, "--contained", *verb[1:], *out, environment=harmed(site, "segv")
    )
    assert done.returncode == (1 if verb[0] == "validate" else 0), done.stderr
    assert SAID["segv"] in done.stderr


@pytest.mark.slow
def test_nothing_that_was_kept_of_the_whole_run_is_taken_for_it(site: Path, tmp_path: Path) -> None:
    """Neither report nor index: of the run without a file they are others."""
    write_run(tmp_path)
    command = ("analyze", tmp_path, "--contained", "--format", "json")
    sound_output = run(*command).stdout
    crashed = run(*command, "--again", environment=harmed(site, "segv"))
    assert report(crashed.stdout)[1]
    assert not report(run(*command).stdout)[1]
    assert run(*command).stdout == sound_output


@pytest.mark.slow
def test_where_processes_read(site: Path, tmp_path: Path) -> None:
    """A worker ends, the file is read once more, and then it is left out; the report is the same."""
    write_run(tmp_path)
    asked = ("analyze", tmp_path, "--contained", "--format", "json", "--no-keep")
    alone = run(*asked, environment=harmed(site, "segv"))
    done = run(*asked, "--executor", "processes:2", environment=harmed(site, "segv"))
    assert (done.returncode, done.stdout) == (0, alone.stdout)


@pytest.mark.slow
def test_samples_that_end_a_reader(site: Path, tmp_path: Path) -> None:
    """They alone are left out: their rank is explained."""
    write_run(tmp_path)
    (tmp_path / SAMPLES_FOLDER).mkdir()
    (tmp_path / SAMPLES_FOLDER / VICTIM).write_bytes(b"x" * 1000)
    victim = f"{SAMPLES_FOLDER}/{VICTIM}"
    asked = ("analyze", tmp_path, "--contained", "--format", "json")
    done = run(*asked, environment=harmed(site, "segv", victim))
    assert done.returncode == 0, done.stderr
    assert SAID["segv"] in done.stderr
    assert json.loads(done.stdout)["trace"]["ranks_seen"] == 3


@pytest.mark.parametrize("name", mark_slow(["events.csv", VICTIM], ("events.csv",)))
def test_a_single_file_that_crashes_its_reader_is_unusable(
    name: str, site: Path, tmp_path: Path
) -> None:
    """Nothing else can be read, so the input is unusable."""
    write_run(tmp_path)
    (tmp_path / "events.csv").write_text("rank,start_ns,end_ns\n0,1,2\n")
    done = run("analyze", tmp_path / name, "--contained", environment=harmed(site, "segv", name))
    assert (done.returncode, done.stdout) == (3, "")
    assert SAID["segv"] in done.stderr.splitlines()[-1]


READER: Final = """
import os

class Broken:
    name = "broken"

    def sniff(self, path):
        return path.suffix == ".broken"

    def read(self, path, how=None):
        os.abort()

def analysis(trace, phases):
    if trace.workers.height > 1:
        os.abort()
"""


@pytest.fixture
def plugins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment in which another distribution brings a reader and an analysis."""
    folder = tmp_path_factory.mktemp("plugins")
    info = folder / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    entries = "[tracelens.readers]\nx = broken:Broken\n[tracelens.analyses]\nx = broken:analysis\n"
    (info / "entry_points.txt").write_text(entries)
    (folder / "broken.py").write_text(READER)
    return os.environ | {"PYTHONPATH": search_path(folder)}


@pytest.mark.slow
def test_a_reader_of_another_distribution(plugins: dict[str, str], tmp_path: Path) -> None:
    """What it does to a process, it does to one that is tried."""
    (tmp_path / "run.broken").write_text("x")
    done = run("analyze", tmp_path / "run.broken", environment=plugins)
    assert (done.returncode, done.stdout) == (3, "")
    assert SAID["abort"] in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_crash_of_no_file(plugins: dict[str, str], tmp_path: Path) -> None:
    """Each file alone does no harm, so it is a bug, and is reported as one."""
    write_run(tmp_path)
    done = run("analyze", tmp_path, "--contained", "--no-keep", environment=plugins)
    assert (done.returncode, done.stdout) == (70, "")
    assert "this is a bug in TraceLens" in done.stderr.splitlines()[-1]
    assert "SIGABRT" in done.stderr


PROGRAM: Final = """
import sys, tracelens
trace = tracelens.open(sys.argv[1], contained=True)
print(trace.workers.height, len(trace.notes), trace.notes[0].sentence)
"""


@pytest.mark.slow
def test_a_program_of_ones_own(site: Path, tmp_path: Path) -> None:
    """It asks for the trial, and goes on without the file."""
    write_run(tmp_path)
    done = run(tmp_path, start=("-c", PROGRAM), environment=harmed(site, "segv"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 1 ")
    assert SAID["segv"] in done.stdout

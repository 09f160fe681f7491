"""Readers and analyses of another distribution, installed for real into a folder of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

EXAMPLE: Final = Path(__file__).parents[2] / "docs" / "plugin-example"
SAMPLE: Final = Path(__file__).parents[2] / "sample_traces" / "mpi-late-rank"
BROKEN: Final = """
def run(trace, phases):
    raise KeyError("no such column")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example of docs/plugins.md; nothing is fetched for it."""
    target = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    source = tmp_path_factory.mktemp("source") / "example"
    _copy(EXAMPLE, source)
    command = [sys.executable, "-m", "pip", "install", *options, "--target", target, source]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    return target


def _copy(source: Path, target: Path) -> None:
    target.mkdir()
    for file in source.iterdir():
        if file.is_file():
            (target / file.name).write_bytes(file.read_bytes())


def run(site: Path, *arguments: str, code: int = 0) -> str:
    """Run a verb with `site` among the places of modules; return what it printed."""
    environment = os.environ | {
        "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    }
    command = [sys.executable, "-m", "tracelens", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def analyze_with_plugins(site: Path, path: Path, *options: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(
        run(site, "analyze", str(path), "--format", "json", "--again", *options)
    )
    return report


@pytest.fixture(scope="module")
def toy_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a run of three ranks in the format of the example's reader."""
    path = tmp_path_factory.mktemp("toy") / "run.toy"
    lines = ["toy 1"]
    for rank in range(3):
        for step in range(40):
            begin = step * 20_000_000
            length = 10_000_000 + (8_000_000 if rank == 2 else 0) + rank * 1000 + step
            lines.append(f"{rank} {begin} {begin + length} forward {step}")
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the tables that belong to `report`."""
    return tmp_path_factory.mktemp("analyzed") / "tables"


@pytest.fixture(scope="module")
def report(installed: Path, toy_run: Path, tables: Path) -> dict[str, Any]:
    return analyze_with_plugins(installed, toy_run, "--tables", str(tables))


def test_its_reader_reads(report: dict[str, Any], toy_run: Path, tmp_path: Path) -> None:
    """A file of a format that TraceLens does not know, by content; without it the file is refused."""
    assert report["trace"]["ranks_seen"] == 3
    assert report["trace"]["spans"] == 120
    assert "not a trace that TraceLens reads" in run(tmp_path, "analyze", str(toy_run), code=3)


def test_its_analysis_finds(report: dict[str, Any], tables: Path) -> None:
    """Its tables are saved with the others; the report's format is unchanged."""
    table = (tables / "longest_steps.csv").read_text().splitlines()
    assert table[0] == "rank,step,ns"
    assert len(table) == 1 + 3
    assert "longest_steps" not in report["tables"]


@pytest.mark.slow
def test_a_kept_report_is_of_the_same_plugins(installed: Path, tmp_path: Path) -> None:
    """What an installation with an analysis found is not shown by one without it."""
    trace = tmp_path / "trace"
    trace.mkdir()
    for file in SAMPLE.iterdir():
        if file.is_file():
            (trace / file.name).write_bytes(file.read_bytes())
    run(tmp_path, "analyze", str(trace))
    program = (
        "from pathlib import Path; from tracelens.distil import kept_report; "
        f"print(kept_report.find(Path({str(trace)!r})))"
    )
    outputs = [_python(site, program) for site in (tmp_path, installed)]
    assert outputs[0].startswith("Report(")
    assert outputs[1].strip() == "None"


def _python(site: Path, code: str) -> str:
    environment = os.environ | {
        "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    }
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout


def plant_distribution(site: Path, code: str | None, group: str = "analyses") -> None:
    """Put a distribution with one entry point into a folder; without code its module is missing."""
    info = site / "broken-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(f"[tracelens.{group}]\nworse = broken_module:run\n")
    if code is not None:
        (site / "broken_module.py").write_text(code)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (BROKEN, "KeyError: 'no such column'"),
        pytest.param(None, "No module named 'broken_module'", marks=pytest.mark.slow),
        pytest.param("run = 3", "'int' object is not callable", marks=pytest.mark.slow),
        pytest.param(
            "def run(trace, phases): return 3",
            "has no attribute 'findings'",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_failing_analysis_is_a_note(code: str | None, reason: str, tmp_path: Path) -> None:
    """The report stands, and says whose analysis is missing."""
    plant_distribution(tmp_path, code)
    found = analyze_with_plugins(tmp_path, SAMPLE)
    assert found["verdict"] == "fault"
    (note,) = [note for note in found["notes"] if note["kind"] == "plugin"]
    assert "The analysis 'worse' of broken 2.0 failed" in note["sentence"]
    assert reason in note["sentence"]


@pytest.mark.parametrize("code", [BROKEN, pytest.param(None, marks=pytest.mark.slow)])
def test_a_failing_reader_is_a_sentence(code: str | None, tmp_path: Path) -> None:
    plant_distribution(tmp_path, code, "readers")
    (tmp_path / "file.odd").write_text("odd")
    sentence = run(tmp_path, "analyze", str(tmp_path / "file.odd"), code=3)
    assert "'worse' of broken 2.0" in sentence
    assert "Traceback" not in sentence

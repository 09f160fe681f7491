"""A report is kept next to its trace, and used while neither the trace nor the code changes."""

import os
from pathlib import Path

import pytest

import tracelens
from tracelens.cli import main
from tracelens.distil import kept_report, places
from tracelens.lod import opening
from tracelens.model.choice import Choice
from tracelens.simulator.synthetic import Fault, Scenario, write

SLOW = Scenario(ranks=4, steps=40, faults=(Fault("backprop", (2,), factor=1.5),))


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(SLOW, tmp_path / "run")
    return tmp_path / "run"


def report(trace: Path, capsys: pytest.CaptureFixture[str], style: str = "json") -> str:
    assert main(["analyze", str(trace), "--format", style]) == 0
    return capsys.readouterr().out


def kept_folders(trace: Path) -> list[Path]:
    return [
        folder
        for index_folder in places.list_index_directories(trace)
        for folder in index_folder.glob("report-*")
    ]


@pytest.mark.parametrize("style", ["json", "text", "markdown"])
def test_the_second_report_is_the_first(
    trace: Path, capsys: pytest.CaptureFixture[str], style: str
) -> None:
    """It is the same byte for byte in every format, tables included."""
    assert kept_report.find(trace) is None
    first = report(trace, capsys, style)
    assert kept_report.find(trace) is not None
    assert report(trace, capsys, style) == first


def test_it_is_shown_without_reading_the_trace(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its files could be unreadable, as long as they are as they were."""
    first_report = report(trace, capsys)
    for file in trace.glob("*.arrow"):
        state = file.stat()
        file.write_bytes(bytes(state.st_size))
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert report(trace, capsys) == first_report
    assert main(["analyze", str(trace), "--again"]) == 3


@pytest.mark.slow
def test_whoever_made_an_index_has_the_report_too(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The index needs the report anyway: it is kept, and the same as `analyze` makes."""
    assert main(["index", str(trace)]) == 0
    capsys.readouterr()
    assert kept_report.find(trace) is not None
    kept = report(trace, capsys)
    assert main(["analyze", str(trace), "--again", "--format", "json"]) == 0
    assert capsys.readouterr().out == kept


def test_a_trace_that_changed(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of another state of the trace there is another report, and only that one is kept."""
    first_report = report(trace, capsys)
    next(trace.glob("worker-00003*")).unlink()
    assert kept_report.find(trace) is None
    assert report(trace, capsys) != first_report
    assert len(kept_folders(trace)) == 1


def test_code_that_changed(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other code said is not shown."""
    report(trace, capsys)
    monkeypatch.setattr(kept_report, "_digest_code", lambda: "another")
    assert kept_report.find(trace) is None


@pytest.mark.parametrize("name", ["report.json", "00-*.arrow"])
def test_a_damaged_report_is_computed_again(
    trace: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    first_report = report(trace, capsys)
    (folder,) = kept_folders(trace)
    for file in folder.glob(name):
        file.write_bytes(file.read_bytes()[:40])
    assert kept_report.find(trace) is None
    assert report(trace, capsys) == first_report
    assert kept_report.find(trace) is not None


def test_a_folder_that_cannot_be_written(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Then the user's cache keeps it."""
    (trace / places.INDEX_FOLDER).write_text("in the way")  # root may write anywhere
    first_report = report(trace, capsys)
    (folder,) = kept_folders(trace)
    assert not folder.is_relative_to(trace)
    assert report(trace, capsys) == first_report


def test_a_report_that_came_with_the_trace(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copied or unpacked report is not trusted, since anybody could have written it."""
    report(trace, capsys)
    (folder,) = kept_folders(trace)
    (folder / "report.json").write_text(
        (folder / "report.json").read_text().replace("rank", "moon")
    )
    copied = tmp_path / "copied"
    assert os.system(f"cp -a {trace} {copied}") == 0  # noqa: S605 - paths of this test
    assert places.compute_fingerprint(copied) == places.compute_fingerprint(trace)
    assert kept_report.find(copied) is None
    assert "moon" not in report(copied, capsys)


@pytest.mark.slow
def test_of_parts_the_latest_few(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They do not pile up, and none of them replaces that of the whole run."""
    report_of_run = report(trace, capsys)
    step_ranges = [
        f"{first_step}-{first_step + 5}" for first_step in range(kept_report.MOST_PARTS + 3)
    ]
    for steps in step_ranges:
        assert main(["analyze", str(trace), "--steps", steps]) == 0
    assert len(kept_folders(trace)) == 1 + kept_report.MOST_PARTS
    assert kept_report.find(trace, Choice.parse(steps=step_ranges[0])) is None
    assert kept_report.find(trace, Choice.parse(steps=step_ranges[-1])) is not None
    capsys.readouterr()
    assert report(trace, capsys) == report_of_run
    next(trace.glob("worker-00003*")).unlink()
    report(trace, capsys)
    assert len(kept_folders(trace)) == 1


@pytest.mark.slow
def test_a_part_that_is_shown_is_not_kept_as_the_run(trace: Path) -> None:
    """Neither its report nor its index is found when the trace is opened."""
    opening.explain_trace(tracelens.open(trace, steps="0-9"))
    assert opening.open_indexed(trace) is None
    assert kept_folders(trace) == []
    opening.explain_trace(tracelens.open(trace, steps="0-"))
    assert opening.open_indexed(trace) is not None
    assert kept_report.find(trace) is not None

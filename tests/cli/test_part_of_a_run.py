"""`tracelens analyze` explains some ranks, steps or a time of a run, reads only that, and says so."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.tiers import mark_slow

from tracelens.cli import main
from tracelens.distil import kept_report
from tracelens.model.choice import Choice
from tracelens.reports.schema import find_problems
from tracelens.simulator.synthetic import Fault, Scenario, random_clocks, write

SLOW = Scenario(
    ranks=8,
    ranks_per_host=4,
    steps=120,
    clocks=random_clocks(2),
    faults=(Fault("backprop", (5,), steps=(60, 120), factor=1.5),),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts") / "run"
    write(SLOW, folder)
    return folder


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is kept for the user is in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def report(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["analyze", *map(str, arguments), "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert find_problems(found) == []
    return found


def notes(found: dict[str, Any]) -> str:
    return " ".join(note["sentence"] for note in found["notes"] if note["kind"] == "chosen")


def test_only_files_of_the_ranks_are_opened(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others may be damaged: nothing of them is read, and none is reported missing."""
    report_of_sound = report(capsys, run, "--ranks", "2-3,5", "--again")
    spoilt = tmp_path / "spoilt"
    spoilt.mkdir()
    for file in run.glob("worker-*"):
        rank = int(file.name.split("-")[1])
        content = file.read_bytes() if rank in {2, 3, 5} else b"not a trace"
        (spoilt / file.name).write_bytes(content)
    report_of_spoilt = report(capsys, spoilt, "--ranks", "2-3,5")
    assert report_of_spoilt == report_of_sound
    assert report_of_spoilt["trace"]["ranks_seen"] == 3
    assert report_of_spoilt["trace"]["ranks_expected"] == 8
    assert report_of_spoilt["trace"]["selected"] == {"ranks": "2-3,5", "steps": None, "time": None}
    assert "only ranks 2-3,5 of 8 were read" in notes(report_of_spoilt)
    assert not any(
        f["kind"] in {"missing_rank", "hang", "truncated_trace"}
        for f in report_of_spoilt["findings"]
    )
    assert "'worker-" not in json.dumps(report_of_spoilt["notes"])


@pytest.mark.slow
def test_a_straggler_among_the_ranks_is_found(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its saving is an upper bound: a rank that was not read may be as slow."""
    report_of_run, part = (report(capsys, run, *some) for some in ((), ("--ranks", "3-6")))
    (late,) = (f for f in part["findings"] if f["kind"] == "straggler")
    (finding_of_run,) = (f for f in report_of_run["findings"] if f["kind"] == "straggler")
    assert late["ranks"] == finding_of_run["ranks"] == [5]
    assert late["phase"] == finding_of_run["phase"] == "backprop"
    assert late["interval"][0] == 0
    assert late["interval"][1] >= finding_of_run["saving"]
    assert late["cost"] is None
    assert "who waits for it is not known" in late["sentence"]
    assert "at most" in late["sentence"]


def test_no_straggler_where_none_was_read(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Waits for ranks that were not read are no fault of the network, and no all-clear either."""
    content = report(capsys, run, "--ranks", "0-3")
    assert not any(f["kind"] == "straggler" for f in content["findings"])
    accusing = {"exposed_communication", "congestion", "slow_link"}
    assert not any(f["kind"] in accusing for f in content["findings"])
    assert "came late to a collective is not known" in notes(content)
    assert content["tables"]["critical_path"] == content["tables"]["slack"] == []
    assert main(["analyze", str(run), "--ranks", "0-3"]) == 0
    assert "of the time in ranks 0-3" in capsys.readouterr().out


@pytest.mark.slow
def test_steps_are_all_that_counts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Job time and shares are those of the steps; a straggler outside of them is no finding."""
    early, late = (report(capsys, run, "--steps", steps) for steps in ("0-49", "70-"))
    assert not any(f["kind"] == "straggler" for f in early["findings"])
    (finding,) = (f for f in late["findings"] if f["kind"] == "straggler")
    assert (finding["ranks"], finding["steps"]) == ([5], [70, 119])
    assert (early["trace"]["steps"], late["trace"]["steps"]) == (50, 50)
    assert late["trace"]["selected"]["steps"] == "70-119"
    assert "only steps 70-119 of 120 were analyzed" in notes(late)
    whole = report(capsys, run)
    jobs = [finding["efficiency"]["job_ns"] for finding in (early, late, whole)]
    assert jobs[0] < jobs[1] < 0.6 * jobs[2]


def test_a_time_selects_the_steps_that_reach_into_it(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The steps that reach into it, of some ranks, too."""
    content = report(capsys, run, "--time", "300ms-1.2s", "--ranks", "4-7")
    assert content["trace"]["selected"]["time"] == "0.3-1.2"
    assert content["trace"]["selected"]["ranks"] == "4-7"
    first_step, last_step = map(int, content["trace"]["selected"]["steps"].split("-"))
    assert content["trace"]["steps"] == last_step - first_step + 1
    assert 0.9e9 < content["efficiency"]["job_ns"] < 1.0e9


@pytest.mark.parametrize(
    "part",
    mark_slow(
        [("--steps", "0-119"), ("--ranks", "0-7"), ("--time", "0-"), ("--steps", "0-")],
        [("--ranks", "0-7")],
    ),
)
def test_all_of_it_is_the_same_report(
    part: tuple[str, str], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Byte for byte: where nothing was left out, nothing is said of it."""
    whole = report(capsys, run)
    assert report(capsys, run, *part, "--again") == whole
    assert whole["trace"]["selected"] is None


@pytest.mark.slow
def test_one_that_is_kept_is_of_that_part(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A report of a part is never taken for the run's, nor for that of another part."""
    selections: list[tuple[str, ...]] = [
        (),
        ("--steps", "10-59"),
        ("--ranks", "4-7"),
        ("--time", "1-2"),
    ]
    fresh_reports = [report(capsys, run, *selection, "--again") for selection in selections]
    assert len({json.dumps(content, sort_keys=True) for content in fresh_reports}) == len(
        selections
    )
    assert [report(capsys, run, *selection) for selection in selections] == fresh_reports
    assert kept_report.find(run, Choice.parse(steps="10-59")) is not None
    assert kept_report.find(run, Choice.parse(steps="10-58")) is None


def test_folders_without_a_wanted_rank_are_not_read(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several folders of a run only those that hold one of the ranks."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for index, folder in enumerate(folders):
        folder.mkdir()
        for file in sorted(run.glob("worker-*"))[4 * index : 4 * index + 4]:
            (folder / file.name).write_bytes(file.read_bytes() if index == 0 else b"")
    found = report(capsys, *folders, "--ranks", "1-2")
    assert found["trace"]["ranks_seen"] == 2


@pytest.mark.slow
def test_where_the_work_is_done_does_not_matter(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The choice goes along to other processes."""
    part = ("--ranks", "2-6", "--steps", "30-80", "--again")
    assert report(capsys, run, *part, "--executor", "processes:2") == report(capsys, run, *part)


@pytest.mark.parametrize("style", ["text", "markdown"])
def test_every_format_names_the_part(
    run: Path, capsys: pytest.CaptureFixture[str], style: str
) -> None:
    assert main(["analyze", str(run), "--steps", "0-49", "--format", style]) == 0
    said = capsys.readouterr().out
    assert "only steps 0-49, as asked" in said
    assert "no straggler or fault in steps 0-49" in said or "1." in said


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (("--ranks", "9"), "--ranks 9: none of them is a worker of this run; it has ranks 0-7."),
        (("--ranks", "3-1"), "3 is not before 1; expected numbers such as"),
        (("--steps", "500-"), "this run has no step from 500 on; it has steps 0 to 119."),
        (("--steps", "x"), "--steps x: expected numbers such as"),
        (("--time", "70s-10s"), "--time 70s-10s: expected seconds from the run's begin"),
        (("--time", "1h-2h"), "Nothing is selected: times 3600-7200 s hold no step of this run"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    run: Path, capsys: pytest.CaptureFixture[str], asked: tuple[str, ...], sentence: str
) -> None:
    """Exit 2; the sentence names what was asked, and what there is."""
    assert main(["analyze", str(run), *asked]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1

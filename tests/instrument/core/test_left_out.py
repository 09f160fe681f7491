"""A trace that is not all that happened is analyzed, and says what it lacks."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import tracelens as tl
from tracelens.accounting import phases
from tracelens.cli import main

STEPS, PIECES = 400, 100


def train(folder: Path, marked: int | None = None, **options: Any) -> None:
    tl.start(folder, **options)
    forward, piece = tl.span("forward", kind="forward"), tl.span("piece", kind="forward")
    for step in range(STEPS):
        with tl.step(step), forward:
            for _ in range(PIECES):
                with piece:
                    pass
        if step == marked:
            tl.keep()
    tl.stop()


def printed_json(folder: Path, capsys: pytest.CaptureFixture[str], verb: str) -> dict[str, Any]:
    """Run a verb and parse its JSON output."""
    assert main([verb, str(folder), "--format", "json"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def faults_in(report: dict[str, Any]) -> set[str]:
    """Return its kinds of fault; other tests have made groups of ranks in this process."""
    return {f["kind"] for f in report["findings"] if f["category"] == "fault"} - {"missing_rank"}


def notes_of(folder: Path) -> list[str]:
    return [note.sentence for note in tl.open(folder).notes if note.kind == "chosen"]


def test_detail_of_some_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps between bursts are no gaps: their phases are kept, and counts are exact."""
    train(tmp_path, keep="every:10:2")
    trace = tl.open(tmp_path)
    assert trace.steps["step"].to_list() == list(range(STEPS))
    events = trace.events.collect()
    assert events.filter(name="forward").height == STEPS
    assert events.filter(name="piece").height == STEPS // 5 * PIECES
    (note,) = notes_of(tmp_path)
    assert f"2 of every 10 steps have all their events; of the others {320 * PIECES:,} were" in note
    assert note in printed_json(tmp_path, capsys, "info")["notes"]
    report = printed_json(tmp_path, capsys, "analyze")
    assert report["trace"]["steps"] == STEPS
    assert not faults_in(report)


def test_last_steps_and_marked_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The gap between what was marked and the end is no fault, and the note says how it counts."""
    train(tmp_path, marked=150, keep="last:50")
    steps = tl.open(tmp_path).steps["step"].to_list()
    assert {*range(102, 151), *range(350, STEPS)} <= {*steps}
    assert len(steps) < STEPS
    (note,) = notes_of(tmp_path)
    assert "only the last 50 steps were kept" in note
    assert "counts nowhere" in note
    assert re.search(
        r"Steps left out, from 0 to 34\d, took .* on average, the longest, step \d+,", note
    )
    report = printed_json(tmp_path, capsys, "analyze")
    assert not faults_in(report)
    check_whole(report, tmp_path)


def check_whole(report: dict[str, Any], folder: Path) -> None:
    """All of the job is in the shares, and a gap that is much longer than the rest is in none."""
    trace = tl.open(folder)
    shares = {bar["cause"]: bar["share"] for bar in report["efficiency"]["waterfall"]}
    assert report["efficiency"]["achieved"] + sum(shares.values()) == pytest.approx(1)
    steps, times = trace.steps, phases.run(trace).times
    assert times["ns"].sum() == (steps["end_ns"] - steps["start_ns"]).sum()
    assert shares["outside"] == pytest.approx(0, abs=1e-9)


@pytest.mark.filterwarnings("ignore:TraceLens. recording stopped:RuntimeWarning")
def test_budget_used_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What came after is counted, and the report says that times are lower bounds."""
    train(tmp_path, budget="1MB")
    report = printed_json(tmp_path, capsys, "analyze")
    (lost,) = [f for f in report["findings"] if f["kind"] == "dropped_events"]
    kept = tl.open(tmp_path).processes["events"].item()
    assert lost["evidence"]["dropped"] == {
        "the byte budget was used up": STEPS * (PIECES + 2) - kept
    }
    assert notes_of(tmp_path) == []

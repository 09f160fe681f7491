"""Long garbage collections are spans of kind `gc`, on the thread and in the step that they stop."""

import sys
from pathlib import Path
from typing import Any

import pytest
from support.launch.harmless import RECORDERS
from support.launch.record import run_record
from support.launch.recording import read_one

from tracelens import load
from tracelens.accounting import phases
from tracelens_instrument.hooks.garbage import LEAST_NS

pytestmark = pytest.mark.end_to_end

# A full collection visits all that is held; one of the youngest objects visits none of them, and takes
# long only where the machine lets it wait.
SHORT = 100
USUAL = str(RECORDERS[0].values[0])
PROGRAM = f"""
import gc, threading
import tracelens as tl

gc.disable()
held = [[] for _ in range(500_000)]
gc.collect()
FORWARD = tl.span("forward", kind="forward")
for number in range(4):
    with tl.step(number), FORWARD:
        for _ in range({SHORT}):
            gc.collect(0)
        if number == 2:
            gc.collect()
        if number == 3:
            thread = threading.Thread(target=gc.collect, name="other")
            thread.start()
            thread.join()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a recording with the usual recorder; tests only read it."""
    folder = tmp_path_factory.mktemp("garbage")
    record_training(folder, TRACELENS_NATIVE=USUAL)
    return folder


def record_training(folder: Path, **variables: str) -> list[dict[str, Any]]:
    script = folder / "train.py"
    script.write_text(PROGRAM)
    command = ("--no-verdict", "--out", folder / "trace", "--", sys.executable, script)
    done = run_record(*command, cwd=None, **variables)
    assert done.returncode == 0, done.stderr
    return read_one(folder / "trace").events


@pytest.mark.parametrize("recorder", RECORDERS)
def test_a_long_collection_is_a_span(recorder: str, folder: Path, tmp_path: Path) -> None:
    """Those of a millisecond and more, after recording began; on the thread that was stopped."""
    if recorder == USUAL:
        events = read_one(folder / "trace").events
    else:
        events = record_training(tmp_path, TRACELENS_NATIVE=recorder)
    collections = [event for event in events if event["kind"] == "gc"]
    assert 2 <= len(collections) < SHORT
    assert all(event["duration_ns"] >= LEAST_NS for event in collections)
    assert all(event["status"] == "closed" for event in collections)
    training = next(event for event in events if event["kind"] == "forward")["thread"]
    seen = {(event["step"], event["thread"] == training) for event in collections}
    assert {(2, True), (3, False)} <= seen
    assert {step for step, is_training in seen if not is_training} == {3}


def test_it_is_time_of_its_own(folder: Path) -> None:
    """Of the phase that it stops it is taken off."""
    events = read_one(folder / "trace").events
    training = next(event for event in events if event["kind"] == "forward")["thread"]
    lasted = [e["duration_ns"] for e in events if (e["kind"], e["thread"]) == ("gc", training)]
    assert lasted
    assert phases.run(load.open(folder / "trace")).sum_ns_by_window("gc").sum() == sum(lasted)


@pytest.mark.slow
def test_it_is_no_part_of_steps_alone(tmp_path: Path) -> None:
    kinds = {event["kind"] for event in record_training(tmp_path, TRACELENS_DETAIL="step")}
    assert kinds == {"step", "forward"}

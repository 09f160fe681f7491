"""A step stamps all that happens in it, carries its work, and rules out what hooks believe."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from support.launch.recording import read_one

import tracelens as tl
from tracelens_instrument import recorder, recording
from tracelens_instrument.core import clock

if TYPE_CHECKING:
    from pathlib import Path


def test_step_stamps_events_of_all_threads(trace: Path) -> None:
    """Inside they have its number, outside none; a value of their own wins."""
    span = tl.span("piece")

    def use() -> None:
        with span:
            pass

    use()
    with tl.step(7):
        use()
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        with span(step=3):
            pass
    use()
    tl.stop()
    recorded = read_one(trace)
    assert [event["step"] for event in recorded.named("piece")] == [-1, 7, 7, 3, -1]
    step = recorded.one("step")
    assert (step["kind"], step["step"], step["depth"]) == ("step", 7, 0)


def test_work_is_recorded_as_counters(trace: Path) -> None:
    """Samples and tokens stand beside the step, if the step was completed."""
    with tl.step(1, samples=32, tokens=2048):
        pass
    with tl.step(2, samples=16):
        pass
    with pytest.raises(KeyError), tl.step(3, samples=8):
        raise KeyError
    tl.stop()
    recorded = read_one(trace)
    samples = recorded.named("samples")
    assert [(e["step"], e["value"], e["kind"]) for e in samples] == [
        (1, 32.0, "step"),
        (2, 16.0, "step"),
    ]
    assert [(e["step"], e["value"]) for e in recorded.named("tokens")] == [(1, 2048.0)]
    assert [e["status"] for e in recorded.named("step")] == ["closed", "closed", "exception"]


def test_nested_steps_restore(trace: Path) -> None:
    """An inner step gives back to the outer one what it took."""
    span = tl.span("piece")
    with tl.step(1):
        with tl.step(2), span:
            pass
        with span:
            pass
    tl.stop()
    assert [event["step"] for event in read_one(trace).named("piece")] == [2, 1]


def test_implicit_steps(trace: Path) -> None:
    """A hook may begin the next step without ending the one before."""
    span = tl.span("piece")
    for number in range(3):
        recorder.begin_step(number)
        with span:
            pass
    recorder.end_step()
    recorder.end_step()
    with span:
        pass
    tl.stop()
    recorded = read_one(trace)
    assert [event["step"] for event in recorded.named("piece")] == [0, 1, 2, -1]
    steps = recorded.named("step")
    assert [event["step"] for event in steps] == [0, 1, 2]
    ends = [event["start_ns"] + event["duration_ns"] for event in steps]
    assert ends[0] <= steps[1]["start_ns"]


def test_users_steps_rule_out_implicit_ones(trace: Path) -> None:
    """Once the user says where steps are, what a hook had begun is taken back, and no more begins."""
    span = tl.span("piece")
    for number in range(3):
        recorder.begin_step(number + 100)
        with tl.step(number):
            recorder.begin_step(number + 200)
            with span:
                pass
            recorder.end_step()
        recorder.end_step()
    tl.stop()
    recorded = read_one(trace)
    assert [event["step"] for event in recorded.named("step")] == [0, 1, 2]
    assert [event["step"] for event in recorded.named("piece")] == [0, 1, 2]


@pytest.mark.parametrize("number", [2**31, "three", None, -(2**40)])
def test_step_that_is_no_number(trace: Path, number: Any) -> None:
    """It costs the number and no more."""
    with tl.step(number), tl.span("piece"):
        pass
    tl.stop()
    recorded = read_one(trace)
    assert recorded.one("step")["step"] == -1
    assert recorded.one("piece")["step"] == -1


def test_clocks_are_read_again_during_the_run(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ten seconds, at the end of a step."""
    moment = clock.now()
    monkeypatch.setattr(recording, "now", lambda: moment)
    for _ in range(25):
        moment += 10**9
        with tl.step(1):
            pass
    tl.stop()
    clocks = read_one(trace).side.clocks
    assert [reading.method for reading in clocks] == ["local"] * 4  # start, 10 s, 20 s, stop

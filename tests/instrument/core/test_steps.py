"""A step stamps all that happens in it, carries its work, and rules out what hooks believe."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from support.launch.recording import read_one

import tracelens as tl
from tracelens.schema.record import RECORD_BYTES
from tracelens_instrument import recorder, recording
from tracelens_instrument.core import clock
from tracelens_instrument.lifecycle import current_recording
from tracelens_instrument.storage.segments import SEGMENT_BYTES


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
    """A completed step has its samples and tokens as counters."""
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


def test_a_new_step_ends_the_one_before(trace: Path) -> None:
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
    monkeypatch.setattr(recording, "_LOOK_EVERY_NS", 0)  # by the true clock, which C reads
    for _ in range(25):
        moment += 10**9
        with tl.step(1):
            pass
    tl.stop()
    clocks = read_one(trace).side.clocks
    assert [reading.method for reading in clocks] == ["local"] * 4  # start, 10 s, 20 s, stop


def test_boundaries_that_are_passed_over_leave_the_room_exact(trace: Path) -> None:
    """Steps of many sizes, in several segments: what was used is known to a slot."""
    span, slots = tl.span("piece"), SEGMENT_BYTES // RECORD_BYTES - 1
    recorded = 0
    for number in range(700):
        pieces = 3000 if number % 300 == 7 else number % 11
        with tl.step(number, samples=2.5):
            for _ in range(pieces):
                with span:
                    pass
        recorded += pieces + 2
        if number % 50 == 49:
            current = current_recording()
            assert current is not None
            current.at_step_boundary()
            assert current.storage._used_slots == recorded  # what it prepares follows from it
            assert current.segment.number * slots <= recorded
    tl.stop()
    assert len(read_one(trace).events) == recorded


def test_a_step_is_called_like_a_function(trace: Path) -> None:
    """By position or name, and with nothing else; entered once more, it is another one."""
    for wrong in ({}, {"number": 1, "steps": 2}):
        with pytest.raises(TypeError):
            tl.step(**wrong)
    with pytest.raises(TypeError):
        tl.step(1, 2, 3, 4)  # type: ignore[call-arg]  # as above
    step = tl.step(number=4, tokens=7, samples=None)
    for _ in range(2):
        with step:
            pass
    tl.stop()
    recorded = read_one(trace)
    assert [event["step"] for event in recorded.named("step")] == [4, 4]
    assert [event["value"] for event in recorded.named("tokens")] == [7.0, 7.0]


def test_handles_made_at_each_use_are_apart(trace: Path) -> None:
    """Coroutines that take turns inside spans of one name end each its own."""

    async def work(nap: float) -> None:
        with tl.span("nap", kind="data"):
            await asyncio.sleep(nap)

    async def run_both() -> None:
        await asyncio.gather(work(0.0), work(0.05))

    asyncio.run(run_both())
    tl.stop()
    first, second = read_one(trace).named("nap")
    assert first["start_ns"] <= second["start_ns"]
    assert first["duration_ns"] < second["duration_ns"]

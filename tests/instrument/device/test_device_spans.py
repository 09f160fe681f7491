"""`tl.span(device=True)`: an ordinary span without a device, timed there with one, never any harm."""

import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.device.simulated_device import SimulatedDevice
from support.launch.recording import Recorded, read_one

import tracelens as tl
from tracelens_instrument.device import timebase
from tracelens_instrument.device.spans import DeviceSpan

MS = 1_000_000
FORWARD = tl.span("forward", kind="forward", device=True)
TIMES = ("device_start_ns", "device_duration_ns", "stream")


@pytest.fixture(name="device")
def simulated_device(monkeypatch: pytest.MonkeyPatch) -> SimulatedDevice:
    """A simulated device that runs by the machine's own clock."""
    simulated = SimulatedDevice(clock=time.monotonic_ns, ahead_ns=-(10**12))
    monkeypatch.setattr(timebase, "find", lambda: simulated)
    return simulated


def has_device_times(event: dict[str, Any]) -> bool:
    is_known = [event[name] is not None for name in TIMES]
    assert all(is_known) or not any(is_known)
    return all(is_known)


def stop_and_read(trace: Path) -> Recorded:
    tl.stop()
    return read_one(trace)


def test_without_a_device_it_is_a_span(trace: Path) -> None:
    """In every form of use; and nothing in the trace speaks of devices."""
    with FORWARD:
        pass
    with FORWARD(nbytes=3, bucket=1):
        pass
    FORWARD.begin(seq=2).end()
    read = stop_and_read(trace)
    assert [event["status"] for event in read.named("forward")] == ["closed"] * 3
    assert not any(map(has_device_times, read.events))
    assert {reading.method for reading in read.side.clocks} == {"local"}


def test_with_a_device_it_is_timed_there(trace: Path, device: SimulatedDevice) -> None:
    """What runs 30 ms late on the device has its place in its own columns."""
    with tl.step(0):
        device.queue(30 * MS)
        with FORWARD(nbytes=3):
            device.queue(5 * MS)
    read = stop_and_read(trace)
    event = read.one("forward")
    assert event["device_duration_ns"] == pytest.approx(5 * MS, abs=1000)
    assert event["duration_ns"] < event["device_start_ns"] - event["start_ns"]
    assert (event["bytes"], event["step"], event["request"]) == (3, 0, None)
    rows = {row.index: row.name for row in read.side.threads}
    assert rows[event["stream"]] == "simulated:0 stream 0"


def test_its_clock_is_tied_to_the_hosts(trace: Path, device: SimulatedDevice) -> None:
    """At the begin and at the end; the window holds the truth, which is that both run alike."""
    with FORWARD:
        device.queue(MS)
    readings = [r for r in stop_and_read(trace).side.clocks if r.method == "device"]
    assert [reading.device for reading in readings] == [0, 0]
    for reading in readings:
        assert reading.offset_ns is not None
        assert abs(reading.offset_ns) <= reading.window_ns + readings[0].window_ns


def test_nested_spans_and_threads_keep_their_own(trace: Path, device: SimulatedDevice) -> None:
    """Also the same handle within itself, and in two threads at the same time."""
    device.latency_ns = 0

    def nest() -> None:
        with FORWARD:
            device.queue(MS)
            with FORWARD(nbytes=1):
                device.queue(2 * MS)

    threads = [threading.Thread(target=nest) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = stop_and_read(trace).named("forward")
    assert len(events) == 4
    assert all(map(has_device_times, events))
    assert len({event["device_start_ns"] for event in events}) >= 2


@pytest.mark.usefixtures("device")
def test_an_exception_ends_both(trace: Path) -> None:
    """The span is closed by it, and the device's part is known."""
    with pytest.raises(ValueError, match="mine"), FORWARD:
        raise ValueError("mine")
    event = stop_and_read(trace).one("forward")
    assert event["status"] == "exception"
    assert has_device_times(event)


def test_a_discarded_span_frees_its_device_event(trace: Path, device: SimulatedDevice) -> None:
    """And its event on the device is used again."""
    FORWARD.begin().discard()
    assert device.reused == 1
    assert stop_and_read(trace).named("forward") == []


@pytest.mark.usefixtures("device")
def test_a_request_of_its_own_is_kept(trace: Path) -> None:
    with FORWARD(request=77):
        pass
    event = stop_and_read(trace).one("forward")
    assert event["request"] == 77
    assert not has_device_times(event)


def test_a_failing_device_is_left_alone(
    trace: Path, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning, and host spans as ever."""
    with FORWARD:
        pass

    def fail() -> None:
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(device, "record_event", fail)
    with pytest.warns(RuntimeWarning, match="device times are not recorded any more.*illegal"):
        FORWARD.begin().end()
    with FORWARD:
        pass
    assert len(stop_and_read(trace).named("forward")) == 3


def test_a_device_that_fails_between_steps_is_left_alone(
    trace: Path, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of work that was queued long ago shows when the device is asked."""

    def fail(_event: object) -> bool:
        raise RuntimeError("device-side assert")

    step = tl.step(0)
    step.__enter__()
    FORWARD.begin().end()
    monkeypatch.setattr(device, "is_over", fail)
    with pytest.warns(RuntimeWarning, match="device-side assert"):
        step.__exit__(None, None, None)
    with tl.step(1), FORWARD:
        pass
    events = stop_and_read(trace).named("forward")
    assert [event["status"] for event in events] == ["closed", "closed"]


def test_what_the_device_never_told_is_counted(
    trace: Path, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that hangs costs the end of the recording a limited time; the count is in the trace."""
    monkeypatch.setattr("tracelens_instrument.device.times.STOP_LIMIT_S", 0.01)
    with FORWARD:
        pass
    device.queue(10**15)
    for _ in range(7):
        with FORWARD:
            pass
    found = stop_and_read(trace)
    assert found.side.dropped == {"device times that were not known in time": 7}
    assert [has_device_times(event) for event in found.named("forward")] == [True] + [False] * 7


def test_off_it_does_nothing(device: SimulatedDevice) -> None:
    """Nothing records, so nothing is asked of the device."""
    with FORWARD:
        FORWARD.begin().end()
    assert device.events == []


@pytest.mark.usefixtures("device")
def test_entered_before_recording_began(tmp_path: Path) -> None:
    """Such a use is not recorded, and disturbs none."""
    with FORWARD:
        tl.start(tmp_path / "trace")
    with FORWARD:
        pass
    assert len(stop_and_read(tmp_path / "trace").named("forward")) == 1


def test_a_handle_can_be_sent_elsewhere() -> None:
    """Handles in modules and objects are pickled with them."""
    again = pickle.loads(pickle.dumps(FORWARD))  # noqa: S301 - our own
    assert isinstance(again, DeviceSpan)
    assert again._span.definition == FORWARD._span.definition

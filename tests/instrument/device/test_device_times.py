"""Spans are timed on a device without ever waiting for it, and what is not known in time is counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from support.device.simulated_device import SimulatedDevice
from support.launch.recording import read_one

import tracelens as tl
from tracelens_instrument.device.times import MAX_WAITING_SPANS, DeviceTimer, Timing

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.schema.side import ClockReading

MS = 1_000_000
ROUNDING_NS = 300
_WORK = tl.span("work")


@dataclass
class Timed:
    """The times of one simulated device, and the truth of each span: by name, begin and end."""

    device: SimulatedDevice = field(default_factory=SimulatedDevice)
    truth: dict[int, tuple[int, int]] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    told: list[ClockReading] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.times = DeviceTimer(
            self.device, self.told.append, lambda: self.lost.append(1), self.device.now
        )

    def begin_timing(self) -> Timing:
        """Begin to time what comes next on the current stream."""
        name = self.times.next_request()
        assert name is not None
        timing = self.times.begin(name, None)
        assert timing is not None
        return timing

    def span(self, *ns: int) -> int:
        """Time some work on the current stream; return its name."""
        timing = self.begin_timing()
        ran = [self.device.queue(each) for each in ns]
        self.times.end(timing)
        # What stands on the host, by the name that joins both.
        _WORK.complete(self.device.now(), self.device.now(), request=timing.request_id)
        self.truth[timing.request_id] = (ran[0][0], ran[-1][1])
        return timing.request_id


def events_with_device_times(folder: Path) -> list[dict[str, Any]]:
    """Return the spans with device times so far, the recording being open."""
    return [event for event in read_one(folder).named("work") if event["stream"] is not None]


@pytest.mark.slow
def test_late_work_is_timed_when_it_is_over(trace: Path) -> None:
    """The device runs 50 ms late: nothing is known while it does, all is afterwards, and exactly."""
    timed = Timed(SimulatedDevice(drift_ppm=30.0, ahead_ns=-(10**11)))
    timed.device.queue(50 * MS)
    truths = [timed.truth[timed.span(2 * MS, 1 * MS)] for _ in range(20)]
    timed.times.at_step_boundary()
    assert events_with_device_times(trace) == []
    timed.device.work(200 * MS)
    timed.times.at_step_boundary()
    timed_events = events_with_device_times(trace)
    assert len(timed_events) == 20
    origin = timed.told[0].monotonic_ns
    for event, (begin_ns, end_ns) in zip(timed_events, truths, strict=True):
        since = event["device_start_ns"] - origin
        assert since == pytest.approx((begin_ns - origin) * (1 + 30e-6), abs=10_000)
        # Between the events lies the work, and at most what the calls themselves took.
        assert event["device_duration_ns"] == pytest.approx(end_ns - begin_ns, abs=ROUNDING_NS)
    assert timed.lost == []


def test_streams_end_in_any_order(trace: Path) -> None:
    """Work on a quick stream is known, while work that was issued before on a slow one is not."""
    timed = Timed()
    timed.device.stream = 1
    timed.span(500 * MS)
    timed.device.stream = 2
    timed.span(1 * MS)
    timed.device.work(10 * MS)
    timed.times.at_step_boundary()
    (event,) = events_with_device_times(trace)
    rows = {row.index: row for row in read_one(trace).side.threads}
    assert rows[event["stream"]].name == "simulated:0 stream 2"
    assert rows[event["stream"]].device == 0
    assert rows[event["stream"]].in_flight


def test_a_busy_device_is_asked_little(trace: Path) -> None:
    """However much is waiting, a step boundary asks no more than a few questions in vain."""
    timed = Timed()
    timed.device.queue(10_000 * MS)
    for _ in range(1000):
        timed.span(MS)
    before = timed.device.host_ns
    timed.times.at_step_boundary()
    assert timed.device.host_ns - before < 50 * timed.device.call_ns
    assert events_with_device_times(trace) == []


def test_the_oldest_are_lost_and_counted(trace: Path) -> None:
    """A device that never gets there costs a bounded amount of memory; what is lost is counted."""
    timed = Timed()
    timed.device.queue(10**15)
    for _ in range(MAX_WAITING_SPANS + 100):
        timed.span(1)
    assert len(timed.lost) == 100
    timed.times.finish(limit_s=0.0)
    assert len(timed.lost) == MAX_WAITING_SPANS + 100
    assert events_with_device_times(trace) == []


def test_without_steps_all_is_timed(trace: Path) -> None:
    """Where no step ends, spans themselves ask, once enough are waiting."""
    timed = Timed()
    for _ in range(5000):
        timed.span(10)
        timed.device.work(MS)
    assert timed.lost == []
    assert len(events_with_device_times(trace)) > 3000


def test_the_end_gets_some_time(trace: Path) -> None:
    """At the end the device gets some time to come to its own end."""
    timed = Timed()
    timed.device.queue(MS // 10)
    timed.span(1000)
    assert events_with_device_times(trace) == []
    timed.times.finish(limit_s=30.0)
    assert len(events_with_device_times(trace)) == 1
    assert timed.lost == []
    assert timed.times.next_request() is None


def test_no_graph_is_disturbed(trace: Path) -> None:
    """While a stream is captured, nothing is recorded on it nor asked; afterwards all goes on."""
    timed = Timed()
    timed.span(MS)
    timed.device.work(10 * MS)
    timed.device.captures = True
    assert timed.times.next_request() is None
    timed.times.at_step_boundary()
    assert events_with_device_times(trace) == []
    timed.device.captures = False
    timed.times.at_step_boundary()
    assert len(events_with_device_times(trace)) == 1


def test_events_are_used_again(trace: Path) -> None:
    """Both events of a span go back to the device once its times are known, or it is dropped."""
    timed = Timed()
    timed.span(MS)
    timed.times.drop_timing(timed.begin_timing())
    timed.device.work(10 * MS)
    timed.times.at_step_boundary()
    assert len(events_with_device_times(trace)) == 1
    assert timed.device.reused == 3

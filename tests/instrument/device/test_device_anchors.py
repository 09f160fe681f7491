"""Anchors tie a device's clock to the host's, within windows that hold, however long a run is."""

import random

from hypothesis import given
from hypothesis import strategies as st
from support.device.simulated_device import SimulatedDevice

from tracelens.schema.side import ClockReading
from tracelens_instrument.device.timebase import ANCHOR_EVERY_NS, Anchors

SECOND = 10**9
# Between two anchors the device tells milliseconds as a 32-bit float: half its step at 16 seconds.
ROUNDING_NS = 500


def take_anchors(
    device: SimulatedDevice, seconds: list[float]
) -> tuple[Anchors, list[ClockReading]]:
    """Take anchors with these pauses between them, in seconds."""
    readings: list[ClockReading] = []
    anchors = Anchors(device, readings.append, device.now)
    for pause in seconds:
        device.work(round(pause * SECOND))
        anchors.look()
        anchors.cast_if_due()
    device.work(SECOND)
    anchors.look()
    return anchors, readings


def truth(device: SimulatedDevice, reading: ClockReading, first: ClockReading) -> float:
    """The offset at a reading, once the device's clock is set to the host's at the first one."""
    origin = first.monotonic_ns - device.shown(first.monotonic_ns)
    return reading.monotonic_ns - (device.shown(reading.monotonic_ns) + origin)


@given(
    latency=st.integers(1_000, 50_000),
    late=st.integers(0, 200_000),
    ahead=st.integers(-(10**15), 10**15),
    drift=st.floats(-100, 100),
    pauses=st.lists(st.floats(0.1, 8.0), max_size=20),
)
def test_true_offsets_lie_within_their_windows(
    latency: int, late: int, ahead: int, drift: float, pauses: list[float]
) -> None:
    """The true offset lies within each reading's window, give or take what rounding adds up to."""
    draw = random.Random(late)
    device = SimulatedDevice(
        latency_ns=latency,
        ahead_ns=ahead,
        drift_ppm=drift,
        apart_ns=lambda: draw.randint(0, late),
    )
    _, readings = take_anchors(device, pauses)
    assert readings
    for number, reading in enumerate(readings):
        assert reading.offset_ns is not None
        error = abs(reading.offset_ns - truth(device, reading, readings[0]))
        windows = (reading.window_ns + readings[0].window_ns) / 2
        drifted = windows * abs(drift) * 1e-6
        assert error <= windows + drifted + ROUNDING_NS * (number + 1)


def test_an_idle_stream_is_tied_sharply() -> None:
    """The window is little more than the device's latency, and the offset far better than that."""
    device = SimulatedDevice(latency_ns=5_000, ahead_ns=-(10**14), drift_ppm=20.0)
    _, told = take_anchors(device, [6.0] * 10)
    assert len(told) == 11
    assert max(reading.window_ns for reading in told) < 10_000


def test_a_day_does_not_wear_it_out() -> None:
    """Measured in a chain, it stays sharp; from one origin it would be wrong by milliseconds."""
    device = SimulatedDevice(drift_ppm=-15.0)
    _, readings = take_anchors(device, [ANCHOR_EVERY_NS / SECOND + 0.001] * 17_000)
    last = readings[-1]
    assert last.monotonic_ns - readings[0].monotonic_ns > 84_000 * SECOND
    assert last.offset_ns is not None
    # Rounding makes the device's clock wander, slowly: from one reading to the next it is sharp.
    for reading, next_reading in zip(readings[-100:], readings[-99:], strict=False):
        assert reading.offset_ns is not None
        assert next_reading.offset_ns is not None
        drifted = truth(device, next_reading, readings[0]) - truth(device, reading, readings[0])
        assert abs(next_reading.offset_ns - reading.offset_ns - drifted) <= 10_000


def test_an_anchor_that_is_late_is_seen_later() -> None:
    """A device that is too busy makes a wide window, never a wrong one; meanwhile none is cast anew."""
    device = SimulatedDevice(apart_ns=lambda: SECOND)
    readings: list[ClockReading] = []
    anchors = Anchors(device, readings.append, device.now)
    assert readings == []
    waiting = anchors.latest_anchor
    device.work(9 * SECOND // 10)
    anchors.look()
    anchors.cast_if_due()
    assert readings == []
    assert anchors.latest_anchor is waiting
    device.work(SECOND)
    anchors.look()
    (reading,) = readings
    assert reading.window_ns > SECOND
    assert waiting.device_ns == reading.monotonic_ns


def test_an_anchor_that_was_late_is_soon_cast_again() -> None:
    """One blunt reading does not stand alone for five seconds."""
    late = [40_000_000]
    device = SimulatedDevice(apart_ns=lambda: late.pop() if late else 0)
    readings: list[ClockReading] = []
    anchors = Anchors(device, readings.append, device.now)
    for _ in range(20):
        device.work(SECOND // 20)
        anchors.look()
        anchors.cast_if_due()
    blunt, sharp = readings
    assert blunt.window_ns > 40_000_000
    assert sharp.window_ns < 10_000

"""The CUDA layer does what the recorder takes for granted of a device's clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from support.device.gpu import gpu, torch
from support.imports import LateModule

if TYPE_CHECKING:
    from tracelens_instrument.device.cuda import CudaClock

cuda: Any = LateModule("tracelens_instrument.device.cuda")
pytestmark = gpu

CYCLES = 50_000_000  # tens of milliseconds


def await_event(clock: CudaClock, event: object, limit_s: float = 10.0) -> None:
    """Wait by asking, as the recorder does at the end."""
    deadline_s = time.monotonic() + limit_s
    while not clock.is_over(event):
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_an_event_is_over_when_the_stream_has_come_to_it() -> None:
    clock = cuda.CudaClock(torch.cuda.current_device())
    torch.cuda.synchronize()
    torch.cuda._sleep(CYCLES)
    recorded = clock.record_event()
    assert recorded is not None
    assert not clock.is_over(recorded[0])
    await_event(clock, recorded[0])


def test_time_between_events_is_the_devices() -> None:
    """As long as the work between them, which the host did not wait for."""
    clock = cuda.CudaClock(torch.cuda.current_device())
    torch.cuda.synchronize()
    began = time.monotonic_ns()
    first_event = clock.record_event()
    torch.cuda._sleep(CYCLES)
    second_event = clock.record_event()
    queued = time.monotonic_ns() - began
    assert first_event is not None
    assert second_event is not None
    torch.cuda.synchronize()
    took = time.monotonic_ns() - began
    between = clock.elapsed_ns_between(first_event[0], second_event[0])
    assert queued < between < took


def test_a_stream_apart_does_not_wait_for_the_others() -> None:
    """So that an anchor's window stays narrow while the device computes."""
    clock = cuda.CudaClock(torch.cuda.current_device())
    await_event(clock, clock.record_event_apart())
    torch.cuda.synchronize()
    torch.cuda._sleep(CYCLES)
    busy = clock.record_event()
    assert busy is not None
    await_event(clock, clock.record_event_apart())
    assert not clock.is_over(busy[0])
    torch.cuda.synchronize()


def test_streams_are_told_apart() -> None:
    """By the numbers that PyTorch gives them."""
    clock = cuda.CudaClock(torch.cuda.current_device())
    current_event = clock.record_event()
    with torch.cuda.stream(torch.cuda.Stream()):
        side_event = clock.record_event()
    assert current_event is not None
    assert side_event is not None
    assert current_event[1] != side_event[1]
    torch.cuda.synchronize()
    # Also backwards: an anchor may be passed after the span that is measured from it.
    assert clock.elapsed_ns_between(current_event[0], side_event[0]) == -clock.elapsed_ns_between(
        side_event[0], current_event[0]
    )


def test_events_are_used_again() -> None:
    """What was given back is recorded anew."""
    clock = cuda.CudaClock(torch.cuda.current_device())
    event = clock.record_event_apart()
    await_event(clock, event)
    clock.reuse_events(event)
    assert clock.record_event_apart() is event
    torch.cuda.synchronize()


def test_a_capture_is_left_alone() -> None:
    """Nothing is recorded, and nothing may be asked, while this thread captures a graph."""
    clock = cuda.CudaClock(torch.cuda.current_device())
    values = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values += 1
        assert clock.record_event() is None
        assert not clock.can_query()
    graph.replay()
    torch.cuda.synchronize()
    assert values.tolist() == [1.0] * 8
    assert clock.can_query()

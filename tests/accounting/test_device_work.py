"""Where work was timed on a device, its time counts; the thread that queued it comes last."""

from typing import Any

import polars as pl
from support.runs.traces import call, span, trace_of

from tracelens.accounting import phases
from tracelens.load import prepare

LENGTH = 100


def on_device(start: int, end: int) -> dict[str, Any]:
    return {"device_start_ns": start, "device_duration_ns": end - start, "stream": 5}


def segments_of_step(*rows: dict[str, Any]) -> list[tuple[int, int, str, str | None]]:
    """Divide a step of 100 ns: (start, end, category, name)."""
    step = span(0, "step", 0, LENGTH, step=0)
    trace = prepare(trace_of([step, *rows]))
    columns = [pl.col("category").cast(pl.String), pl.col("name").cast(pl.String)]
    accounted = phases.run(trace)
    assert accounted.times["ns"].sum() == LENGTH
    return accounted.segments.select("start_ns", "end_ns", *columns).rows()


def test_the_device_counts_not_the_queueing() -> None:
    """The thread queues forward and backprop together and waits; the device runs them in turn."""
    assert segments_of_step(
        span(0, "forward", 0, 5, **on_device(10, 40)),
        span(0, "backprop", 5, 10, **on_device(40, 90)),
        span(0, "device", 10, 100, "synchronize"),
    ) == [
        (0, 5, "forward", "forward"),  # nothing to do for the device: it waits for the queueing
        (5, 10, "backprop", "backprop"),
        (10, 40, "forward", "forward"),
        (40, 90, "backprop", "backprop"),
        (90, 100, "idle", "synchronize"),
    ]


def test_a_batch_that_loads_beside_the_device_is_free() -> None:
    """Only what the device has to wait for is loading."""
    assert segments_of_step(
        span(0, "forward", 0, 10, **on_device(10, 40)),
        span(0, "data", 10, 60),
        span(0, "update", 60, 61, **on_device(61, 100)),
    ) == [
        (0, 40, "forward", "forward"),
        (40, 60, "data", "data"),
        (60, 100, "update", "update"),
    ]


def test_communication_beside_nothing_is_exposed() -> None:
    """A reduction is transfer while the device runs nothing else, even if work is being queued."""
    segments = segments_of_step(
        span(0, "backprop", 0, 10, **on_device(0, 50)),
        call(0, 0, 5, 6, **on_device(30, 80)),
        span(0, "update", 10, 70, **on_device(80, 100)),
    )
    assert [(start, end, category) for start, end, category, _ in segments] == [
        (0, 50, "backprop"),
        (50, 80, "transfer"),
        (80, 100, "update"),
    ]


def test_a_thread_that_queues_gradients_does_not_compute_them() -> None:
    """PyTorch queues the backward pass of a device on its own thread, which may be held up there."""
    segments = segments_of_step(
        span(0, "forward", 0, 5, **on_device(5, 20)),
        span(0, "backprop", 5, 85, thread=2),
        span(0, "backprop", 30, 60, "kernel", thread=3, **on_device(30, 60)),
        call(0, 0, 50, 51, **on_device(50, 80)),
        span(0, "update", 86, 90, **on_device(90, 100)),
    )
    assert [(start, end, category) for start, end, category, _ in segments] == [
        (0, 20, "forward"),
        (20, 30, "backprop"),  # until the device has something to do, it waits for the queueing
        (30, 60, "backprop"),
        (60, 80, "transfer"),
        (80, 85, "backprop"),
        (85, 86, "uninstrumented"),
        (86, 100, "update"),
    ]


def test_a_blocking_reduction_is_in_flight_on_the_device() -> None:
    """Its span on the thread says only that it was queued."""
    segments = segments_of_step(
        span(0, "backprop", 0, 10, **on_device(0, 50)),
        call(0, 0, 10, 12, thread=0, depth=1, **on_device(50, 80)),
        span(0, "device", 12, 100, "synchronize"),
    )
    assert [(start, end, category) for start, end, category, _ in segments] == [
        (0, 50, "backprop"),
        (50, 80, "transfer"),
        (80, 100, "idle"),
    ]


def test_hidden_communication_is_what_the_device_computes_beside() -> None:
    """Not what the thread queues meanwhile."""
    rows = [
        span(0, "step", 0, LENGTH, step=0),
        span(0, "backprop", 0, 90, **on_device(0, 40)),
        call(0, 0, 5, 6, **on_device(30, 60)),
    ]
    assert phases.run(prepare(trace_of(rows))).hidden_rows["ns"].to_list() == [10]


def test_layers_inside_are_queueing_too() -> None:
    """A layer has no device times of its own, but what it is part of has."""
    segments = segments_of_step(
        span(0, "forward", 0, 20, **on_device(30, 60)),
        span(0, "forward", 2, 18, "layer", depth=1),
        span(0, "device", 20, 100, "synchronize"),
    )
    assert [row for row in segments if row[0] >= 30] == [
        (30, 60, "forward", "forward"),
        (60, 100, "idle", "synchronize"),
    ]


def test_a_users_own_span_on_a_device() -> None:
    """It counts as the user's, where the device does it."""
    segments = segments_of_step(
        span(0, "user", 0, 5, "mine", **on_device(5, 45)),
        span(0, "device", 5, 100, "synchronize"),
    )
    assert segments == [
        (0, 45, "user", "mine"),
        (45, 100, "idle", "synchronize"),
    ]

"""Device times come onto their host's clock, and then with it onto the common one."""

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from support.runs.traces import call, span, trace_of

from tracelens.align import devices
from tracelens.load import prepare
from tracelens.model.trace import CLOCK_COLUMNS, THREAD_COLUMNS, Trace

SECOND = 10**9
STREAM = 5
AHEAD = 7_000_000  # a device's clock minus its host's at the begin
DRIFT = 20e-6


def device_clock_ns(host_ns: int, rank: int = 0) -> int:
    """What the device of a rank shows at a moment of its host."""
    return host_ns + (rank + 1) * AHEAD + round(host_ns * DRIFT)


def on_device(begin: int, end: int, rank: int = 0) -> dict[str, Any]:
    """Return the device columns of work between two moments of the host's clock."""
    start = device_clock_ns(begin, rank)
    length = device_clock_ns(end, rank) - start
    return {"device_start_ns": start, "device_duration_ns": length, "stream": STREAM}


def with_device(trace: Trace, ranks: int = 1) -> Trace:
    """Give every rank a device with one stream, read at the begin and at the end of ten seconds."""
    stream = [
        {"process": r, "thread": STREAM, "name": "cuda:0 stream 7", "in_flight": True, "device": 0}
        for r in range(ranks)
    ]
    readings = [
        {
            "process": rank,
            "method": "device",
            "monotonic_ns": host_ns,
            "window_ns": 10_000,
            "offset_ns": host_ns - device_clock_ns(host_ns, rank),
            "device": 0,
        }
        for rank in range(ranks)
        for host_ns in range(0, 11 * SECOND, SECOND)
    ]
    return trace.with_(
        threads=pl.concat([trace.threads, pl.DataFrame(stream, schema=THREAD_COLUMNS)]),
        clocks=pl.DataFrame(readings, schema=CLOCK_COLUMNS),
    )


def test_offset_and_drift_are_taken_out() -> None:
    """At the begin, in the middle, at the end: within a microsecond of the truth."""
    moments = [0, 5 * SECOND, 10 * SECOND]
    rows = [
        span(0, "forward", moment_ns, moment_ns + 10, **on_device(moment_ns + 100, moment_ns + 200))
        for moment_ns in moments
    ]
    placed = devices.place_on_host(with_device(trace_of(rows)))
    events = placed.events.collect()
    assert events["device_start_ns"].to_list() == pytest.approx(
        [moment_ns + 100 for moment_ns in moments], abs=50
    )
    assert events["start_ns"].to_list() == moments
    (row,) = placed.device_clocks.to_dicts()
    assert row["drift_ppm"] == pytest.approx(20.0, abs=0.1)
    assert row["offset_ns"] == -AHEAD
    assert 5_000 <= row["uncertainty_ns"] < 10_000
    assert row["readings"] == 11


def test_each_process_has_its_own_device() -> None:
    """Device 0 of one rank is not device 0 of another."""
    rows = [
        span(rank, "forward", SECOND, SECOND + 10, **on_device(SECOND + 100, SECOND + 200, rank))
        for rank in (0, 1)
    ]
    placed = devices.place_on_host(with_device(trace_of(rows, ranks=2), ranks=2))
    found = placed.events.collect()["device_start_ns"].to_list()
    assert found == pytest.approx([SECOND + 100] * 2, abs=50)


def test_a_reduction_in_flight_ends_when_the_device_says() -> None:
    """On the host it ended when it was queued; one whose device times are lost is an estimate."""
    rows = [
        call(0, number, at, at + 10, **on_device(at + SECOND, at + 2 * SECOND))
        for number, at in enumerate(range(0, 3 * SECOND, SECOND))
    ]
    rows.append(call(0, 3, 4 * SECOND, 4 * SECOND + 10))
    events = devices.place_on_host(with_device(trace_of(rows))).events.collect()
    assert events["start_ns"].to_list() == pytest.approx(
        [SECOND, 2 * SECOND, 3 * SECOND, 4 * SECOND], abs=50
    )
    assert events["end_ns"].to_list() == pytest.approx(
        [2 * SECOND, 3 * SECOND, 4 * SECOND, 4 * SECOND + 10], abs=50
    )
    assert events["status"].to_list() == ["closed"] * 3 + ["estimated"]


def test_a_reduction_that_is_open_stays_so() -> None:
    """A killed rank's last reduction has no end, nor device times."""
    rows = [
        call(0, 0, SECOND, SECOND + 10, **on_device(SECOND, SECOND + 500)),
        call(0, 1, 2 * SECOND, None),
    ]
    found = devices.place_on_host(with_device(trace_of(rows))).events.collect()
    assert found["status"].to_list() == ["closed", "open"]
    assert found["end_ns"].to_list()[1] is None


def test_without_a_device_nothing_changes() -> None:
    """The trace is the same object."""
    trace = trace_of([call(0, 0, 0, 10)])
    assert devices.place_on_host(trace) is trace


def test_times_without_readings_stay() -> None:
    """A device's clock is set to the host's when it is first read: better than nothing."""
    trace = with_device(trace_of([span(0, "forward", 5, 9, **on_device(6, 8))]))
    bare = replace(trace, clocks=trace.clocks.clear())
    found = devices.place_on_host(bare).events.collect()
    assert found["device_start_ns"].to_list() == [device_clock_ns(6)]


def test_arrival_is_when_the_device_came() -> None:
    """Ranks that queue alike, but reach the reduction apart on their devices: the later one is last."""
    rows = []
    for rank, late in ((0, 0), (1, 300)):
        rows.append(span(rank, "step", 0, 2_000_000, step=0))
        rows.append(
            call(rank, 0, 100, 110, step=0, **on_device(1_000_000 + late * 1000, 1_500_000, rank))
        )
    trace = prepare(with_device(trace_of(rows, ranks=2), ranks=2))
    assert trace.arrivals["last_rank"].to_list() == [1, 1]
    waits = dict(trace.arrivals.select("rank", "wait_ns").iter_rows())
    assert waits[0] == pytest.approx(300_000, abs=100)
    assert waits[1] == 0

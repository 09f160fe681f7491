"""Requests to parameter servers tie clocks; the stated uncertainty holds for any delays."""

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import strategies as st
from support.runs.scenarios import HOT_SHARD
from support.runs.traces import call, span, trace_of
from support.tiers import check_examples, few_or_many

from tracelens.align.clocks import common
from tracelens.model.trace import Trace
from tracelens.simulator.synthetic import generate, random_clocks

SERVERS = replace(HOT_SHARD, ranks_per_host=2, clocks=random_clocks(5, seed=1))
TRUE = generate(replace(SERVERS, clocks=())).events.collect()
START = 10**12
MS = 1_000_000


def worst_ns(aligned: Trace) -> int:
    """Return the greatest error on the common clock, of runs in which nothing but clocks differs."""
    off = (aligned.events.collect()["start_ns"] - TRUE["start_ns"]).abs().max()
    assert isinstance(off, int)
    return off


def write_requests(
    delays: list[tuple[int, int]],
    ahead: int,
    drift_ppm: float,
    *,
    waits: bool = True,
    more: list[dict[str, Any]] | None = None,
    hosts: int = 2,
) -> Trace:
    """Write a push and a pull every 100 ms with these delays there and back, on two hosts' clocks."""

    def shows(true: int) -> int:
        return true + ahead + round((true - START) * drift_ppm * 1e-6)

    rows = more or []
    of_server: dict[str, Any] = {"process": hosts - 1, "role": "ps", "shard": 0}
    for number, (there_ns, back_ns) in enumerate(delays):
        sent = START + number * 100 * MS
        arrived_ns = sent + there_ns
        done = arrived_ns + back_ns if waits else sent + 10
        push: dict[str, Any] = {"request": 2 * number, "shard": 0}
        pull: dict[str, Any] = {"request": 2 * number + 1, "shard": 0}
        asked_ns = sent + 50 * MS
        replied = asked_ns + back_ns
        rows += [
            span(0, "step", sent, sent + 90 * MS, step=number),
            span(0, "ps", sent, done, op="push", step=number, **push),
            span(0, "ps", asked_ns, replied + there_ns, op="pull", step=number, **pull),
            span(
                0, "ps", shows(arrived_ns - 5), shows(arrived_ns), op="receive", **push | of_server
            ),
            span(0, "ps", shows(replied), shows(replied + 5), op="reply", **pull | of_server),
        ]
    names = [f"host{number}" for number in range(hosts)]
    return trace_of(rows, ranks=hosts - 1, shards=1, host=names, clock_domain=names)


def served_wrongly_ns(aligned: Trace, delays: list[tuple[int, int]]) -> int:
    """Return the greatest error of the server's times."""
    of_servers = pl.col("role") == "ps"
    shown_ns, true_ns = (
        trace.events.filter(of_servers).sort("request").collect()["start_ns"]
        for trace in (aligned, write_requests(delays, 0, 0.0))
    )
    error_ns = (shown_ns - true_ns).abs().max()
    assert isinstance(error_ns, int)
    return error_ns


def test_requests_beat_wall_clocks() -> None:
    aligned = common.align(generate(SERVERS))
    assert aligned.alignment.method == "requests"
    assert aligned.alignment.uncertainty_ns < MS
    assert worst_ns(aligned) <= aligned.alignment.uncertainty_ns
    assert not aligned.notes


def test_requests_tie_clocks_without_clock_readings() -> None:
    """As in a table, which has no clock readings."""
    trace = generate(SERVERS)
    aligned = common.align(trace.with_(clocks=trace.clocks.clear()))
    assert aligned.alignment.method == "requests"
    assert worst_ns(aligned) <= aligned.alignment.uncertainty_ns < 10 * MS


def test_wall_clocks_that_cannot_be_right_are_left_out() -> None:
    """Without NTP they may be off by anything."""
    aligned = common.align(generate(replace(SERVERS, wall_error_ms=400.0)))
    assert aligned.alignment.method == "requests"
    assert worst_ns(aligned) <= aligned.alignment.uncertainty_ns < 10 * MS


def test_requests_that_match_wrongly_tie_nothing() -> None:
    """Numbers that mean other requests at servers: better the wall clocks, and it is said."""
    trace = generate(SERVERS)
    asked = pl.col("op").cast(pl.String).is_in(("push", "pull"))
    other = pl.when(asked).then(pl.col("request").reverse().over(asked)).otherwise("request")
    aligned = common.align(trace.with_(events=trace.events.with_columns(request=other)))
    assert aligned.alignment.method == "wall"
    assert any("before they were sent" in note.sentence for note in aligned.notes)


@pytest.mark.parametrize("examples", few_or_many(20, 60))
def test_uncertainty_covers_the_error(examples: int) -> None:
    """However much slower one way is than the other, and however far apart the clocks are."""
    delay_ns = st.integers(5_000, 30 * MS)

    def check(delays: list[tuple[int, int]], ahead: int, drift_ppm: float) -> None:
        aligned = common.align(write_requests(delays, ahead, drift_ppm))
        assert aligned.alignment.method == "requests"
        assert served_wrongly_ns(aligned, delays) <= aligned.alignment.uncertainty_ns + 3

    check_examples(
        check,
        examples,
        st.lists(st.tuples(delay_ns, delay_ns), min_size=1, max_size=40),
        st.integers(-(10**15), 10**15),
        st.floats(-40, 40),
    )


@pytest.mark.parametrize("waits", [True, False])
def test_pushes_that_nobody_waits_for(*, waits: bool) -> None:
    """A push may end for the worker before it arrives; then only pulls count."""
    draw = np.random.default_rng(3)
    ways = draw.integers(20_000, 400_000, (200, 2)).tolist()
    aligned = common.align(write_requests(ways, -7 * MS, 12.0, waits=waits))
    assert served_wrongly_ns(aligned, ways) <= aligned.alignment.uncertainty_ns < 300_000


def test_clocks_that_contradict_requests_are_said() -> None:
    """Somebody measured the clocks, wrongly by 20 ms; requests came before they were sent."""
    trace = write_requests([(30_000, 30_000)] * 50, 0, 0.0)
    wrong = {
        "process": 1,
        "method": "ping_pong",
        "monotonic_ns": START,
        "offset_ns": 20 * MS,
        "window_ns": 1000,
        "peer": 0,
    }
    readings = pl.DataFrame(
        [dict.fromkeys(trace.clocks.schema) | wrong], schema=trace.clocks.schema
    )
    aligned = common.align(trace.with_(clocks=readings))
    assert aligned.alignment.method == "ping_pong"
    (note,) = aligned.notes
    assert "arrived before they were sent" in note.sentence
    assert note.kind == "clock"


def test_collectives_tie_workers_and_requests_tie_servers() -> None:
    """Collectives tie the workers' hosts, and requests the server's, which is named."""
    apart = 3 * MS
    reduced = [
        call(rank, number, START + number * 100 * MS + rank * apart, left + rank * apart)
        for number in range(60)
        for left in (START + number * 100 * MS + 10 * MS,)
        for rank in (0, 1)
    ]
    ways = [(40_000, 40_000)] * 60
    aligned = common.align(write_requests(ways, -9 * MS, 0.0, more=reduced, hosts=3))
    assert aligned.alignment.method == "collective_exits"
    assert aligned.alignment.hosts[1].offset_ns == apart
    assert served_wrongly_ns(aligned, ways) <= aligned.alignment.uncertainty_ns <= 42_000
    (note,) = aligned.notes
    assert "'host2'" in note.sentence
    assert "requests to parameter servers" in note.sentence

"""Without common collectives clocks are aligned by ping-pong, else by wall clocks, and it is said."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl
from support.runs.scenarios import HOT_SHARD
from support.runs.traces import call, span, trace_of

from tracelens.align.clocks import common
from tracelens.load import prepare
from tracelens.model.trace import Trace
from tracelens.simulator.synthetic import Scenario, generate, random_clocks

SERVERS = replace(HOT_SHARD, ranks_per_host=2, clocks=random_clocks(5, seed=1))
WORKERS = Scenario(ranks=6, ranks_per_host=2, steps=60, clocks=random_clocks(3, seed=2))


def errors_ns(aligned: Trace, scenario: Scenario) -> npt.NDArray[np.int64]:
    true = generate(replace(scenario, clocks=())).events.collect()["start_ns"].to_numpy()
    return np.asarray(np.abs(aligned.events.collect()["start_ns"].to_numpy() - true))


def test_ping_pong_ties_clocks_without_collectives() -> None:
    """Servers and workers that only exchange messages are tied by ping-pong."""
    scenario = replace(SERVERS, ping_pong=True)
    aligned = common.align(generate(scenario))
    assert aligned.alignment.method == "ping_pong"
    assert errors_ns(aligned, scenario).max() <= aligned.alignment.uncertainty_ns == 25_000


def test_wall_clocks_tie_clocks_without_messages() -> None:
    """With nothing else the wall clocks serve, and the uncertainty says what they are worth."""
    trace = generate(SERVERS)
    unmatched = trace.events.with_columns(request=pl.lit(None, pl.UInt64))
    aligned = common.align(trace.with_(events=unmatched))
    assert aligned.alignment.method == "wall"
    assert aligned.alignment.uncertainty_ns >= 1_000_000
    assert errors_ns(aligned, SERVERS).max() <= 3 * aligned.alignment.uncertainty_ns


def test_two_collectives_are_treated_as_messages() -> None:
    """Two collectives have no usual spread of ends; but nobody left them before all had come."""
    short = replace(WORKERS, steps=1)
    aligned = common.align(generate(short))
    assert aligned.alignment.method == "messages"
    assert errors_ns(aligned, short).max() <= aligned.alignment.uncertainty_ns <= 1_100_000


def test_a_host_without_collectives() -> None:
    """One host outside of the collectives does not spoil the others, and is named."""
    trace = generate(WORKERS)
    is_outside = (pl.col("process") >= 4) & (pl.col("kind") == "reduction")
    world = trace.communicators.with_columns(
        ranks=pl.Series([[0, 1, 2, 3]], dtype=pl.List(pl.Int32))
    )
    aligned = common.align(
        trace.with_(events=trace.events.filter(~is_outside), communicators=world)
    )
    assert aligned.alignment.method == "collective_exits"
    assert [note.kind for note in aligned.notes] == ["clock"]
    assert "host002" in aligned.notes[0].sentence
    _, second, third = (host.uncertainty_ns for host in aligned.alignment.hosts)
    assert second is not None
    assert third is not None
    assert second < 10_000
    assert third >= 1_000_000


def test_sharp_ping_pong_removes_a_lasting_lag() -> None:
    """If a host always leaves late, exits cannot see it; a sharper measurement can."""
    lag = 300_000
    noisy = replace(WORKERS, exit_skew_us=300.0, ping_pong=True, seed=4, steps=400)
    trace = generate(noisy)
    late = (pl.col("process") >= 2) & (pl.col("process") < 4) & (pl.col("kind") == "reduction")
    lagging = pl.when(late).then(pl.col("end_ns") + lag).otherwise("end_ns")
    aligned = common.align(trace.with_(events=trace.events.with_columns(end_ns=lagging)))
    unhelped = common.align(
        trace.with_(events=trace.events.with_columns(end_ns=lagging), clocks=trace.clocks.clear())
    )
    is_lagging = trace.events.collect()["process"].is_in([2, 3]).to_numpy()
    assert np.median(errors_ns(unhelped, noisy)[is_lagging]) > 0.7 * lag
    assert np.median(errors_ns(aligned, noisy)[is_lagging]) < 0.25 * lag


def test_clocks_without_any_tie_are_reported_as_unaligned() -> None:
    """Where nothing ties two clocks together the trace says so and invents no waits."""
    rows = [
        row
        for rank in (0, 1)
        for begin_ns in (10**15 * rank,)
        for row in (
            span(rank, "step", begin_ns, begin_ns + 1000, step=0),
            call(rank, 0, begin_ns + 100 * rank, begin_ns + 500, op="broadcast"),
        )
    ]
    raw = trace_of(
        rows,
        ranks=2,
        host=["here", "there"],
        clock_domain=["boot-a", "boot-b"],
        first_ns=[0, 10**15],
        last_ns=[1000, 10**15 + 1000],
    )
    trace = prepare(raw)
    assert any("'there' cannot be aligned" in note.sentence for note in trace.notes)
    assert trace.alignment.method == "unaligned"
    assert trace.alignment.untied_clock_domains == ("boot-b",)
    assert trace.steps["start_ns"].n_unique() == 1
    assert trace.arrivals["arrived"].to_list() == [2, 2]
    for unknown in ("wait_ns", "last_arrival_ns", "last_rank"):
        assert trace.arrivals[unknown].null_count() == 2
    one_clock = prepare(trace_of(rows, ranks=2))
    assert one_clock.arrivals["wait_ns"].null_count() == 0

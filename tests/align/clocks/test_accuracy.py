"""Clocks are aligned to within microseconds in runs with slow ranks, drift and jumps."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from support.tiers import mark_slow

from tracelens.align.clocks import common
from tracelens.model.trace import Alignment
from tracelens.simulator.synthetic import Clock, Fault, Scenario, generate, random_clocks

TIMES = ("start_ns", "end_ns")
LARGE_RUN = Scenario(
    ranks=32, ranks_per_host=4, steps=400, buckets=4, clocks=random_clocks(8, seed=3)
)
SMALL_RUN = replace(LARGE_RUN, ranks=16, ranks_per_host=2)


@pytest.fixture(params=mark_slow([SMALL_RUN, LARGE_RUN], quick=[SMALL_RUN]), ids=["16", "32"])
def run(request: pytest.FixtureRequest) -> Scenario:
    """Simulate a run on eight hosts."""
    scenario: Scenario = request.param
    return scenario


def ranks_of_host(run: Scenario, host: int) -> tuple[int, ...]:
    """Return the ranks on a host."""
    return tuple(range(host * run.ranks_per_host, (host + 1) * run.ranks_per_host))


def errors_us(
    scenario: Scenario, change: Callable[[pl.LazyFrame], pl.LazyFrame] | None = None
) -> npt.NDArray[np.float64]:
    """Return each aligned event's distance from its true time, in microseconds.

    `change` is done to the recorded events before they are aligned.
    """
    raw = generate(scenario)
    aligned = common.align(raw.with_(events=change(raw.events)) if change else raw)
    assert aligned.alignment.method == "collective_exits"
    found = aligned.events.collect()["start_ns"].to_numpy()
    true = generate(replace(scenario, clocks=())).events.collect()["start_ns"].to_numpy()
    return np.asarray(np.abs(found - true) / 1e3)


@pytest.mark.parametrize("seed", range(3))
def test_offsets_and_drifts_are_removed(run: Scenario, seed: int) -> None:
    """Clocks 5 ms and 20 ppm apart come together to 1.5 microseconds."""
    scenario = replace(run, seed=seed, clocks=random_clocks(8, seed=seed))
    assert np.quantile(errors_us(scenario), 0.99) <= 1.5


def test_hosts_that_booted_hours_apart_are_aligned(run: Scenario) -> None:
    """Hosts that booted hours apart are aligned as well as any."""
    far = tuple(replace(c, offset_ns=c.offset_ns * 1_000_000) for c in run.clocks)
    assert np.quantile(errors_us(replace(run, clocks=far)), 0.99) <= 1.5


def test_straggler_is_not_absorbed(run: Scenario) -> None:
    """A rank that always comes late keeps its lateness: the clock of its host is not bent to it."""
    late = Fault("backprop", (9,), factor=1.3)
    assert np.quantile(errors_us(replace(run, faults=(late,))), 0.99) <= 1.5


def test_slow_host_is_not_absorbed(run: Scenario) -> None:
    late = Fault("forward", ranks_of_host(run, 2), factor=2.0)
    assert np.quantile(errors_us(replace(run, faults=(late,))), 0.99) <= 1.5


def test_of_two_hosts_both_are_mapped_onto_the_first(run: Scenario) -> None:
    """Of two clocks neither is known to be right; both are mapped onto the first."""
    pair = replace(run, ranks=2 * run.ranks_per_host, clocks=random_clocks(2, seed=5))
    assert np.quantile(errors_us(pair), 0.99) <= 1.5


def test_a_clock_that_jumps_is_corrected_on_both_sides(run: Scenario) -> None:
    """A clock that jumps is corrected on both sides, and the jump is named where it was."""
    jumping = replace(run.clocks[5], jump_ns=500_000, jump_after_ms=3_000.0)
    scenario = replace(run, clocks=(*run.clocks[:5], jumping, *run.clocks[6:]))
    # Only between two collectives can one not know when it jumped.
    assert np.quantile(errors_us(scenario), 0.99) <= 1.7
    hosts = common.align(generate(scenario)).alignment.hosts
    assert [len(host.jumps) for host in hosts] == [0, 0, 0, 0, 0, 1, 0, 0]
    assert hosts[5].jumps[0] == pytest.approx(1_000_000_000_000 + 3_000_000_000, abs=30_000_000)


def test_collectives_without_synchronisation_do_not_mislead_the_fit(run: Scenario) -> None:
    """The fit holds if three in ten collectives let every rank leave early."""

    def early(events: pl.LazyFrame) -> pl.LazyFrame:
        loose = (pl.col("kind") == "reduction") & (pl.col("seq") % 10 < 3)
        return events.with_columns(
            end_ns=pl.when(loose).then(pl.col("start_ns") + 20_000).otherwise("end_ns")
        )

    late = Fault("backprop", (9,), factor=1.3)
    assert np.quantile(errors_us(replace(run, faults=(late,)), early), 0.99) <= 1.5


def test_a_clock_with_a_varying_rate_is_followed(run: Scenario) -> None:
    """A clock whose rate swings is followed."""

    def swinging(events: pl.LazyFrame) -> pl.LazyFrame:
        swing = (50_000 * (pl.col("start_ns") / 1e9).sin()).round().cast(pl.Int64)
        on_host = pl.col("process").is_in(ranks_of_host(run, 3))
        moved = [pl.when(on_host).then(pl.col(c) + swing).otherwise(c).alias(c) for c in TIMES]
        return events.with_columns(moved)

    errors = errors_us(run, swinging)
    assert np.quantile(errors, 0.99) <= 5.0
    assert np.median(errors) <= 0.5


def test_reported_offsets_and_drifts_are_true_within_the_uncertainty(run: Scenario) -> None:
    """Offsets and drifts are reported as they are; the errors stay within the uncertainty."""
    alignment = common.align(generate(run)).alignment
    assert [host.host for host in alignment.hosts] == [f"host{h:03d}" for h in range(8)]
    for host, true in zip(alignment.hosts, run.clocks, strict=True):
        assert host.offset_ns == pytest.approx(true.offset_ns, abs=2_000)
        assert host.drift_ppm == pytest.approx(true.drift_ppm, abs=0.5)
        assert host.uncertainty_ns is not None
        assert host.uncertainty_ns <= 5_000
    assert errors_us(run).max() * 1e3 <= alignment.uncertainty_ns


def test_first_host_is_unchanged(run: Scenario) -> None:
    """The common clock is the first host's: its own times stay to the nanosecond."""
    scenario = replace(run, clocks=(Clock(7_000, 12.0), *run.clocks[1:]))
    raw = generate(scenario)
    on_first = ranks_of_host(run, 0)
    before, after = raw.events.collect(), common.align(raw).events.collect()
    for column in TIMES:
        pair = (frame.filter(frame["process"].is_in(on_first))[column] for frame in (before, after))
        assert next(pair).equals(next(pair))


def test_one_clock_changes_nothing(run: Scenario) -> None:
    """Processes that share a clock are not moved."""
    raw = generate(replace(run, clocks=()))
    aligned = common.align(raw)
    assert aligned.alignment.method == "same_clock"
    assert aligned.alignment.uncertainty_ns == 0
    assert aligned.events.collect().equals(raw.events.collect())


def left_later(scenario: Scenario, later_ns: list[int]) -> Alignment:
    """Align a run in which each rank leaves collectives later by its own delay."""
    trace = generate(scenario)
    extra = pl.col("process").replace_strict(dict(enumerate(later_ns)), return_dtype=pl.Int64)
    ends = pl.when(pl.col("kind") == "reduction").then(pl.col("end_ns") + extra)
    moved = trace.events.with_columns(end_ns=ends.otherwise("end_ns"))
    return common.align(trace.with_(events=moved)).alignment


@pytest.mark.parametrize(
    "later_ns",
    [[0, 1_000, 5_000, 0, 3_000, 4_000], [0, 1_000, 3_000, 9_000, 0, 2_000, 6_000, 7_000]],
)
def test_a_hosts_exit_is_that_of_its_middle_process(later_ns: list[int]) -> None:
    """Of several processes the median says when their host left a collective."""
    ranks = len(later_ns)
    clocks = (Clock(), Clock(offset_ns=700_000))
    run = Scenario(
        ranks=ranks, ranks_per_host=ranks // 2, steps=40, noise=0.0, exit_skew_us=0.0, clocks=clocks
    )
    before, after = (left_later(run, later) for later in ([0] * ranks, later_ns))
    assert abs(after.hosts[1].offset_ns - before.hosts[1].offset_ns) == pytest.approx(2_000, abs=5)


def test_a_host_that_leaves_late_is_less_sure() -> None:
    """Its lasting lag looks like an offset of its clock; who came last shows how large it is."""
    run = Scenario(ranks=3, ranks_per_host=1, steps=200, noise=0.1, clocks=(Clock(),) * 3)
    sure, unsure = (left_later(run, [0, 0, lag]).hosts[2].uncertainty_ns for lag in (0, 200_000))
    assert sure is not None
    assert sure < 20_000
    assert unsure == pytest.approx(200_000, rel=0.3)

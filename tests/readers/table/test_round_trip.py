"""A native trace handed over as a table leads to the same report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from support.runs.analysed import RUNS
from support.runs.analysed import report as simulated_report
from support.runs.analysed import trace as simulated
from support.runs.tables import comparable, differing, table_of
from support.samples import manifest, sample_trace
from support.tiers import check_examples, few_or_many, mark_slow, mark_slow_in_turn

from tracelens import Trace, load
from tracelens.reports import to_json
from tracelens.simulator.synthetic import Fault, Scenario, generate, random_clocks
from tracelens.verdicts.report import analyze

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE_NAMES = [sample.name for sample in manifest()]
QUICK_RUNS = ("alone", "devices", "short", "hot shard")
ASYNCHRONOUS = ("ps_queue", "exposed_transfer")


def comparable_report(trace: Trace) -> dict[str, Any]:
    return comparable(to_json.to_object(analyze(trace)))


def told_of_simulated(run: str) -> dict[str, Any]:
    return comparable(to_json.to_object(simulated_report(RUNS[run][0])))


@pytest.mark.parametrize(
    "name", mark_slow_in_turn(SAMPLE_NAMES, ("mpi-killed-rank", "easgd-sync3"))
)
def test_samples_written_as_parquet_are_explained_alike(name: str, tmp_path: Path) -> None:
    """Real recordings, written as Parquet on their common clock, are explained word for word alike."""
    trace = sample_trace(name)
    trace = trace.with_(samples=trace.samples.clear())  # of which a table of events has none
    file = tmp_path / "events.parquet"
    table_of(trace).write_parquet(file)
    read_report, expected = (
        comparable_report(load.open(file, one_clock=True)),
        comparable_report(trace),
    )
    if trace.uncertainty_ns:  # which a table of one clock does not have
        kinds = [
            [(f["kind"], f["ranks"]) for f in report["findings"]]
            for report in (read_report, expected)
        ]
        assert kinds[0] == kinds[1]
    else:
        assert not differing(read_report, expected)


@pytest.mark.parametrize("run", mark_slow(RUNS, QUICK_RUNS))
def test_simulated_runs_of_every_kind_are_explained_alike(run: str) -> None:
    """Simulated runs of every kind, from memory."""
    table = table_of(simulated(RUNS[run][0]))
    assert not differing(
        comparable_report(Trace.from_table(table, one_clock=True)), told_of_simulated(run)
    )


@pytest.mark.parametrize("run", mark_slow(RUNS, QUICK_RUNS))
def test_the_named_columns_suffice(run: str) -> None:
    """The contract's columns tell the same faults, and all shares but those of queues and devices."""
    scenario = RUNS[run][0]
    trace = simulated(scenario)
    plain = comparable_report(Trace.from_table(table_of(trace, with_extras=False), one_clock=True))
    expected = told_of_simulated(run)

    def faults(report: dict[str, Any]) -> list[Any]:
        keys = ("kind", "ranks", "hosts", "shards", "phase", "steps", "pattern")
        found = [f for f in report["findings"] if f["category"] == "fault"]
        return [[finding[key] for key in keys] for finding in found]

    assert faults(plain) == faults(expected)
    if scenario.on_device:  # when devices worked is not told
        return
    bars = {bar["cause"]: bar["share"] for bar in plain["efficiency"]["waterfall"]}
    for bar in expected["efficiency"]["waterfall"]:
        if bar["cause"] not in ASYNCHRONOUS or not trace.shards.height:
            assert bars[bar["cause"]] == pytest.approx(bar["share"], abs=1e-3)


scenarios = st.builds(
    Scenario,
    ranks=st.integers(1, 5),
    ranks_per_host=st.integers(1, 4),
    steps=st.integers(1, 45),
    buckets=st.integers(1, 3),
    layers=st.integers(1, 3),
    overlap=st.booleans(),
    shards=st.sampled_from([0, 0, 2]),
    noise=st.sampled_from([0.02, 0.2]),
    faults=st.lists(
        st.builds(
            Fault,
            st.sampled_from(["data", "forward", "backprop", "gc", "checkpoint"]),
            st.sampled_from([(0,), ()]),
            extra_ms=st.sampled_from([2.0, 20.0]),
            every=st.sampled_from([1, 7]),
        ),
        max_size=2,
    ).map(tuple),
    seed=st.integers(0, 1000),
)


@pytest.mark.parametrize("examples", few_or_many(3, 12))
def test_random_simulated_runs_are_explained_alike(examples: int, tmp_path: Path) -> None:
    """Whatever is simulated, in memory, as CSV, or with its rows in any order."""

    def check(scenario: Scenario, form: str) -> None:
        trace = load.prepare(generate(scenario))
        table = table_of(trace)
        if form == "shuffled":
            table = table.sample(fraction=1.0, shuffle=True, seed=1)
        if form == "csv":
            file = tmp_path / "events.csv"
            table.write_csv(file)
            read = load.open(file, one_clock=True)
        else:
            read = Trace.from_table(table, one_clock=True)
        assert not differing(comparable_report(read), comparable_report(trace))

    check(Scenario(ranks=2, steps=1), "csv")
    check_examples(check, examples, scenarios, st.sampled_from(["ns", "csv", "shuffled"]))


def test_raw_times_are_aligned_as_in_files() -> None:
    """Times of different hosts, with hosts named, end up on the same clock by the same exits."""
    clocks = random_clocks(2)
    scenario = Scenario(ranks=8, ranks_per_host=4, steps=60, clocks=clocks, ping_pong=False)
    raw = generate(scenario)
    native, table = load.prepare(raw), Trace.from_table(table_of(raw))
    assert table.alignment == native.alignment
    assert table.alignment.method == "collective_exits"
    assert not differing(comparable_report(table), comparable_report(native))

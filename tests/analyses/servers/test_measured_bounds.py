"""What binds servers is what was measured of them, and where that was not recorded, it says so."""

from dataclasses import replace
from functools import cache
from typing import Final, cast

import polars as pl
import pytest
from support.runs.analysed import trace
from support.samples import SAMPLES
from support.tiers import mark_slow

import tracelens as tl
from tracelens.analyses.servers import utilisation
from tracelens.analyses.servers.shards import Shards
from tracelens.model.result import Report
from tracelens.simulator.synthetic import Scenario
from tracelens.verdicts.report import analyze

MIB: Final = 1 << 20
LINKS: Final = Scenario(
    ranks=8, steps=40, shards=3, shared_links=True, bucket_bytes=4 * MIB, noise=0.02
)
OF_64: Final = replace(LINKS, shards=64, shard_bytes=(40 * MIB, *(63 * [MIB])))
# Scenario, what binds shard 0 with, and without, spans of receiving, and what is found with them.
BOUND: Final = {
    "incast": (replace(LINKS, incast=0.5), "incast", "not recorded", "ps_incast"),
    "strong incast": (
        replace(LINKS, incast=2.0, ranks=16), "incast", "not recorded", "ps_incast",
    ),
    "hot shard of 64": (OF_64, "network", "not recorded", "ps_hot_shard"),
    "processors": (
        replace(LINKS, aggregate_gbytes_per_s=0.2, apply_ms=0.4), "cpu", "cpu", "ps_cpu_bound",
    ),
    "links": (
        replace(LINKS, link_gbytes_per_s=0.5), "network", "not recorded", "ps_network_bound",
    ),
    "neither": (replace(LINKS, latency_us=20_000.0), None, "not recorded", None),
}  # fmt: skip


@cache
def analyze_shards(name: str, *, receives: bool) -> Report:
    """Return the report of a run whose shards do, or do not, record what they receive."""
    simulated = trace(BOUND[name][0])
    if receives:
        return analyze(simulated)
    is_kept = pl.col("op").cast(pl.String).ne_missing("receive")
    return analyze(simulated.with_(events=simulated.events.filter(is_kept)))


CASES: Final = mark_slow(BOUND, quick=("incast", "processors", "links"))


@pytest.mark.parametrize("receives", [True, False], ids=["received", "no receive"])
@pytest.mark.parametrize("name", CASES)
def test_the_bound_is_what_was_measured(name: str, *, receives: bool) -> None:
    """Also where no span says when pushes were received: then only processors can be known."""
    report = analyze_shards(name, receives=receives)
    right = BOUND[name][1 if receives else 2]
    loads = cast("Shards", report.results["shards"]).loads
    assert loads["bound"][0] == right
    kinds = {found.kind for found in report.findings}
    assert ("ps_cpu_bound" in kinds) == (right == "cpu")
    if receives:
        assert BOUND[name][3] is None or BOUND[name][3] in kinds
    else:
        assert not kinds & {"ps_network_bound", "ps_incast"}
        unknown = [note for note in report.notes if note.kind == "unrecorded"]
        assert bool(unknown) == (right != "cpu")
        assert ("what binds PS shards" in report.verdict.scope) == bool(unknown)
        assert loads["wire_share"].null_count() == loads.height


@pytest.mark.parametrize("name", CASES)
def test_the_processor_is_as_busy_without_receives(name: str) -> None:
    """The window of pushes begins when the first one is sent, not when the first one is added up."""
    with_receives, without_receives = (
        cast("Shards", analyze_shards(name, receives=receives).results["shards"]).loads
        for receives in (True, False)
    )
    assert without_receives["cpu_share"][0] == pytest.approx(
        with_receives["cpu_share"][0], abs=0.15
    )


def test_queues_of_busy_processors_are_no_communication() -> None:
    """Pushes that nobody saw arrive are queued while their shard is at work."""
    report = analyze_shards("processors", receives=False)
    assert report.verdict.headline.startswith("BOUND BY parameter servers")
    assert "CPU-bound" in report.verdict.headline


def test_handlers_at_work_at_once_are_one_processor() -> None:
    """Two threads that add up pushes in parallel are busy for the time, not for twice the time."""
    rows = [
        {"shard": 0, "step": step, "op": "aggregate", "bytes": 8}
        | {"start_ns": 100 * step, "end_ns": 100 * step + 200}
        for step in range(50)
    ]
    requests = [
        {"shard": 0, "step": row["step"], "op": "push"}
        | {"start_ns": int(str(row["start_ns"])) - 10, "end_ns": row["end_ns"]}
        for row in rows
    ]
    sums = utilisation.measure_utilisation(pl.DataFrame(rows), pl.DataFrame(requests))
    assert sums["cpu_ns"].sum() == pytest.approx(5_100, abs=50)
    assert sums["push_window_ns"].sum() == pytest.approx(5_110, abs=50)


def test_a_part_that_is_hardly_at_work_is_never_what_binds() -> None:
    """A link at work for 4 % of push and pull time, though twice the bandwidth would save a quarter."""
    report = tl.analyze(tl.open(SAMPLES / "grpc-pipelined"))
    loads = cast("Shards", report.results["shards"]).loads
    assert loads.select(pl.max_horizontal("cpu_share", "wire_share").max()).item() < 0.25
    assert not {found.kind for found in report.findings} & {"ps_cpu_bound", "ps_network_bound"}

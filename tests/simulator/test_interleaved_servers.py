"""Servers whose transfers overlap compute: times computed by hand from the causes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracelens.load import open as open_trace
from tracelens.load import prepare
from tracelens.simulator.synthetic import Fault, Scenario, generate, write
from tracelens.verdicts.report import analyze

MS = 1e6
# Two variables of 4 ms and 2 ms on a link, of one server; 2 workers; 10 ms of forward, 20 of backprop.
PLAIN = Scenario(
    ranks=2,
    steps=3,
    data_ms=0,
    forward_ms=10,
    backprop_ms=20,
    noise=0,
    spread=0,
    shards=1,
    variables=(8_000_000, 4_000_000),
    work=(1, 3),
    beside_compute=True,
    shared_links=True,
    link_gbytes_per_s=2,
    latency_us=0,
    apply_ms=0,
    aggregate_gbytes_per_s=1e6,
)


def events(scenario: Scenario, step: int = 1, **chosen: Any) -> pl.DataFrame:
    """What one step recorded, times in ms since its begin, to 1 us."""
    all_events = generate(scenario).events.collect()
    begin = all_events.filter(pl.col("step") == step, pl.col("kind") == "step")["start_ns"].min()
    times = [((pl.col(name) - begin) / MS).round(3) for name in ("start_ns", "end_ns")]
    part = all_events.filter(pl.col("step") == step, **chosen)
    return part.with_columns(times).sort("rank", "start_ns")


def spans(scenario: Scenario, **chosen: Any) -> list[tuple[float, float]]:
    return events(scenario, **chosen).select("start_ns", "end_ns").rows()


def test_pulls_come_in_forward_order() -> None:
    """The first variable of both workers takes 8 ms of the link, the second 4 more."""
    assert spans(PLAIN, op="pull", rank=0) == [(0, 8), (0, 12)]


def test_forward_waits_for_its_variables() -> None:
    """2.5 ms of forward follow the first one; the other 7.5 ms the second one, at 12 ms."""
    assert spans(PLAIN, kind="forward", rank=0) == [(0, 19.5)]
    assert spans(PLAIN, name="wait_pull", rank=0) == [(0, 8), (10.5, 12)]


def test_gradients_are_pushed_as_backprop_makes_them() -> None:
    """The last variable's after 15 of 20 ms, then the first one's; pushes share the link."""
    assert spans(PLAIN, kind="backprop", rank=0) == [(19.5, 39.5)]
    assert spans(PLAIN, op="push", rank=0) == [(34.5, 38.5), (39.5, 47.5)]


def test_all_wait_for_the_token() -> None:
    """The step ends for all workers when every update is applied."""
    assert spans(PLAIN, name="wait_token", rank=0) == [(39.5, 47.5)]
    slow = replace(PLAIN, faults=(Fault("backprop", (1,), extra_ms=30),))
    ends = events(slow, kind="step", type="span")["end_ns"].to_list()
    assert ends[0] == ends[1] > 69.5


def test_links_that_are_not_shared_go_by_turns() -> None:
    """The first worker has both variables after 6 ms, the second one after 12."""
    turns = replace(PLAIN, shared_links=False)
    ends = [events(turns, op="pull", rank=rank)["end_ns"].max() for rank in (0, 1)]
    assert ends == [6, 12]


def test_incast_slows_both_directions() -> None:
    """Two parallel messages get two thirds of the link's throughput."""
    slower = replace(PLAIN, incast=0.5)
    assert spans(slower, op="pull", rank=0) == [(0, 12), (0, 18)]


def test_what_is_written_is_what_is_generated(tmp_path: Path) -> None:
    """Files read back give the same steps and requests, with both sides of each."""
    write(PLAIN, tmp_path)
    read, made = open_trace(tmp_path), prepare(generate(PLAIN))
    lengths = [(t.steps["end_ns"] - t.steps["start_ns"]).sort().to_list() for t in (read, made)]
    assert lengths[0] == lengths[1]
    requests = read.requests
    assert requests.filter(op="push").height == 2 * 2 * 3
    assert set(requests.filter(op="aggregate")["request"]) == set(
        requests.filter(op="push")["request"]
    )


def test_the_analyses_see_the_server() -> None:
    """Workers wait for a network-bound server; nothing else is wrong."""
    slow_link = replace(PLAIN, ranks=4, steps=60, link_gbytes_per_s=0.5, noise=0.01)
    report = analyze(prepare(generate(slow_link)))
    assert report.ledger
    assert report.ledger.unexplained < 0.05
    assert np.isclose(sum(loss.share for loss in report.ledger.losses) + report.ledger.useful, 1)

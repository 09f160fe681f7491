"""A PS shard that takes longer than the others is told the path of calls that it does so in."""

from dataclasses import replace

import polars as pl
from support.runs.analysed import trace

import tracelens as tl
from tracelens.accounting import sampled_code
from tracelens.model.trace import SAMPLE_COLUMNS, Trace
from tracelens.simulator.synthetic import Fault, Scenario

SERVERS = Scenario(ranks=4, steps=60, shards=3, bucket_bytes=1 << 20)
SLOW = replace(SERVERS, faults=(Fault("aggregate", (1,), factor=40.0),))
MAIN, WAIT, SERVE = "<module> (ps.py:90)", "wait (ps.py:5)", "serve (ps.py:10)"
ADD, CHECKED = "aggregate (ps.py:20)", "checked_sum (sums.py:4)"
FRAMES = {
    "aggregate": (MAIN, SERVE, ADD, CHECKED),
    "apply": (MAIN, SERVE, "apply (ps.py:40)"),
    "reply": (MAIN, SERVE, "reply (ps.py:50)"),
}


def add_samples(scenario: Scenario, shards: tuple[int, ...] = (0, 1, 2)) -> Trace:
    """Return the run with samples of all that its shards' threads did, and of their waiting."""
    run = trace(scenario)
    held = run.shards.select("process", held="shard")
    served = run.requests.filter(pl.col("thread") == 0).join(held, on="process").sort("start_ns")
    free = dict.fromkeys(shards, 0)
    rows: list[tuple[object, ...]] = []
    for row in served.iter_rows(named=True):
        if row["held"] not in shards:
            continue
        about = (row["process"], 0, 100, "Main")
        rows.append((*about, free[row["held"]], row["start_ns"], (MAIN, WAIT)))
        rows.append((*about, row["start_ns"], row["end_ns"], FRAMES[row["op"]]))
        free[row["held"]] = row["end_ns"]
    return run.with_(samples=pl.DataFrame(rows, schema=SAMPLE_COLUMNS, orient="row"))


def test_the_code_of_a_slow_shard_is_in_its_finding() -> None:
    """All shards add up gradients, below calls that hold all that they do."""
    (finding,) = (
        candidate
        for candidate in tl.analyze(add_samples(SLOW)).findings
        if candidate.kind == "ps_cpu_bound"
    )
    assert finding.shards == (1,)
    assert finding.function == SERVE
    assert (
        "Stack samples show where: serve > aggregate > checked_sum (sums.py:4)" in finding.sentence
    )
    assert finding.evidence["samples"]["path"] == [SERVE, ADD, CHECKED]


def test_a_shard_that_does_no_more_than_others_has_none() -> None:
    """Nor has a shard without samples, or one without other shards."""
    run = add_samples(SLOW)
    assert sampled_code.find_in_shards(run, (0,)) is None
    assert sampled_code.find_in_shards(add_samples(SLOW, (0, 2)), (1,)) is None
    assert sampled_code.find_in_shards(add_samples(SLOW, (1,)), (1, 2)) is not None
    assert sampled_code.find_in_shards(trace(SLOW), (1,)) is None


def test_of_all_shards_it_is_what_serving_takes() -> None:
    """All shards are affected, so none can be compared with another."""
    found = sampled_code.find_in_shards(add_samples(SERVERS), (0, 1, 2))
    assert found
    assert found.call_path == (SERVE, FRAMES["reply"][-1])

"""Tables of parameter-server and elastic training are explained as such."""

from itertools import accumulate
from typing import Any

from tracelens import Trace
from tracelens.verdicts.report import analyze

STEPS = 40
Row = dict[str, Any]


def worker_step(rank: int, step: int, begin: int) -> list[Row]:
    """Write one step of a worker in microseconds: work, then a push to and a pull from each shard."""
    lengths = {"fprop": 300, "bwd": 500}
    edges = list(accumulate(lengths.values(), initial=begin))
    work = [
        {"kind": kind, "start_us": edge, "dur_us": length}
        for (kind, length), edge in zip(lengths.items(), edges, strict=False)
    ]
    traffic = []
    for shard, (size, push, pull) in enumerate([(8_000_000, 900, 700), (1_000_000, 120, 90)]):
        traffic_begin_us = edges[-1]
        traffic += [
            {
                "kind": "push",
                "start_us": traffic_begin_us,
                "dur_us": push,
                "shard": shard,
                "bytes": size,
            },
            {
                "kind": "pull",
                "start_us": traffic_begin_us + push,
                "dur_us": pull,
                "shard": shard,
                "bytes": size,
            },
        ]
    return [row | {"rank": rank, "step": step} for row in work + traffic]


def service(rank: int, shard: int, step: int, begin: int, length: int) -> Row:
    fields = {"rank": rank, "shard": shard, "step": step}
    return {"kind": "ps_service", "start_us": begin, "dur_us": length, **fields}


def columns(rows: list[Row]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def test_the_hot_shard_of_a_table_is_named() -> None:
    """Push, pull and `ps_service` rows with a shard: the shard that holds most bytes is named."""
    rows: list[Row] = []
    for step in range(STEPS):
        begin = 2_500 * step
        rows += worker_step(0, step, begin) + worker_step(1, step, begin)
        rows += [service(2, 0, step, begin + 850, 1_500), service(3, 1, step, begin + 850, 150)]
    trace = Trace.from_table(columns(rows), one_clock=True)
    assert trace.shards["shard"].to_list() == [0, 1]
    assert trace.workers["rank"].to_list() == [0, 1]
    report = analyze(trace)
    (fault,) = [finding for finding in report.findings if finding.category == "fault"]
    assert (fault.kind, fault.shards) == ("ps_hot_shard", (0,))
    assert report.summary.shards == 2


def test_elastic_averaging_matches_no_step_by_force() -> None:
    """Workers of unequal pace that now and then exchange with a centre: no step is matched by force."""
    rows: list[Row] = []
    for rank, length in enumerate((1_000, 1_000, 1_300)):
        for step in range(STEPS):
            begin_us = length * step
            work = {"kind": "forward_pass", "start_us": begin_us, "dur_us": length - 300}
            update = {"kind": "optimizer", "start_us": begin_us + length - 300, "dur_us": 100}
            exchange = {"kind": "elastic", "start_us": begin_us + length - 200, "dur_us": 200}
            rows += [row | {"rank": rank} for row in (work, update)]
            if step % 4 == 3:
                rows.append(exchange | {"rank": rank})
    trace = Trace.from_table(columns(rows), one_clock=True)
    kinds = trace.events.collect()["kind"].value_counts().rows()
    assert dict(kinds) == {"forward": 120, "update": 120, "elastic": 30}
    assert trace.steps.group_by("rank").len().sort("rank")["len"].to_list() == [STEPS] * 3
    efficiency = analyze(trace).efficiency
    assert efficiency is not None
    shares = {bar.cause: bar.share for bar in efficiency.waterfall}
    assert shares["exposed_transfer"] > 0.03
    assert shares["late_ranks"] == 0

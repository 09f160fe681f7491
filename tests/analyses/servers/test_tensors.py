"""What a shard holds is told by key or by name, with its bytes and its longest request."""

from typing import Any, cast

import polars as pl
import pytest
from support.runs.analysed import report, trace

from tracelens.analyses.servers import variable_placement
from tracelens.analyses.servers.shards import Shards
from tracelens.simulator.synthetic import Scenario

MIB = 1 << 20
VARIABLES = (9 * MIB, MIB, 6 * MIB, 2 * MIB)
DEALT = Scenario(ranks=2, steps=10, shards=2, variables=VARIABLES)


def request(name: str, *, key: int | None = None, **fields: Any) -> dict[str, Any]:
    """Write down a push of rank 0 to shard 0."""
    given = {"rank": 0, "shard": 0, "step": 0, "op": "push", "name": name, "key": key, "bytes": 8}
    times = {"start_ns": 0, "end_ns": 5, "ns": 5}
    return given | times | fields


def label_requests(*rows: dict[str, Any]) -> pl.DataFrame:
    """Return requests with their tensors."""
    return variable_placement.label_tensors(pl.DataFrame(rows, schema_overrides={"key": pl.Int32}))


def test_every_variable_is_on_its_shard_with_its_bytes() -> None:
    """Dealt out in turn: shard 0 holds variables 0 and 2; each way a worker moves all of a variable."""
    tensors = cast("Shards", report(DEALT).results["shards"]).tensors
    rows = tensors.select("shard", "tensor", "step_bytes").rows()
    assert rows == [
        (0, "variable 0", 9 * MIB),
        (0, "variable 2", 6 * MIB),
        (1, "variable 3", 2 * MIB),
        (1, "variable 1", MIB),
    ]
    assert tensors["share"][0] == pytest.approx(0.6)
    assert tensors["bytes"][0] == 9 * MIB * 2 * DEALT.ranks * DEALT.steps


def test_the_longest_request_is_one_that_was_recorded() -> None:
    """Its rank and times are those of a recorded span of that variable, and none is longer."""
    row = cast("Shards", report(DEALT).results["shards"]).tensors.row(0, named=True)
    spans = trace(DEALT).spans.filter(pl.col("role") == "worker", pl.col("key") == 0).collect()
    lasted = spans["end_ns"] - spans["start_ns"]
    assert row["longest_end_ns"] - row["longest_start_ns"] == lasted.max()
    found = spans.filter(start_ns=row["longest_start_ns"], end_ns=row["longest_end_ns"])
    assert row["rank"] in found["rank"]


def test_names_tell_where_keys_do_not() -> None:
    """The operation is no part of it; a name that says nothing else tells no tensor."""
    table = label_requests(request("push dense/kernel"), request("push"), request("push", key=3))
    assert table["tensor"].to_list() == ["dense/kernel", None, "variable 3"]


def test_sizes_are_in_order_of_creation() -> None:
    """By key, not by when they were pushed; a single unknown one makes all of them unknown."""
    known = label_requests(request("push", key=10), request("push", key=9, bytes=4))
    assert list(variable_placement.measure_tensors(known, 1).items()) == [
        ("variable 9", 4),
        ("variable 10", 8),
    ]
    assert (
        variable_placement.measure_tensors(
            label_requests(request("push", key=1), request("push")), 1
        )
        == {}
    )

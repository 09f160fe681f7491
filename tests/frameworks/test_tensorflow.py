"""Real parameter servers of TensorFlow, without a change to the script (`make test-tensorflow`)."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import polars as pl
import pytest
from support.launch.examples import EXAMPLES
from support.launch.record import run_record

import tracelens as tl

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.trace import Trace

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(
        find_spec("tensorflow") is None, reason="TensorFlow is not installed: make test-tensorflow"
    ),
]

VARIABLES = {"hidden": 64 * 2048, "hidden-bias": 2048, "out": 2048 * 10, "out-bias": 10}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder: Path = tmp_path_factory.mktemp("tensorflow") / "t"
    script = EXAMPLES / "tf_parameter_server.py"
    done = run_record("--out", folder, "--", sys.executable, script, "--seconds=15")
    assert done.returncode == 0, done.stderr
    assert "TensorFlow's parameter servers with 4 variables" in done.stderr
    return tl.open(folder)


@pytest.fixture(scope="module")
def requests(trace: Trace) -> pl.DataFrame:
    return trace.spans.filter(pl.col("kind") == "ps").collect()


def test_every_process_is_there(trace: Trace) -> None:
    assert trace.workers["rank"].to_list() == [0, 1]
    assert trace.shards["shard"].to_list() == [0, 1]
    assert trace.processes["complete"].all()


def test_variables_lie_on_servers_in_turn(requests: pl.DataFrame) -> None:
    pulls = (
        requests.filter(op="pull").select("name", "shard", "bytes").unique().sort("shard", "name")
    )
    assert pulls.rows() == [
        (f"pull {name}", shard, 4 * VARIABLES[name])
        for shard, name in [(0, "hidden"), (0, "out"), (1, "hidden-bias"), (1, "out-bias")]
    ]


def test_requests_match_one_to_one(requests: pl.DataFrame) -> None:
    """But for those at the edges of the profiled window, which one side alone saw."""
    for asked, served in (("pull", "reply"), ("push", "receive")):
        asked_requests = requests.filter(op=asked).select("request", "shard", "bytes")
        served_requests = requests.filter(op=served).select("request", "shard", "bytes")
        assert asked_requests["request"].is_unique().all()
        assert served_requests["request"].is_unique().all()
        assert (
            asked_requests.join(served_requests, on=["request", "shard", "bytes"]).height
            > 0.9 * asked_requests.height
            > 50
        )


def test_a_pull_ends_after_its_reply_began(requests: pl.DataFrame) -> None:
    """Both ends are on one clock."""
    ends = [
        requests.filter(op=op).select("request", "start_ns", "end_ns") for op in ("pull", "reply")
    ]
    pairs = ends[0].join(ends[1], on="request", suffix="_there")
    assert (pairs["end_ns"] > pairs["start_ns_there"]).sum() > 0.99 * pairs.height


def test_idleness_has_its_cause(trace: Trace) -> None:
    """A worker without a function to run waits for the coordinator; little else is unknown."""
    efficiency = tl.analyze(trace).efficiency
    assert efficiency
    shares = {bar.cause: bar.share for bar in efficiency.waterfall}
    assert shares["idle"] > 0.05
    assert shares.get("uninstrumented", 0.0) < 0.05


def test_steps_have_their_phases(trace: Trace) -> None:
    for kind in ("forward", "backprop"):
        spans = trace.spans.filter(pl.col("kind") == kind).collect()
        assert spans.select("rank", "step").is_unique().all()
        assert spans.height > 0.9 * trace.steps.height > 30

"""TensorFlow 1 style sessions and servers, without a change to the script (`make test-tensorflow`)."""

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

HIDDEN = 16384
BYTES = {"hidden": 64 * HIDDEN, "hidden-bias": HIDDEN, "out": HIDDEN * 10, "out-bias": 10}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder: Path = tmp_path_factory.mktemp("sessions") / "t"
    script = EXAMPLES / "tf1_parameter_server.py"
    options = (f"--hidden={HIDDEN}", "--batch=4", "--steps=300")
    done = run_record("--out", folder, "--", sys.executable, script, *options)
    assert done.returncode == 0, done.stderr
    assert "TensorFlow's sessions with 5 variables on parameter servers" in done.stderr
    assert f"{4 * (BYTES['hidden'] + BYTES['out']):,} on server 1" in done.stderr
    return tl.open(folder)


@pytest.fixture(scope="module")
def requests(trace: Trace) -> pl.DataFrame:
    return trace.spans.filter(pl.col("kind") == "ps").collect()


def test_every_process_is_there(trace: Trace) -> None:
    assert trace.workers["rank"].to_list() == [0, 1]
    assert trace.shards["shard"].to_list() == [0, 1]


@pytest.mark.parametrize("op", ["pull", "push"])
def test_each_variable_is_moved_whole_to_the_server_that_it_is_on(
    op: str, requests: pl.DataFrame
) -> None:
    moved = requests.filter(op=op).select("name", "shard", "bytes").unique().sort("name")
    assert moved.rows() == [
        (f"{op} {name}", 1 if name in ("hidden", "out") else 0, 4 * BYTES[name])
        for name in sorted(BYTES)
    ]


def test_both_ends_know_a_request(requests: pl.DataFrame) -> None:
    """But for those at the edges of the profiled window, which one side alone saw."""
    for asked, served in (("pull", "reply"), ("push", "receive"), ("push", "aggregate")):
        asked_requests = requests.filter(op=asked).select("request", "shard", "bytes")
        served_requests = requests.filter(op=served).select("request", "shard", "bytes")
        assert (
            asked_requests.join(served_requests, on=["request", "shard", "bytes"]).height
            > 0.9 * asked_requests.height
            > 50
        )


def test_gradients_are_added_up_and_applied_once(requests: pl.DataFrame) -> None:
    """Those of both workers make one update."""
    for server in (0, 1):
        counts = dict(
            requests.filter(op="apply", shard=server).group_by("name").agg(pl.len()).iter_rows()
        )
        added = requests.filter(op="aggregate", shard=server).height / 2
        assert sum(counts.values()) == pytest.approx(added, rel=0.1)


def test_workers_number_a_step_alike(trace: Trace) -> None:
    """Each run waits for the same token, so the same step ends at the same time, within a step."""
    steps = trace.steps.select("rank", "step", "start_ns", "end_ns")
    paired = steps.filter(rank=0).join(steps.filter(rank=1), on="step")
    assert paired.height > 0.9 * steps.height / 2 > 20
    length = paired["end_ns"] - paired["start_ns"]
    apart = (paired["end_ns"] - paired["end_ns_right"]).abs()
    assert (apart < length).sum() > 0.9 * paired.height


def test_without_servers_it_is_said_that_nothing_is_recorded(tmp_path: Path) -> None:
    """The program's own spans are recorded all the same."""
    program = "import tensorflow, tracelens as tl\nwith tl.span('mine'): tensorflow.constant(1) + 1"
    done = run_record("--out", tmp_path / "t", "--", sys.executable, "-c", program)
    assert "recorded 1 process" in done.stderr
    assert "TensorFlow was used, nothing of it is recorded: no session" in done.stderr

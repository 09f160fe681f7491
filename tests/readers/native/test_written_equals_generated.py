"""What is written as trace files is read back without loss."""

from pathlib import Path

import pytest
from polars.testing import assert_frame_equal
from support.runs.scenarios import BLOCKING, DEVICES, HEALTHY, HOT_SHARD, TWO_HOSTS

from tracelens import load
from tracelens.simulator.synthetic import Scenario, generate, write

KEY = ["process", "start_ns", "end_ns", "kind", "name", "thread", "request", "seq"]


@pytest.mark.parametrize("scenario", [HEALTHY, BLOCKING, TWO_HOSTS, HOT_SHARD, DEVICES])
def test_a_written_trace_is_read_as_generated(scenario: Scenario, tmp_path: Path) -> None:
    """Every event, process, thread, communicator and clock record comes back as it was."""
    write(scenario, tmp_path)
    progress_calls: list[tuple[int, int]] = []
    read = load.open(tmp_path, progress=lambda done, total: progress_calls.append((done, total)))
    generated = load.prepare(generate(scenario))
    count = scenario.ranks + scenario.shards
    assert progress_calls == [(done + 1, count) for done in range(count)]
    assert read.path == tmp_path
    assert read.notes == generated.notes
    assert read.alignment == generated.alignment
    for name in (
        "processes",
        "communicators",
        "threads",
        "clocks",
        "steps",
        "arrivals",
        "device_clocks",
    ):
        assert_frame_equal(getattr(read, name), getattr(generated, name))
    assert_frame_equal(read.events.collect().sort(KEY), generated.events.collect().sort(KEY))


def test_a_single_file_is_read_by_itself(tmp_path: Path) -> None:
    """One file of a trace can be opened by itself."""
    write(HEALTHY, tmp_path)
    trace = load.open(tmp_path / "worker-00002-1002.arrow")
    assert trace.workers["rank"].to_list() == [2]
    assert trace.expected_ranks == 4

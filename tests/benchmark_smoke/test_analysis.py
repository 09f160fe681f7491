"""The comparison with another analyzer: both get the same events."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from benchmarks.analyzers import kineto
from benchmarks.analyzers.converted import DEVICE, convert

import tracelens as tl
from tracelens.reports import report_format

RANKS, STEPS, MICRO_STEPS = 2, 30, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both forms of a simulated training."""
    path = tmp_path_factory.mktemp("profiled")
    kineto.simulate(RANKS, STEPS, MICRO_STEPS, path / "kineto")
    convert(path / "kineto", path / "trace")
    return path


def complete(path: Path) -> list[dict[str, Any]]:
    """The complete events of a rank's Kineto file."""
    return [event for event in kineto.load(path)["traceEvents"] if event["ph"] == "X"]


def files(folder: Path) -> Iterator[tuple[Path, pa.Table]]:
    """Each rank's Kineto file, and our table of it."""
    pairs = zip(
        sorted((folder / "kineto").iterdir()), sorted((folder / "trace").iterdir()), strict=True
    )
    for theirs, ours in pairs:
        with pa.ipc.open_file(str(ours)) as file:
            yield theirs, file.read_all()


def test_every_complete_event_is_converted(folder: Path) -> None:
    """One row each, but for a kernel, which is in the row of its launch."""
    for theirs, table in files(folder):
        launched = table["device_start_ns"]
        assert len(table) + len(launched) - launched.null_count == len(complete(theirs))


def test_times_of_kernels_are_theirs(folder: Path) -> None:
    """To the nanosecond, on the same streams."""
    for theirs, table in files(folder):
        kernels = [event for event in complete(theirs) if event["cat"] in DEVICE]
        expected = Counter((round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in kernels)
        rows = table.filter(table["device_start_ns"].is_valid())
        kernel_counts = Counter(
            zip(
                rows["device_start_ns"].to_pylist(),
                rows["device_duration_ns"].to_pylist(),
                strict=True,
            )
        )
        assert kernel_counts == expected
        assert len(set(rows["stream"].to_pylist())) == len(kineto.STREAMS)


def test_what_is_converted_is_explained(folder: Path) -> None:
    """All ranks, steps and kinds of work are present, and every reduction is matched."""
    trace = tl.open(folder / "trace")
    shown = json.loads(report_format("json").render(tl.analyze(trace)))["trace"]
    assert (shown["ranks_seen"], shown["steps"]) == (RANKS, STEPS)
    kinds = trace.spans.select("kind").collect()["kind"].value_counts()
    count = dict(kinds.cast({"kind": str}).iter_rows())
    assert count["step"] == RANKS * STEPS
    assert count["reduction"] == trace.arrivals.height == RANKS * STEPS * MICRO_STEPS * 6
    assert {"forward", "backprop", "update"} <= set(count)

"""A process's spans read alone are those of the whole trace, on the common clock."""

from pathlib import Path

import polars as pl
import pytest
from support.runs.indexes import explained, recorded

from tracelens import load
from tracelens.lod import opening
from tracelens.lod.tracks.recorded_spans import RecordedSpans
from tracelens.simulator.synthetic import Scenario, random_clocks

SKEWED = Scenario(ranks=4, ranks_per_host=2, steps=40, clocks=random_clocks(2))
DEVICES = Scenario(ranks=2, ranks_per_host=1, steps=20, on_device=True, clocks=random_clocks(2))
SHARDS = Scenario(ranks=2, shards=2, steps=10)


@pytest.mark.parametrize("scenario", [SKEWED, DEVICES, SHARDS], ids=["clocks", "devices", "shards"])
def test_alone_as_together(scenario: Scenario, tmp_path: Path) -> None:
    """Begins, ends, times on devices and all else agree, for every process of an indexed trace."""
    folder = recorded(tmp_path / "run", scenario)
    explained(folder)
    run = opening.open_indexed(folder)
    assert run
    trace = load.open(folder)
    read = RecordedSpans(run, folder)
    together = trace.spans.collect()
    for process in trace.processes["process"]:
        of_process = together.filter(pl.col("process") == process)
        alone = read.read_spans(process)
        for column in of_process.columns:
            is_text = of_process.schema[column] == pl.Categorical
            column_together, column_alone = (
                frame[column].cast(pl.String) if is_text else frame[column]
                for frame in (of_process, alone)
            )
            assert column_together.equals(column_alone, null_equal=True), column

"""A stranger's table whose compute is on a thread or stream of its own, from the file to the report."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pytest
from support.turns import select_turn

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

RANKS, STEPS, SLOW = 4, 60, 2
WORK_US: Final = {"forward": 9_000, "backward": 18_000, "optimizer": 3_000}
MAIN, COMPUTE, COMM = "main", "compute", "comm"
SAMPLE: Final = np.random.default_rng(5).lognormal(0.0, 0.03, (STEPS, RANKS, len(WORK_US)))


def rows(factor: float) -> list[dict[str, Any]]:
    """Write a training whose main thread marks steps, and waits for what it has queued elsewhere."""
    span_rows: list[dict[str, Any]] = []
    work = SAMPLE * [*WORK_US.values()]
    work[:, SLOW] *= factor
    begin_us = np.zeros(RANKS)
    for step in range(STEPS):
        forward = begin_us + 200 + work[step, :, 0]
        arrived = forward + work[step, :, 1]
        reduced = np.full(RANKS, arrived.max() + 2_500)
        end = reduced + work[step, :, 2]
        for lane, name, first_us, last_us in (
            (MAIN, "step", begin_us, end),
            (MAIN, "synchronize", begin_us + 50, end),
            (COMPUTE, "forward", begin_us + 200, forward),
            (COMPUTE, "backward", forward, arrived),
            (COMM, "allreduce", arrived, reduced),
            (COMPUTE, "optimizer", reduced, end),
        ):
            starts, lengths = first_us.round(), (last_us - first_us).round()
            span_rows += [
                {"rank": rank, "lane": lane, "name": name, "step": step, "ts_us": ts, "dur_us": dur}
                for rank, ts, dur in zip(
                    range(RANKS),
                    starts.astype(int).tolist(),
                    lengths.astype(int).tolist(),
                    strict=True,
                )
            ]
        begin_us = end
    return span_rows


def threads(frame: pl.DataFrame) -> pl.DataFrame:
    """Name threads as people do."""
    return frame.rename({"lane": "tid"})


def streams(frame: pl.DataFrame) -> pl.DataFrame:
    """Number streams, in a column that is empty for what a thread did."""
    number = pl.col("lane").replace_strict({COMPUTE: 7, COMM: 20}, default=None)
    return frame.with_columns(stream=number).drop("lane")


def launches(frame: pl.DataFrame) -> pl.DataFrame:
    """Let the main thread queue work under the names that it has on the streams."""
    named_spans = frame.with_columns(
        pl.col("lane").replace({COMPUTE: "stream 7", COMM: "stream 20"})
    )
    queued = named_spans.filter(pl.col("lane") == "stream 7").with_columns(
        lane=pl.lit(MAIN), ts_us=pl.col("ts_us") - 100, dur_us=pl.lit(80, pl.Int64)
    )
    return pl.concat([named_spans, queued]).rename({"lane": "tid"})


def report_of(path: Path) -> dict[str, Any]:
    tracelens = str(Path(sys.executable).with_name("tracelens"))
    command = [
        tracelens,
        "analyze",
        str(path),
        "--map",
        "kind:synchronize=wait",
        "--format",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("suffix", select_turn([".parquet", ".csv"]))
@pytest.mark.parametrize("shape", [threads, streams, launches])
def test_work_elsewhere_counts(
    shape: Callable[[pl.DataFrame], pl.DataFrame], suffix: str, tmp_path: Path
) -> None:
    """It is useful time, the straggler is named by phase, and the report says who did what."""
    for factor, slow in ((1.6, True), (1.0, False)):
        frame, path = shape(pl.DataFrame(rows(factor))), tmp_path / f"spans-{slow}{suffix}"
        if suffix == ".csv":
            frame.write_csv(path)
        else:
            frame.write_parquet(path)
        report = report_of(path)
        faults = [entry for entry in report["findings"] if entry["category"] == "fault"]
        named = [(entry["kind"], entry["ranks"], entry["phase"]) for entry in faults]
        assert named == ([("straggler", [SLOW], "backprop")] if slow else [])
        pop = report["efficiency"]["pop"]
        assert pop["load_balance"] * pop["communication_efficiency"] > (0.65 if slow else 0.85)
        recognised = [
            entry for entry in report["notes"] if "Recognised as threads" in entry["sentence"]
        ]
        assert len(recognised) == 1
        assert "forward" in recognised[0]["sentence"]

"""Messages whose other end was never recorded tell nothing of links, and stop no analysis."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.tiers import mark_slow

from tracelens import Trace, load
from tracelens.accounting.communication.transfers import list_messages
from tracelens.model.result import Report
from tracelens.verdicts.report import analyze
from tracelens_dashboard.export import report as page
from tracelens_dashboard.runs.store import Store

ROOT = Path(__file__).parents[2]
STAGES = 4
STEPS = 12
MS = 1_000_000


def copy_sample(name: str, folder: Path) -> Path:
    """Copy a sample; return the file of its rank 0."""
    for file in sorted((ROOT / "sample_traces" / name).glob("*.arrow")):
        (folder / file.name).write_bytes(file.read_bytes())
    return next(iter(sorted(folder.glob("worker-00000-*.arrow"))))


def cut_file(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: int(0.6 * file.stat().st_size)])


@pytest.mark.parametrize("damage", [cut_file, Path.unlink], ids=["cut off", "missing"])
def test_a_tree_without_its_root(damage: Callable[[Path], Any], tmp_path: Path) -> None:
    """All messages of this run are with rank 0, so without it none has both ends."""
    damage(copy_sample("mpi-tree", tmp_path))
    trace = load.open(tmp_path)
    report = analyze(trace)
    assert report.summary.ranks_seen >= 2
    assert list_messages(trace).is_empty()
    assert_drawn(trace, report, tmp_path)


def assert_drawn(trace: Trace, report: Report, folder: Path) -> None:
    """Draw all pages, as the dashboard and a report of one file do."""
    page.write(Store.from_trace(trace, report), folder / "report.html")
    assert (folder / "report.html").stat().st_size > 0


def pipeline(*, one_host: bool) -> list[dict[str, Any]]:
    """A job of pipeline stages as a table: each passes activations on, and gradients back."""
    rows = []
    for step in range(STEPS):
        begin_ns = step * 100 * MS
        for stage in range(STAGES):
            forward_ns = begin_ns + stage * 10 * MS
            common = {"rank": stage, "step": step, "world": STAGES}
            rows.append(
                common | {"kind": "step", "start_ns": begin_ns, "end_ns": begin_ns + 99 * MS}
            )
            rows.append(
                common | {"kind": "forward", "start_ns": forward_ns, "end_ns": forward_ns + 8 * MS}
            )
        for (lower_stage, upper_stage), back in [
            (pair, back) for pair in pairwise(range(STAGES)) for back in (0, 1)
        ]:
            forward_ns = begin_ns + (50 * MS if back else 0) + (lower_stage + 1) * 9 * MS
            sender, receiver = (upper_stage, lower_stage) if back else (lower_stage, upper_stage)
            about = {"kind": "reduction", "step": step, "bytes": 1 << 20, "world": STAGES}
            about |= {"communicator": "pipe", "seq": 2 * step + back, "start_ns": forward_ns}
            about["end_ns"] = forward_ns + MS
            rows.append(about | {"rank": sender, "peer": receiver, "op": "send"})
            rows.append(about | {"rank": receiver, "peer": sender, "op": "recv"})
    return [row | {"host": "one" if one_host else f"host {row['rank']}"} for row in rows]


MISSING: dict[str, Callable[[dict[str, Any]], bool]] = {
    "sends of even stages, receives of what odd ones sent": lambda row: (
        row.get("op") is None
        or (row["op"] == "send" and row["rank"] % 2 == 0)
        or (row["op"] == "recv" and row["peer"] % 2 == 1)
    ),
    "every second stage was not recorded": lambda row: row["rank"] in {0, 2},
    "sends of the first stage, receives of the last": lambda row: (
        row.get("op") is None or (row["op"], row["rank"]) in {("send", 0), ("recv", STAGES - 1)}
    ),
}


@pytest.mark.parametrize(
    "one_host", mark_slow([True, False], quick=[True]), ids=["one host", "untied clocks"]
)
@pytest.mark.parametrize("missing", MISSING)
def test_pipelines_with_missing_ends(missing: str, one_host: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """Whatever ends are missing from a table, its analysis goes through."""
    file = tmp_path / "pipeline.parquet"
    rows = [row for row in pipeline(one_host=one_host) if MISSING[missing](row)]
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(file)
    trace = load.open(file)
    report = analyze(trace)
    assert report.summary.steps == STEPS
    assert list_messages(trace).is_empty()
    assert_drawn(trace, report, tmp_path)


@pytest.mark.parametrize("one_host", [True, False], ids=["one host", "two hosts"])
def test_complete_messages_all_count(one_host: bool) -> None:  # noqa: FBT001
    """With all ends there, every message counts; in both directions they tie the clocks of hosts."""
    rows = pipeline(one_host=one_host)
    trace = Trace.from_table(pl.DataFrame(rows, infer_schema_length=None))
    analyze(trace)
    assert list_messages(trace).height == trace.matched_messages.height > 0

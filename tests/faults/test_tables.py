"""Tables of spans with odd contents are analyzed, drawn and exported as far as they make sense."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.tiers import mark_slow

from tracelens import load
from tracelens.accounting import phases
from tracelens.exports import perfetto
from tracelens.exports.content import select_content
from tracelens.model.result import Report
from tracelens.model.trace import Trace
from tracelens.schema.vocabulary import MOST_RANKS
from tracelens.verdicts.report import analyze
from tracelens_dashboard.export import report as page
from tracelens_dashboard.runs.store import Store

STEPS = 30
STEP_NS = 100_000
MANY = 2**31 - 1
Row = dict[str, Any]


def job(role: str = "worker") -> list[Row]:
    """Two processes of a role, 30 steps, with requests to, or of, two shards."""
    return [row for step in range(STEPS) for rank in range(2) for row in _step(role, step, rank)]


def _step(role: str, step: int, rank: int) -> list[Row]:
    begin_ns = step * STEP_NS
    about = {"rank": rank, "role": role, "step": step, "host": "h", "name": "x"}
    request = about | {"kind": "ps", "shard": rank, "peer": rank, "bytes": 100, "world": 2}
    request |= {
        "request": 2 * step + rank,
        "start_ns": begin_ns + 9000,
        "end_ns": begin_ns + 20_000,
    }
    if role == "ps":
        return [request | {"op": "aggregate"}]
    return [
        about | {"kind": "step", "start_ns": begin_ns, "end_ns": begin_ns + STEP_NS - 1000},
        about | {"kind": "forward", "start_ns": begin_ns + 1000, "end_ns": begin_ns + 9000},
        request | {"op": "push"},
    ]


def use_all_verbs(rows: list[Row], folder: Path) -> tuple[Trace, Report]:
    """Read, analyze, draw and export a table, as all verbs together do."""
    file = folder / "spans.parquet"
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(file)
    trace = load.open(file)
    report = analyze(trace)
    page.write(Store.from_trace(trace, report), folder / "report.html")
    "".join(perfetto.write(perfetto.make_selection(select_content(trace))))
    return trace, report


@pytest.mark.parametrize(
    "column",
    mark_slow(["name", "shard", "bytes", "op", "kind", "step", "request"], ("step",)),
)
def test_a_column_without_values_does_no_harm(column: str, tmp_path: Path) -> None:
    """Whatever column is empty, what the others tell is told."""
    rows = [row | {column: None} for row in job() + job("ps")]
    trace, _ = use_all_verbs(rows, tmp_path)
    assert trace.workers.height == 2


def test_a_table_of_servers_has_no_step(tmp_path: Path) -> None:
    """A table of servers only has no step, and says what there is."""
    trace, report = use_all_verbs(job("ps"), tmp_path)
    assert trace.shards.height == 2
    assert report.summary.steps == 0


CHANGED: dict[str, Callable[[Row], Row]] = {
    "no length": lambda row: {"end_ns": row["start_ns"]},
    "all at one moment": lambda _: {"start_ns": 5, "end_ns": 5},
    "steps without length": lambda row: (
        {"end_ns": row["start_ns"]} if row["kind"] == "step" else {}
    ),
    "before zero": lambda row: {
        "start_ns": row["start_ns"] - 10**9,
        "end_ns": row["end_ns"] - 10**9,
    },
    "near 2^63 on the device": lambda _: {
        "device_start_ns": 2**63 - 1,
        "device_duration_ns": 2**63 - 1,
        "stream": 0,
    },
    "a begin on the device alone": lambda _: {"device_start_ns": 5, "stream": 0},
    "a length on the device alone": lambda _: {"device_duration_ns": 5, "stream": 0},
    "far shards and keys": lambda _: {"shard": MANY, "key": MANY, "peer": MANY},
    "far steps": lambda row: {"step": MANY - STEPS + row["step"]},
}


@pytest.mark.parametrize(
    "name", mark_slow(CHANGED, ("no length", "before zero", "near 2^63 on the device"))
)
def test_odd_values_leave_whole_times_that_add_up(name: str, tmp_path: Path) -> None:
    """Times stay whole numbers, and add up."""
    rows = [row | CHANGED[name](row) for row in job()]
    trace, _ = use_all_verbs(rows, tmp_path)
    segments = phases.run(trace).segments
    assert segments["start_ns"].dtype == segments["end_ns"].dtype == pl.Int64
    assert (segments["end_ns"] >= segments["start_ns"]).all()


def test_negative_times_are_counted(tmp_path: Path) -> None:
    """Rows that end before they begin are left out, with their number."""
    rows = job()
    rows[1] |= {"end_ns": rows[1]["start_ns"] - 5}
    trace, _ = use_all_verbs(rows, tmp_path)
    assert trace.dropped == {"negative duration": 1}


@pytest.mark.slow
def test_more_ranks_than_any_job_has(tmp_path: Path) -> None:
    """Such a world is not believed, such ranks are left out, and both are said."""
    trace, report = use_all_verbs([row | {"world": MANY} for row in job()], tmp_path)
    assert trace.expected_ranks == report.summary.ranks_expected == 2
    assert any("'world'" in note.sentence for note in trace.notes)
    far = [row | {"rank": MOST_RANKS if row["rank"] else 0} for row in job()]
    assert use_all_verbs(far, tmp_path)[0].workers["rank"].to_list() == [0]

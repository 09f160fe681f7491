"""A converted run is explained as the run itself, in every format that `tracelens analyze` reads."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from support.runs.analysed import report as simulated_report
from support.runs.analysed import trace as simulated
from support.runs.scenarios import BLOCKING, DEVICES, HOT_SHARD, TWO_HOSTS
from support.runs.tables import comparable, differing
from support.samples import manifest, sample_report, sample_trace
from support.tiers import mark_slow, mark_slow_in_turn

import tracelens
from tracelens.exports import EXPORTS, native, table
from tracelens.exports.content import Content, select_content
from tracelens.exports.otlp import unix_offset_ns
from tracelens.model.choice import Choice
from tracelens.model.result import Report
from tracelens.model.trace import Trace
from tracelens.reports import to_json
from tracelens.verdicts.report import analyze

OTHERS = {"speedscope", "perfetto_manifest"}  # of stacks, and of the user's own files
OF_SPANS = {name: export for name, export in EXPORTS.items() if name not in OTHERS}
SAMPLE_NAMES = [sample.name for sample in manifest()]
SCENARIOS = {"blocking": BLOCKING, "devices": DEVICES, "servers": HOT_SHARD, "hosts": TWO_HOSTS}


def comparable_report(trace: Trace) -> dict[str, Any]:
    """Return the report but for names of files, how clocks were aligned, and notes."""
    return comparable(to_json.to_object(analyze(trace)))


def told_of_sample(name: str) -> dict[str, Any]:
    return comparable(to_json.to_object(sample_report(name)))


@pytest.mark.parametrize("name", mark_slow_in_turn(SAMPLE_NAMES, ("mpi-sampled", "easgd-sync3")))
def test_every_sample_as_a_trace_folder(name: str, tmp_path: Path) -> None:
    """Word for word the same report, also of several hosts: how sure the clocks are is kept, too."""
    trace = sample_trace(name)
    native.save(select_content(trace), tmp_path / "out")
    read_trace = tracelens.open(tmp_path / "out")
    assert not differing(comparable_report(read_trace), told_of_sample(name))
    assert analyze(read_trace).life == sample_report(name).life
    assert read_trace.uncertainty_ns == trace.uncertainty_ns
    assert read_trace.samples.height == trace.samples.height
    assert [note.kind for note in read_trace.notes] == [note.kind for note in trace.notes]


@pytest.mark.parametrize("name", mark_slow_in_turn(SAMPLE_NAMES, ("mpi-killed-rank", "grpc-async")))
def test_every_sample_as_a_table(name: str, tmp_path: Path) -> None:
    """The same report but for stacks, which tables do not hold; nothing has to be said about clocks."""
    trace = sample_trace(name)
    table.PARQUET.save(select_content(trace), tmp_path / "out.parquet")
    read_trace = tracelens.open(tmp_path / "out.parquet")
    without_stacks = trace.with_(samples=trace.samples.clear())
    expected = comparable_report(without_stacks) if trace.samples.height else told_of_sample(name)
    assert not differing(comparable_report(read_trace), expected)


@pytest.mark.parametrize("form", ["otlp", "perfetto"])
@pytest.mark.parametrize(
    "name", mark_slow_in_turn(SAMPLE_NAMES, ("ddp-slow-backprop", "mpi-killed-rank", "easgd-sync2"))
)
def test_every_sample_as_a_viewer_has_it(name: str, form: str, tmp_path: Path) -> None:
    """The same report but for stacks; dates and names of threads come back, too."""
    trace = sample_trace(name)
    file = tmp_path / f"out{EXPORTS[form].SUFFIX}"
    EXPORTS[form].save(select_content(trace), file)
    read_trace = tracelens.open(file)
    without_stacks = trace.with_(samples=trace.samples.clear())
    expected = comparable_report(without_stacks) if trace.samples.height else told_of_sample(name)
    assert not differing(comparable_report(read_trace), expected)
    assert read_trace.recognition is None
    assert read_trace.uncertainty_ns == trace.uncertainty_ns
    main = trace.processes.filter("main")["process"].to_list()
    main_events = [
        t.events.filter(pl.col("process").is_in(main)).collect() for t in (read_trace, trace)
    ]
    assert main_events[0].height == main_events[1].height
    threads = trace.threads.select("thread", "name").iter_rows()
    assert set(read_trace.threads["name"]) <= {
        name or f"thread {number}" for number, name in threads
    }
    assert unix_offset_ns(read_trace) == unix_offset_ns(trace)


def named_by_findings(report: Report) -> list[tuple[Any, ...]]:
    return [(finding.kind, finding.ranks, finding.steps) for finding in report.findings]


@pytest.mark.parametrize("scenario", mark_slow(SCENARIOS, ("devices",)))
def test_every_scenario_has_the_same_findings_after_export(scenario: str, tmp_path: Path) -> None:
    """Devices, servers and clocks that run apart, from a trace that no file holds."""
    trace = simulated(SCENARIOS[scenario])
    expected = named_by_findings(simulated_report(SCENARIOS[scenario]))
    for name, export in OF_SPANS.items():
        export.save(select_content(trace), tmp_path / name)
        if name != "csv":
            read_trace = tracelens.open(tmp_path / name)
            assert named_by_findings(analyze(read_trace)) == expected
            assert read_trace.events.collect().height == trace.events.collect().height
            assert read_trace.alignment.method == "same_clock"


def test_devices_stay_on_the_clock_of_their_host(tmp_path: Path) -> None:
    """Their times are converted once, and not again when the result is read."""
    trace = simulated(DEVICES)
    native.save(select_content(trace), tmp_path / "out")
    read_trace = tracelens.open(tmp_path / "out")
    key = ["process", "start_ns", "thread", "depth"]
    columns = [*key, "device_start_ns", "device_duration_ns", "end_ns"]
    tables = [t.events.collect().select(columns).sort(columns) for t in (read_trace, trace)]
    assert tables[0].equals(tables[1])
    assert tables[0]["device_start_ns"].count() > 0
    assert read_trace.device_clocks.height == trace.device_clocks.height


def test_csv_and_parquet_hold_the_same(tmp_path: Path) -> None:
    trace = sample_trace("mpi-killed-rank")
    for name in ("parquet", "csv"):
        EXPORTS[name].save(select_content(trace), tmp_path / f"out.{name}")
    frames = [
        tracelens.open(tmp_path / f"out.{name}").events.collect()
        for name in EXPORTS
        if name in {"parquet", "csv"}
    ]
    assert frames[0].equals(frames[1])


def test_rows_of_a_table_are_in_order_of_rank_and_begin(tmp_path: Path) -> None:
    """Through all row groups, workers and servers of one number included, and zstd throughout."""
    file = tmp_path / "out.parquet"
    table.PARQUET.save(select_content(sample_trace("ps-hot-shard")), file)
    rows = pq.read_table(file, columns=["rank", "start_ns"]).to_pylist()
    keys = [(row["rank"], row["start_ns"]) for row in rows]
    assert keys == sorted(keys)
    metadata = pq.read_metadata(file)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        assert [order.column_index for order in group.sorting_columns] == [0, 1]
        assert group.column(0).compression == "ZSTD"


def test_what_was_left_out_stands_in_the_result(tmp_path: Path) -> None:
    """Of a part, trace folders and Parquet files say so when they are analyzed."""
    trace = sample_trace("ddp-healthy")
    choice = Choice(step_ranges=((10, 20),))
    for name in ("native", "parquet"):
        EXPORTS[name].save(select_content(trace, choice), tmp_path / name)
        notes = [note.sentence for note in tracelens.open(tmp_path / name).notes]
        assert "As asked, only steps 10-20 of the run are here." in notes
    metadata = pq.read_metadata(tmp_path / "parquet")
    facts = json.loads((metadata.metadata or {})[b"tracelens.conversion"])
    assert facts["events"] == metadata.num_rows


def test_a_damaged_statement_is_passed_over(tmp_path: Path) -> None:
    """What a Parquet file says of its conversion is read as warily as its rows."""
    file = tmp_path / "out.parquet"
    table.PARQUET.save(select_content(sample_trace("jax")), file)
    rows = pq.read_table(file)
    for text in (b"[1", b"[]", b'{"notes": 7, "window_ns": "x", "summed_up": -1}', b"[" * 99_999):
        pq.write_table(rows.replace_schema_metadata({b"tracelens.conversion": text}), file)
        assert tracelens.open(file).alignment.uncertainty_ns == 0


def test_one_process_is_read_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No format asks for the next process before it is done with the one before.

    Those with arrows between processes go through them twice.
    """
    trace = sample_trace("mpi-fused")
    all_rows = trace.events.collect().height
    read: list[int] = []
    read_events = Content.read_events

    def count_rows(self: Content, process: int) -> Any:
        events = read_events(self, process)
        read.append(events.height)
        return events

    monkeypatch.setattr(Content, "read_events", count_rows)
    for name, export in OF_SPANS.items():
        read.clear()
        export.save(select_content(trace), tmp_path / name)
        assert len(read) == (6 if name == "perfetto" else 3)
        assert max(read) < all_rows / 2

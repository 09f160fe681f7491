"""Logs of NCCL's Inspector: calls of communicators with sizes and bandwidth, and times where verbose."""

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support import inspector_files as inspector

import tracelens as tl
from tracelens.cli import main
from tracelens.errors import EmptyTrace, NotATrace, UnusableInput
from tracelens.readers import READERS
from tracelens.readers.base import Reading
from tracelens.readers.nccl_inspector import NcclInspectorReader, is_inspector

FORMAT = "log of NCCL Inspector"


def write_log(folder: Path, rank: int, records: list[dict[str, Any]]) -> Path:
    path = folder / f"node{rank // 2}-pid{1000 + rank}.log"
    path.write_bytes(inspector.lines(records))
    return path


def run(folder: Path, ranks: int = 4, **how: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for rank in range(ranks):
        write_log(folder, rank, inspector.training(rank, **how))
    return folder


def rows_of(trace: tl.Trace, **which: object) -> pl.DataFrame:
    words = pl.col("kind", "op", "name", "communicator").cast(pl.String)
    return trace.events.with_columns(words).filter(**which).collect()


def test_calls_have_the_communicators_ranks(tmp_path: Path) -> None:
    """Ranks are those of the communicator that all files share; times are those of kernels."""
    folder = run(tmp_path / "logs")
    assert next(reader.name for reader in READERS if reader.sniff(folder)) == FORMAT
    trace = tl.open(folder)
    assert trace.workers.select("rank", "host", "pid").rows() == [
        (0, "node0", 1000), (1, "node0", 1001), (2, "node1", 1002), (3, "node1", 1003),
    ]  # fmt: skip
    first = NcclInspectorReader().read(folder)
    scatter = rows_of(first, rank=0, name="ReduceScatter")
    assert scatter["start_ns"].min() == (inspector.BEGIN_US + 18_000) * 1_000
    assert scatter["end_ns"].min() == (inspector.BEGIN_US + 30_000) * 1_000
    assert scatter["bytes"].unique().to_list() == [1 << 26]
    assert trace.arrivals["arrived"].unique().to_list() == [4]
    assert trace.recognition
    assert "median" in dict(trace.recognition.facts)["bus bandwidth of ReduceScatter"]


def test_numbers_of_operations_become_those_of_a_communicator(tmp_path: Path) -> None:
    """The plugin counts each operation for itself, so two calls of a communicator have one number."""
    trace = NcclInspectorReader().read(run(tmp_path / "logs", steps=3))
    calls = rows_of(trace, rank=2).sort("start_ns").select("name", "seq").rows()
    names = ["ReduceScatter", "AllGather"] * 3
    assert calls == [(name, number) for number, name in enumerate(names)]


def test_who_is_late_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No run is called healthy, since the file holds calls of NCCL only."""
    assert main(["analyze", "--no-keep", str(run(tmp_path / "late", late=2))]) in {0, 1}
    assert "rank 2" in capsys.readouterr().out
    report = tl.analyze(tl.open(run(tmp_path / "well")))
    assert report.verdict.state == "inconclusive"


def test_calls_without_times_are_not_compared(tmp_path: Path) -> None:
    """Their length and their bandwidth are known, and their times are estimated: nobody waits."""
    trace = tl.open(run(tmp_path / "logs", late=2, verbose=False))
    calls = rows_of(trace)
    assert calls["status"].unique().to_list() == ["estimated"]
    assert calls["seq"].null_count() == calls.height
    lengths = rows_of(trace, rank=0, name="AllGather").select(pl.col("end_ns") - pl.col("start_ns"))
    assert lengths.to_series().unique().to_list() == [4_000_000]
    starts = rows_of(trace, rank=1).sort("start_ns").select("start_ns", "end_ns")
    assert (starts["end_ns"].shift(1) <= starts["start_ns"]).all()
    report = tl.analyze(trace)
    assert report.verdict.state == "inconclusive"
    assert not [finding for finding in report.findings if finding.category == "fault"]
    assert trace.recognition
    assert any("NCCL_INSPECTOR_DUMP_VERBOSE" in gap.advice for gap in trace.recognition.gaps)


def test_smaller_groups_and_messages(tmp_path: Path) -> None:
    """Peers are ranks of the job, though the plugin says ranks within communicators."""
    for rank in range(4):
        records = inspector.training(rank, steps=2)
        group, member = f"0x{rank // 2}", rank % 2
        begin_us = inspector.BEGIN_US + 5_000
        name = ("Send", "Recv")[member]
        fields: dict[str, Any] = {
            "group": group,
            "ranks": 2,
            "process": rank,
            "called": f"PP {rank // 2}",
        }
        records.append(
            inspector.record(member, name, 0, begin_us, begin_us + 90, peer=1 - member, **fields)
        )
        write_log(tmp_path, rank, records)
    trace = tl.open(tmp_path)
    messages = rows_of(trace).filter(pl.col("op").is_in(["send", "recv"])).sort("rank")
    assert messages.select("rank", "op", "peer").rows() == [
        (0, "send", 1), (1, "recv", 0), (2, "send", 3), (3, "recv", 2),
    ]  # fmt: skip
    assert "communicator PP 0" in trace.threads["name"].to_list()
    groups = dict(
        trace.communicators.select(pl.col("communicator").cast(pl.String), "ranks").rows()
    )
    assert groups["0x1"] == [2, 3]


def test_ranks_that_no_communicator_tells(tmp_path: Path) -> None:
    for rank in range(4):
        fields: dict[str, Any] = {"group": f"0x{rank // 2}", "ranks": 2, "process": rank}
        begin_us = inspector.BEGIN_US
        write_log(
            tmp_path,
            rank,
            [inspector.record(rank % 2, "AllReduce", 0, begin_us, begin_us + 9, **fields)],
        )
    with pytest.raises(UnusableInput, match="--rank-of node0-pid1000"):
        tl.open(tmp_path)
    given = {f"node{rank // 2}-pid{1000 + rank}.log": rank for rank in range(4)}
    trace = NcclInspectorReader().read(tmp_path, Reading(rank_of=given))
    assert trace.workers["rank"].to_list() == [0, 1, 2, 3]


def test_a_process_with_several_devices(tmp_path: Path) -> None:
    """Calls of the largest communicator say their rank, those of others do not."""
    records = [one for rank in range(4) for one in inspector.training(rank, steps=2)]
    begin = inspector.BEGIN_US
    records.append(inspector.record(1, "AllReduce", 0, begin, begin + 9, group="0x1", ranks=2))
    trace = tl.open(write_log(tmp_path, 0, records))
    assert trace.workers["rank"].to_list() == [0, 1, 2, 3]
    assert trace.recognition
    assert [count for _, count in trace.recognition.left_out] == [1]


def test_what_was_overwritten_is_said(tmp_path: Path) -> None:
    records = [*inspector.training(0, 3), inspector.stats(0, 7), inspector.stats(0, 9)]
    trace = tl.open(write_log(tmp_path, 0, records))
    assert trace.recognition
    assert dict(trace.recognition.left_out) == {"summaries of dumps": 2}
    assert any(gap.missing.startswith("9 calls were overwritten") for gap in trace.recognition.gaps)


def test_damage_costs_its_line(tmp_path: Path) -> None:
    text = inspector.lines(inspector.training(0, 4)).splitlines(keepends=True)
    text[2] = b'{"header": {\n'
    file = tmp_path / "node0-pid1.log"
    file.write_bytes(b"".join(text)[:-30])
    trace = NcclInspectorReader().read(file)
    assert rows_of(trace).height == 6
    assert {note.kind for note in trace.notes} >= {"truncated", "dropped"}
    packed = tmp_path / "node0-pid2.log.gz"
    packed.write_bytes(gzip.compress(inspector.lines(inspector.training(0, 4))))
    assert rows_of(NcclInspectorReader().read(packed)).height == 8


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("coll_exec_time_us", -1),
        ("coll_exec_time_us", 1e300),
        ("coll_exec_time_us", "long"),
        ("coll", 7),
    ],
)
def test_calls_that_cannot_be_are_counted(key: str, value: object, tmp_path: Path) -> None:
    records = inspector.training(0, 3)
    records[1]["coll_perf"][key] = value
    trace = tl.open(write_log(tmp_path, 0, records))
    assert sum(trace.dropped.values()) == 1
    assert rows_of(trace).height == 5


def test_files_of_other_programs_are_not_recognised(tmp_path: Path) -> None:
    for name, text in {
        "a.log": "INFO started\n",
        "b.log": "{}\n",
        "c.log": json.dumps({"header": {"id": 1}, "metadata": {}}),
        "d.json": json.dumps({"traceEvents": []}),
    }.items():
        (tmp_path / name).write_text(text)
        assert not is_inspector(tmp_path / name)
    with pytest.raises(NotATrace, match="does not begin with a line of NCCL Inspector"):
        NcclInspectorReader().read(tmp_path / "a.log")
    with pytest.raises(EmptyTrace):
        tl.open(write_log(tmp_path, 0, [inspector.stats(0, 0)]))

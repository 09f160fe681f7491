"""rocprofv3's JSON: kernels on streams, ranges of ROCTx, calls of RCCL; ranks come from the user."""

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support import rocprof_files as rocprof

import tracelens as tl
from tracelens.errors import EmptyTrace, NotATrace, UnusableInput
from tracelens.readers import READERS
from tracelens.readers.base import Reading
from tracelens.readers.rocprof import RocprofReader, is_rocprof
from tracelens.schema import gate


def write_results(path: Path, file: rocprof.RocprofFile) -> Path:
    path.write_bytes(file.written())
    return path


def rows_of(trace: tl.Trace, **which: object) -> pl.DataFrame:
    words = pl.col("kind", "op", "name").cast(pl.String)
    return trace.events.with_columns(words).filter(**which).collect()


def test_kernels_copies_and_ranges(tmp_path: Path) -> None:
    """Kernels are of the phase that launched them, on streams; collectives are reductions."""
    file = write_results(tmp_path / "4711_results.json", rocprof.training(4))
    assert next(reader.name for reader in READERS if reader.sniff(file)) == "trace of rocprofv3"
    trace = RocprofReader().read(file)
    assert trace.workers.select("rank", "host", "pid").rows() == [(0, "node0", 4711)]
    kernels = rows_of(trace).filter(pl.col("device_start_ns").is_not_null())
    counted = dict(kernels.group_by("kind").len().iter_rows())
    assert counted == {"forward": 4, "backprop": 4, "update": 4, "reduction": 4, "device": 4}
    assert rows_of(trace, kind="reduction")["op"].unique().to_list() == ["allreduce"]
    copies = rows_of(trace, name="memcpy HtoD")
    assert copies["bytes"].unique().to_list() == [1 << 20]
    assert rows_of(trace, name="hipDeviceSynchronize")["kind"].unique().to_list() == ["device"]
    trace = tl.open(file)
    assert trace.steps["step"].to_list() == [0, 1, 2, 3]
    assert trace.recognition
    assert dict(trace.recognition.left_out) == {"calls of HIP": 16}
    verdict = tl.analyze(trace).verdict
    assert (verdict.state, verdict.kind) == ("bottleneck", "exposed_communication")


def test_ranks_of_several_files_are_given(tmp_path: Path) -> None:
    """Processes of one host share its clock, and the late one is named."""
    for rank in range(3):
        more: dict[str, Any] = {"pid": 100 + rank, "slow_ms": 9.0 * (rank == 1)}
        write_results(tmp_path / f"out.{rank}.json", rocprof.training(60, **more))
    with pytest.raises(UnusableInput, match=r"--rank-of out\.0\.json=RANK"):
        tl.open(tmp_path)
    given = {f"out.{rank}.json": rank for rank in range(3)}
    trace = tl.open(tmp_path, rank_of=given)
    assert trace.processes["clock_domain"].n_unique() == 1
    assert trace.arrivals["arrived"].unique().to_list() == [3]
    faults = [f for f in tl.analyze(trace).findings if f.category == "fault"]
    assert [fault.ranks for fault in faults] == [(1,)]


def test_steps_without_kernels_are_not_judged(tmp_path: Path) -> None:
    """Their launches are recorded, so the profiler lost the kernels."""
    file = rocprof.training(40)
    kernels = file.records["kernel_dispatch"]
    kernels_per_step = len(kernels) // 40
    file.records["kernel_dispatch"] = (
        kernels[: 10 * kernels_per_step] + kernels[12 * kernels_per_step :]
    )
    trace = tl.open(write_results(tmp_path / "a.json", file))
    sentences = " ".join(note.sentence for note in trace.notes)
    assert (
        f"{2 * kernels_per_step} of {40 * kernels_per_step} launches (5.0 %) have no kernel"
        in sentences
    )
    assert trace.steps["step"].to_list() == list(range(12, 40))


def test_a_kernel_that_outlasts_its_successors_is_left_out(tmp_path: Path) -> None:
    file = rocprof.training(40)
    file.kernel("gemm_kernel", 50, 51, 900)
    trace = tl.open(write_results(tmp_path / "a.json", file))
    sentences = " ".join(note.sentence for note in trace.notes)
    assert "kernels that outlast later ones of their stream, or all else, 1 of" in sentences


def test_calls_of_rccl_count_where_no_kernel_does(tmp_path: Path) -> None:
    for with_kernels in (True, False):
        file = rocprof.training(3)
        if not with_kernels:
            file.records["kernel_dispatch"].clear()
        for step in range(3):
            at = step * rocprof.STEP_MS
            file.record("rccl_api", "RCCL_API", "ncclAllReduce", at + 5, at + 5.1)
            file.record("rccl_api", "RCCL_API", "ncclGroupStart", at + 5, at + 5.1)
        trace = RocprofReader().read(write_results(tmp_path / "a.json", file))
        assert trace.recognition
        left_out = dict(trace.recognition.left_out)
        assert left_out["calls of RCCL"] == (6 if with_kernels else 3)
        on_host = rows_of(trace, name="ncclAllReduce")
        assert on_host["op"].to_list() == [] if with_kernels else ["allreduce"] * 3


def test_a_file_without_ranges(tmp_path: Path) -> None:
    """Kernels are work of a device of no phase, and what is missing is said."""
    trace = RocprofReader().read(
        write_results(tmp_path / "a.json", rocprof.training(3, ranges=False))
    )
    assert set(rows_of(trace)["kind"]) == {"device", "reduction"}
    assert trace.recognition
    assert [gap.missing for gap in trace.recognition.gaps if "ROCTx" in gap.missing]
    assert tl.analyze(tl.open(tmp_path / "a.json")).verdict.state == "inconclusive"


def test_streams_of_devices_are_told_apart(tmp_path: Path) -> None:
    file = rocprof.training(1)
    for number, record in enumerate(file.records["kernel_dispatch"]):
        record["dispatch_info"]["agent_id"]["handle"] = number
    trace = RocprofReader().read(write_results(tmp_path / "a.json", file))
    streams = [name for name in trace.threads["name"] if name.startswith("stream")]
    assert len(streams) == 5


def test_records_that_cannot_be_are_counted(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {"start_timestamp": -5},
        {"end_timestamp": 1},
        {"start_timestamp": "soon"},
        {"dispatch_info": {"kernel_id": 999}},
        {"dispatch_info": None},
        {"start_timestamp": 10**30},
    ]
    file = rocprof.training(2)
    for record, change in zip(file.records["kernel_dispatch"], changes, strict=False):
        record.update(change)
    file.records["marker_api"][0]["kind"] = 10**9
    file.records["hip_api"].append({"kind": {}, "operation": [1], "thread_id": "x"})
    trace = tl.open(write_results(tmp_path / "a.json", file))
    assert sum(trace.dropped.values()) == len(changes)


def test_packed_and_damaged_files(tmp_path: Path) -> None:
    content = rocprof.training(3).written()
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(content))
    assert rows_of(RocprofReader().read(tmp_path / "a.json.gz")).height > 20
    (tmp_path / "b.json").write_bytes(content[: len(content) // 2])
    with pytest.raises(NotATrace, match="no whole JSON document"):
        RocprofReader().read(tmp_path / "b.json")
    (tmp_path / "c.json").write_text('{"rocprofiler-sdk-tool": []}')
    with pytest.raises(EmptyTrace):
        RocprofReader().read(tmp_path / "c.json")
    (tmp_path / "d.json").write_text('{"rocprofiler-sdk-tool": {"buffer_records": [1, {"a": 2}]}}')
    with pytest.raises(EmptyTrace):
        RocprofReader().read(tmp_path / "d.json")
    trace = RocprofReader().read(
        tmp_path, Reading(rank_of={"a.json.gz": 0, "c.json": 1, "d.json": 2})
    )
    assert [note.file for note in trace.notes if note.kind == "unreadable"] == ["b.json"]


def test_a_document_beyond_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_results(tmp_path / "a.json", rocprof.training(2))
    monkeypatch.setenv("TRACELENS_LIMITS", "")
    gate.raise_limit("document", 1000)
    with pytest.raises(NotATrace, match="--limit document="):
        RocprofReader().read(file)


def test_files_of_other_programs_are_not_recognised(tmp_path: Path) -> None:
    for name, content in {
        "a.json": {"traceEvents": [{"name": "rocprofiler-sdk-tool", "ph": "X"}]},
        "b.json": {"rocprofiler-sdk-json-tool": []},
        "c.json": [],
    }.items():
        (tmp_path / name).write_text(json.dumps(content))
        assert not is_rocprof(tmp_path / name)

"""Public profiles are read to the last event: the counts that their own readers and queries give."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

import tracelens as tl
from tracelens.accounting.device_time import measure_device_time
from tracelens.readers.kineto.columns import EventTable, read_events

ROOT: Final = Path(__file__).parents[3]
HTA: Final = ROOT / ".venv-hta/bin/python"
ASK_HTA: Final = """
import json, sys
from hta.trace_analysis import TraceAnalysis
told = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/", include_last_profiler_step=True)
spent = told.get_temporal_breakdown(visualize=False).iloc[0].to_dict()
overlap = told.get_comm_comp_overlap(visualize=False).iloc[0].to_dict()
print("=" + json.dumps({k: float(v) for k, v in (spent | overlap).items()}))
"""


def public_trace(name: str) -> Path:
    paths = [folder / "shared/traces/kineto" / name for folder in ROOT.parents[:2]]
    path = next((candidate for candidate in paths if candidate.exists()), None)
    if path is None:
        pytest.skip(f"{name} of the public traces is not here (../shared/traces/kineto)")
    return path


def sorts(table: EventTable) -> dict[str, int]:
    return dict(table.rows["category"].cast(pl.String).value_counts().rows())


def steps(table: EventTable) -> int:
    names = table.rows.filter(pl.col("category") == "annotation")["name"].cast(pl.String)
    return int(names.str.starts_with("ProfilerStep").sum())


def nccl(table: EventTable) -> int:
    names = table.rows.filter(pl.col("category") == "kernel")["name"].cast(pl.String)
    return int(names.str.starts_with("nccl").sum())


@pytest.mark.parametrize(
    ("name", "events", "kernels", "of_nccl", "marked"),
    [
        ("hta_nccl_data.json.gz", 40_573, 2_700, 21, 3),
        ("hta_ns_resolution_rank0.json.gz", 68_692, 4_350, 0, 5),
        ("hta_cpu_only_rank34.json.gz", 30, 0, 0, 1),
        ("hta_mi250_rocm.json.gz", 220, 14, 0, 2),
        ("hta_no_distributed_info.json.gz", 2_467, 0, 0, 1),
    ],
)
def test_every_event_is_counted(
    name: str, events: int, kernels: int, of_nccl: int, marked: int
) -> None:
    table = read_events(public_trace(name))
    assert (table.event_count, sorts(table).get("kernel", 0)) == (events, kernels)
    assert (nccl(table), steps(table)) == (of_nccl, marked)
    assert (table.lost_count, table.unusable_count, table.is_cut) == (0, 0, False)
    assert table.event_count == table.rows.height + sum(table.left_out_counts.values())


def test_rank_world_and_backend_are_those_of_the_file() -> None:
    table = read_events(public_trace("hta_cpu_only_rank34.json.gz"))
    assert (table.rank, table.world_size, table.distributed_info["backend"]) == (34, 300, "gloo")


def test_collectives_have_group_operation_and_bytes() -> None:
    """Of NCCL's kernels, by the arguments of their launch."""
    trace = tl.open(public_trace("hta_nccl_data.json.gz"))
    calls = trace.events.filter(pl.col("kind") == "reduction").collect()
    assert sorted(calls["op"].value_counts().cast({"op": pl.String}).rows()) == [
        ("allreduce", 15),
        ("broadcast", 6),
    ]
    assert calls["communicator"].cast(pl.String).unique().to_list() == ["default_pg 0 (ranks 0-1)"]
    first = calls.filter(pl.col("op") == "allreduce").sort("start_ns")["bytes"][0]
    assert first == 4 * 2_049_000
    assert trace.communicators["ranks"].to_list() == [[0, 1]]


def test_a_folder_without_a_mark_has_its_steps() -> None:
    """Its twelve updates end the steps."""
    trace = tl.open(public_trace("ddp_gloo_2_ranks"))
    assert trace.steps.group_by("rank").len().sort("rank").rows() == [(0, 12), (1, 12)]
    assert sum(grid.start_ns.shape[0] for grid in trace.calls) == 14


def test_one_rank_among_many_shows_what_it_shows() -> None:
    """Where its devices' time goes; it is not missing ranks that are found."""
    report = tl.analyze(tl.open(public_trace("hta_nccl_data.json.gz")))
    launching = "BOUND BY devices that wait for the host to queue work: 76 % of the time"
    assert report.verdict.headline == launching
    assert report.verdict.scope.startswith("1 of 2 ranks, 3 steps")
    assert "missing_rank" not in {finding.kind for finding in report.findings}
    verdict = tl.analyze(tl.open(public_trace("hta_cpu_only_rank34.json.gz"))).verdict
    assert verdict.headline.startswith("INCONCLUSIVE: none of 15 operators")
    assert verdict.scope.startswith("1 of 300 ranks")


def test_a_file_that_says_no_rank_is_rank_0() -> None:
    file = public_trace("hta_no_distributed_info.json.gz")
    (note,) = [note for note in tl.open(file).notes if note.kind == "assumed"]
    assert f"--rank-of {file.name}=RANK says another" in note.sentence
    trace = tl.open(file, rank_of={file.name: 3})
    assert trace.processes["rank"].to_list() == [3]
    assert tl.analyze(trace).verdict.headline == "INCONCLUSIVE: no kernel is recorded"
    alone = tl.open(file, rank_of={file.name: 0})
    assert tl.analyze(alone).verdict.headline == "INCONCLUSIVE: no kernel is recorded"


@pytest.mark.parametrize(
    "name", ["hta_nccl_data.json.gz", "hta_ns_resolution_rank0.json.gz", "hta_mi250_rocm.json.gz"]
)
def test_devices_are_as_busy_as_hta_says(name: str, tmp_path: Path) -> None:
    """Busy, computing and overlapped time within a point of HTA's own functions."""
    file = public_trace(name)
    if not HTA.exists():
        pytest.skip("HTA is not installed (make .venv-hta/hta.stamp)")
    shutil.copy(file, tmp_path)
    hta_values = hta(tmp_path / name)
    (device_time,) = measure_device_time(
        tl.open(file, rank_of={} if "nccl" in name or "ns" in name else {name: 0})
    )
    assert 100 * (1 - device_time.busy_ns / device_time.job_ns) == pytest.approx(
        hta_values["idle_time_pctg"], abs=1
    )
    assert 100 * device_time.compute_ns / device_time.job_ns == pytest.approx(
        hta_values["compute_time_pctg"], abs=1
    )
    if device_time.overlapped_communication_share is not None:
        assert 100 * device_time.overlapped_communication_share == pytest.approx(
            hta_values["comp_comm_overlap_pctg"], abs=1
        )


def hta(file: Path) -> dict[str, Any]:
    done = subprocess.run(
        [str(HTA), "-c", ASK_HTA, str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("=")]
    assert lines, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(lines[-1][1:])
    return found

"""A file that holds several processes is a run of their ranks, as the files of each would be."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.profiles import gpu_profile, write_ranks

import tracelens as tl
from tracelens.accounting.device_time import measure_device_time
from tracelens.cli import main
from tracelens.readers.words import rank_in_name


def profile_of(rank: int) -> dict[str, Any]:
    """Return the profile of a rank; the kernels of rank 1 take a quarter of the time."""
    content = gpu_profile(rank)
    kernels = [event for event in content["traceEvents"] if event["cat"] == "kernel"]
    for event in kernels if rank == 1 else ():
        if "nccl" not in event["name"]:
            event["dur"] /= 4
    return content


def merged_profile(*, device_of_rank: bool = False, by_time: bool = False) -> dict[str, Any]:
    """Return two ranks in one profile, processes 100 and 200."""
    events = []
    for rank in (0, 1):
        for event in profile_of(rank)["traceEvents"]:
            if event["pid"] == 100:
                event["pid"] = 100 * (rank + 1)
            elif device_of_rank:
                event["pid"] = event["args"]["device"] = rank
            events.append(event)
    if by_time:
        events.sort(key=lambda event: event["ts"])
    content = gpu_profile(0)
    del content["distributedInfo"]
    return content | {"traceEvents": events}


def with_process_names(content: dict[str, Any], names: dict[int, str]) -> dict[str, Any]:
    """Add names of processes."""
    content["traceEvents"] += [
        {"ph": "M", "name": "process_name", "pid": pid, "ts": 0, "args": {"name": name}}
        for pid, name in names.items()
    ]
    return content


def busy(trace: tl.Trace) -> list[int]:
    """Return the compute time of each rank's device in ns."""
    return [one.compute_ns for one in sorted(measure_device_time(trace), key=lambda one: one.rank)]


def write_and_open(folder: Path, content: dict[str, Any]) -> tl.Trace:
    file = folder / "merged.json"
    file.write_text(json.dumps(content))
    return tl.open(file)


def test_merged_profiles_are_the_run_of_their_files(tmp_path: Path) -> None:
    """The verdict is the same, and each device computed as long."""
    (tmp_path / "files").mkdir()
    write_ranks(tmp_path / "files", profile_of)
    separate = tl.open(tmp_path / "files")
    together = write_and_open(
        tmp_path, with_process_names(merged_profile(), {100: "rank 0", 200: "rank 1"})
    )
    assert busy(together) == busy(separate)
    assert busy(together)[0] > busy(together)[1]
    assert tl.analyze(together).verdict == tl.analyze(separate).verdict


@pytest.mark.parametrize("by_time", [False, True])
def test_ranks_are_those_of_devices_where_nothing_else_says_them(
    tmp_path: Path, *, by_time: bool
) -> None:
    trace = write_and_open(tmp_path, merged_profile(device_of_rank=True, by_time=by_time))
    assert trace.processes.select("pid", "rank").sort("rank").rows() == [(100, 0), (200, 1)]
    assert busy(trace)[0] > 1.5 * busy(trace)[1]
    (note,) = [note for note in trace.notes if note.kind == "assumed"]
    assert "--rank-of merged.json:100=RANK" in note.sentence


def test_processes_of_other_tools_are_ranks_as_their_names_say(tmp_path: Path) -> None:
    """As in traces of Chrome's format that Megatron and others write."""
    events = [
        {
            "ph": "X",
            "name": name,
            "pid": pid,
            "tid": 1,
            "ts": step * 1000 + offset_us,
            "dur": duration_us,
        }
        for pid in (7, 9)
        for step in range(10)
        for name, offset_us, duration_us in (("forward", 0, 300), ("backward", 300, 600))
    ]
    content = with_process_names(
        {"traceEvents": events}, {7: "Megatron rank 5", 9: "Megatron rank 4"}
    )
    trace = write_and_open(tmp_path, content)
    assert trace.processes.select("pid", "rank").sort("pid").rows() == [(7, 5), (9, 4)]
    assert trace.alignment.method == "same_clock"


def test_processes_without_a_rank_in_their_names_are_asked_about(tmp_path: Path) -> None:
    """They are one rank until the user says otherwise, as other tools use processes for other things."""
    events = [
        {"ph": "X", "name": "forward", "pid": pid, "tid": 1, "ts": step * 1000, "dur": 300}
        for pid in (7, 9)
        for step in range(10)
    ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    trace = tl.open(file)
    (note,) = [note for note in trace.notes if note.kind == "assumed"]
    assert "which --rank-of trace.json:7=RANK says, once for each" in note.sentence
    trace = tl.open(file, rank_of={"trace.json:7": 1, "trace.json:9": 0})
    assert trace.processes.select("pid", "rank").sort("pid").rows() == [(7, 1), (9, 0)]


def test_what_we_export_is_the_run_of_its_ranks(tmp_path: Path) -> None:
    """As ui.perfetto.dev gets it: the ranks, the steps and the straggler are the same."""
    run = Path(__file__).parents[3] / "sample_traces/ddp-slow-backprop"
    file = tmp_path / "run.json"
    assert main(["convert", "--to", "perfetto", "--out", str(file), str(run)]) == 0
    trace = tl.open(file)
    assert trace.workers["rank"].to_list() == [0, 1]
    assert trace.alignment.method == "same_clock"
    assert (
        tl.analyze(trace).verdict.headline == "STRAGGLER rank 1, backprop \N{MIDDLE DOT} critical"
    )


def test_a_profile_of_one_process_has_the_rank_of_its_name(tmp_path: Path) -> None:
    content = gpu_profile(0)
    del content["distributedInfo"]
    assert write_and_open(tmp_path, with_process_names(content, {100: "rank 3"})).processes[
        "rank"
    ].to_list() == [3]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank 3", 3),
        ("Rank: 12", 12),
        ("MPI Rank 0", 0),
        ("global_rank_7", 7),
        ("python (rank3)", 3),
        ("worker 4", 4),
        ("local rank 1", None),
        ("tp_rank 2", None),
        ("pt_data_worker 0", None),
        ("ranking 5", None),
        ("crank 5", None),
    ],
)
def test_ranks_are_read_from_process_names(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank

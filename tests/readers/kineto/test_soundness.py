"""Records that cannot be are left out, with their share; the verdict is drawn from what is left."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.profiles import BEGIN_US, KERNELS_US, event, gpu_profile, write_ranks

import tracelens as tl
from tracelens.errors import UnusableInput
from tracelens.model import fmt
from tracelens.model.result import DeviceShares, Report


def analyze_changed(folder: Path, change: Callable[[dict[str, Any], int], None]) -> Report:
    """Return the report of two ranks after a change of their files."""

    def make(rank: int) -> dict[str, Any]:
        profile = gpu_profile(rank)
        change(profile, rank)
        return profile

    return tl.analyze(tl.open(write_ranks(folder, make)))


def devices(report: Report) -> DeviceShares:
    assert report.efficiency
    assert report.efficiency.devices
    return report.efficiency.devices


@pytest.fixture
def healthy(tmp_path: Path) -> Report:
    folder = tmp_path / "healthy"
    folder.mkdir()
    return analyze_changed(folder, lambda _profile, _rank: None)


def add(*events: dict[str, Any]) -> Callable[[dict[str, Any], int], None]:
    """Return a change that adds events to rank 0."""

    def change(profile: dict[str, Any], rank: int) -> None:
        profile["traceEvents"] += events if rank == 0 else ()

    return change


CASES = {
    "a kernel as long as the file": (
        event(
            "kernel", "elementwise", BEGIN_US + 150, 4e6, 7, device=0, stream=7, correlation=9999
        ),
        "kernels that outlast later ones of their stream, or all else, 1 of 81 (",
    ),
    "a kernel that goes on for long after the rest": (
        event(
            "kernel",
            "elementwise",
            BEGIN_US + 250_000,
            4e6,
            7,
            device=0,
            stream=7,
            correlation=9999,
        ),
        "kernels that outlast later ones of their stream, or all else, 1 of 81 (",
    ),
    "a negative length": (
        event("cpu_op", "aten::item", BEGIN_US + 50, -BEGIN_US, 100),
        "events that end before they begin, 1 of 241 (0.4 %)",
    ),
    "a length of years": (
        event("cpu_op", "aten::item", BEGIN_US + 50, 4e14, 100),
        "events that begin or end far from all others, 1 of 241 (0.4 %)",
    ),
    "a begin in 1970": (
        event("cpu_op", "aten::item", 50, 4, 100),
        "events that begin or end far from all others, 1 of 241 (0.4 %)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_is_left_out(case: str, tmp_path: Path, healthy: Report) -> None:
    more, sentence = CASES[case]
    report = analyze_changed(tmp_path, add(more))
    assert report.verdict.headline == healthy.verdict.headline
    assert devices(report) == devices(healthy)
    assert [sentence in note.sentence for note in report.notes if note.file == "rank0.json"] == [
        True
    ]


def test_kernels_of_several_branches_may_outlast_others(tmp_path: Path) -> None:
    """Where many do, as in graphs that run side by side on a stream, none is left out."""
    graph = [
        event("kernel", "branch", BEGIN_US + 100 * n + 5 * index, lasts, 9, device=0, stream=9)
        for n in range(20)
        for index, lasts in enumerate((40.0, 5.0, 5.0, 5.0, 5.0))
    ]

    def make(rank: int) -> dict[str, Any]:
        profile = gpu_profile(rank)
        return profile | {"traceEvents": [*profile["traceEvents"], *graph]}

    trace = tl.open(write_ranks(tmp_path, make))
    kernels = trace.spans.filter(pl.col("name") == "branch").collect()
    assert kernels.height == 2 * len(graph)


def lose_kernels(profile: dict[str, Any], rank: int, first: int = 12) -> None:
    """Leave out the kernels of rank 0 from a step on, as a full buffer does."""
    lost = (
        {10 * step + kernel_index + 1 for step in range(first, 20) for kernel_index in range(4)}
        if rank == 0
        else ()
    )
    profile["traceEvents"] = [
        one
        for one in profile["traceEvents"]
        if one["cat"] != "kernel" or one["args"]["correlation"] not in lost
    ]


def test_steps_without_kernels_are_not_judged(tmp_path: Path, healthy: Report) -> None:
    report = analyze_changed(tmp_path, lose_kernels)
    said = [note.sentence for note in report.notes if note.kind == "dropped"]
    assert f"32 of 80 launches (40 %) have no kernel, most in {fmt.steps(12, 19)}" in said[0]
    assert f"{fmt.steps(0, 11)}, which all did, are judged" in said[1]
    assert report.summary.steps == 12
    assert report.verdict.state == healthy.verdict.state
    assert devices(report).idle == pytest.approx(devices(healthy).idle, abs=0.05)


def test_nothing_is_judged_where_kernels_are_lost_everywhere(tmp_path: Path) -> None:
    def change(profile: dict[str, Any], rank: int) -> None:
        profile["traceEvents"] = [
            one
            for one in profile["traceEvents"]
            if one["cat"] != "kernel" or rank or one["name"] == "adam"
        ]

    report = analyze_changed(tmp_path, change)
    assert report.verdict.headline == "INCONCLUSIVE: 60 of 80 launches (75 %) have no kernel"


def test_a_file_that_repeats_another_counts_once(tmp_path: Path, healthy: Report) -> None:
    write_ranks(tmp_path, gpu_profile)
    (tmp_path / "rank0 copy.json").write_bytes((tmp_path / "rank0.json").read_bytes())
    report = tl.analyze(tl.open(tmp_path))
    assert report.verdict == healthy.verdict
    assert "'rank0.json' repeats 'rank0 copy.json', all 240 events: it counts once." in [
        note.sentence for note in report.notes
    ]


def test_windows_may_touch(tmp_path: Path, healthy: Report) -> None:
    """Kernels of the first one end, or even begin, in the second one."""
    for rank in (0, 1):
        profile = gpu_profile(rank)
        for is_later in (False, True):
            events = [
                one
                for one in profile["traceEvents"]
                if (one["ts"] >= BEGIN_US + 117_000) is is_later
            ]
            (tmp_path / f"{rank}.{is_later}.json").write_text(
                json.dumps(profile | {"traceEvents": events})
            )
    report = tl.analyze(tl.open(tmp_path))
    assert report.summary.steps == 20
    assert devices(report) == devices(healthy)


def test_merged_profiles_are_asked_about(tmp_path: Path) -> None:
    """Each process is named, and read as the file of its rank is once the user says which it is."""

    def merge_two_ranks(_rank: int) -> dict[str, Any]:
        profiles = [gpu_profile(rank)["traceEvents"] for rank in (0, 1)]
        other = [one | {"pid": 200} for one in profiles[1]]
        return gpu_profile(0) | {"traceEvents": [*profiles[0], *other]}

    write_ranks(tmp_path, merge_two_ranks, ranks=1)
    (file,) = tmp_path.iterdir()
    with pytest.raises(UnusableInput, match=rf"--rank-of {file.name}:100=0, once for each"):
        tl.open(tmp_path)
    with pytest.raises(UnusableInput, match="holds no process 300: there are 100 and 200"):
        tl.open(tmp_path, rank_of={f"{file.name}:300": 0})
    trace = tl.open(tmp_path, rank_of={f"{file.name}:100": 0, f"{file.name}:200": 1})
    assert trace.steps.group_by("rank").len().sort("rank").rows() == [(0, 20), (1, 20)]


def test_the_split_is_that_of_the_kernels(healthy: Report) -> None:
    """By hand: what the kernels of the steps take, of the time from the first to the last one."""
    profile = gpu_profile(0)
    kernels = [one for one in profile["traceEvents"] if one["cat"] == "kernel"]
    whole_us = kernels[-1]["ts"] + kernels[-1]["dur"] - kernels[0]["ts"]
    forward, backprop, allreduce, update = KERNELS_US
    shares = devices(healthy)
    assert shares.compute == pytest.approx(20 * (forward + backprop + update) / whole_us, rel=1e-4)
    assert shares.exposed == pytest.approx(20 * allreduce / whole_us, rel=1e-4)
    assert (shares.copies, healthy.ledger and healthy.ledger.useful) == (0, shares.compute)

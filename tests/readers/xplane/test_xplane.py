"""XPlane files: threads of the host, streams of devices, marked steps; ranks come from the user."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from support import xplane_files as xplane
from support.public_traces import PUBLIC, needs

import tracelens as tl
from tracelens.cli import main
from tracelens.errors import EmptyTrace, MissingExtra, NotATrace, UnusableInput
from tracelens.readers import READERS
from tracelens.readers.base import Reading
from tracelens.readers.xplane import XPlaneReader, read_profile, space

PUBLISHED: Final = "xplane/jax_conv.xplane.pb"


def rows_of(trace: tl.Trace, **which: object) -> pl.DataFrame:
    words = pl.col("kind", "op", "name").cast(pl.String)
    return trace.events.with_columns(words).filter(**which).collect()


@needs(PUBLISHED)
def test_counts_of_the_published_file() -> None:
    """Lines and events of the host, and 25 events of each device from 2 on."""
    profile = read_profile(PUBLIC / PUBLISHED)
    assert profile.event_counts["/host:CPU"] == 3_415
    assert [profile.event_counts[f"/device:GPU:{number}"] for number in range(2, 8)] == [25] * 6
    trace = XPlaneReader().read(PUBLIC / PUBLISHED)
    counted = trace.events.collect().height + sum(trace.dropped.values())
    assert counted + sum(profile.left_out_counts.values()) == sum(profile.event_counts.values())
    on_device = trace.events.filter(pl.col("device_start_ns").is_not_null()).collect()
    assert on_device.height == sum(
        count for plane, count in profile.event_counts.items() if plane.startswith("/device")
    )
    assert trace.processes["host"].to_list() == ["tw003"]


@needs(PUBLISHED)
def test_its_verdict_is_what_one_rank_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """No step is marked, and the rank is not known; its devices are idle for 91 % of the time."""
    assert main(["info", str(PUBLIC / PUBLISHED)]) == 0
    assert "profile of XLA" in capsys.readouterr().out
    assert main(["analyze", "--no-keep", str(PUBLIC / PUBLISHED)]) in {0, 1}
    launching = "BOUND BY devices that wait for the host to queue work: 91 % of the time"
    assert launching in capsys.readouterr().out


def test_steps_work_and_communication_of_a_training(tmp_path: Path) -> None:
    """What repeats operations is counted and left out; the host's steps count, not the device's too."""
    file = xplane.write(tmp_path / "node0.xplane.pb", xplane.training(8))
    assert (
        next(reader.name for reader in READERS if reader.sniff(file)) == "profile of XLA (XPlane)"
    )
    trace = tl.open(file)
    assert trace.steps["step"].to_list() == list(range(8))
    fused = rows_of(trace, name="fusion.12")
    assert fused["kind"].unique().to_list() == ["device"]
    assert fused["device_duration_ns"].unique().to_list() == [10_000_000]
    reduced = rows_of(trace, kind="reduction")
    assert reduced["op"].unique().to_list() == ["allreduce"]
    assert reduced.height == 8
    assert trace.recognition
    assert dict(trace.recognition.left_out) == {
        "events of 'XLA Modules', which repeat operations": 8,
    }


def test_steps_of_a_device_count_where_the_host_marks_none(tmp_path: Path) -> None:
    content = xplane.training(5)
    del content.planes[0]
    trace = tl.open(xplane.write(tmp_path / "node0.xplane.pb", content))
    assert trace.steps["step"].to_list() == list(range(5))


def test_ranks_of_several_files_are_given(tmp_path: Path) -> None:
    """And the slow one is found by its own time."""
    for rank in range(3):
        content = xplane.training(40, host=f"node{rank}", slow_ms=8.0 * (rank == 1))
        xplane.write(tmp_path / f"node{rank}.xplane.pb", content)
    with pytest.raises(UnusableInput, match="--rank-of node0"):
        tl.open(tmp_path)
    rank_by_file = {f"node{rank}.xplane.pb": rank for rank in range(3)}
    trace = XPlaneReader().read(tmp_path, Reading(rank_of=rank_by_file))
    assert trace.workers["rank"].to_list() == [0, 1, 2]
    with pytest.raises(UnusableInput, match="both said to be of rank 0"):
        XPlaneReader().read(tmp_path, Reading(rank_of=rank_by_file | {"node1.xplane.pb": 0}))


def test_a_damaged_file_is_noted_beside_others(tmp_path: Path) -> None:
    whole = xplane.write(tmp_path / "a.xplane.pb", xplane.training(4)).read_bytes()
    (tmp_path / "b.xplane.pb").write_bytes(whole[: len(whole) // 2])
    trace = XPlaneReader().read(tmp_path, Reading(rank_of={"a.xplane.pb": 0}))
    assert "'b.xplane.pb' cannot be read" in " ".join(note.sentence for note in trace.notes)
    with pytest.raises(NotATrace, match="no whole XPlane file"):
        XPlaneReader().read(tmp_path / "b.xplane.pb")
    (tmp_path / "c.xplane.pb").write_bytes(b"")
    with pytest.raises(NotATrace, match="no plane"):
        XPlaneReader().read(tmp_path / "c.xplane.pb")


def test_events_that_cannot_be_are_counted(tmp_path: Path) -> None:
    """Without a name, before zero, or a count of events in place of one."""
    content = xplane.training(4)
    line = content.planes[0].lines[0]
    line.events.add(metadata_id=999, duration_ps=5)
    line.events.add(metadata_id=1, offset_ps=-(10**15), duration_ps=5)
    line.events.add(metadata_id=1, num_occurrences=7)
    trace = tl.open(xplane.write(tmp_path / "node0.xplane.pb", content))
    assert sum(trace.dropped.values()) == 3


def with_launches(content: Any, lost: Callable[[int], bool] = lambda _: False) -> Any:
    """Give each operation of the device a launch on the host; some operations are lost."""
    host, device = content.planes[0], content.planes[1]
    host.event_metadata.add(key=77).value.name = "cuLaunchKernel"
    for plane in (host, device):
        plane.stat_metadata.add(key=5).value.name = "correlation_id"
    launches = host.lines.add(id=2, name="launches", timestamp_ns=1_000)
    operations = list(device.lines[0].events)
    del device.lines[0].events[:]
    for number, operation in enumerate(operations, 1):
        launch = launches.events.add(metadata_id=77, duration_ps=1_000_000)
        launch.offset_ps = operation.offset_ps - 500_000_000
        for event in (launch, operation):
            event.stats.add(metadata_id=5, int64_value=number)
        if not lost(number):
            device.lines[0].events.append(operation)
    return content


def sentences(trace: tl.Trace) -> str:
    return " ".join(note.sentence for note in trace.notes)


def test_steps_without_kernels_are_not_judged(tmp_path: Path) -> None:
    content = with_launches(xplane.training(40), lambda number: number in range(21, 25))
    trace = tl.open(xplane.write(tmp_path / "node0.xplane.pb", content))
    assert "4 of 80 launches (5.0 %) have no kernel, most in steps 10\N{EN DASH}11" in sentences(
        trace
    )
    assert trace.steps["step"].to_list() == list(range(12, 40))


def test_kernels_that_are_lost_everywhere_leave_the_verdict_open(tmp_path: Path) -> None:
    content = with_launches(xplane.training(40), lambda number: number % 4 == 0)
    trace = tl.open(xplane.write(tmp_path / "node0.xplane.pb", content))
    assert tl.analyze(trace).verdict.headline == (
        "INCONCLUSIVE: 20 of 80 launches (25 %) have no kernel"
    )


@pytest.mark.parametrize(
    ("begin_ms", "length_ms", "words"),
    [
        (5.0, 500.0, "kernels that outlast later ones of their stream, or all else, 1 of 81 ("),
        (5.0, -2.0, "events that end before they begin, 1 of 161 (0.6 %)"),
        (5.0, 4e8, "events that begin or end far from all others, 1 of 161 (0.6 %)"),
    ],
)
def test_what_cannot_be_is_left_out(
    begin_ms: float, length_ms: float, words: str, tmp_path: Path
) -> None:
    """And what is left is read as without it."""
    content = xplane.training(40)
    sound_trace = tl.open(xplane.write(tmp_path / "node0.xplane.pb", content))
    line = content.planes[1].lines[0]
    line.events.add(metadata_id=1, offset_ps=int(begin_ms * 1e9), duration_ps=int(length_ms * 1e9))
    wrong = tl.open(xplane.write(tmp_path / "node0.xplane.pb", content))
    assert words in sentences(wrong)
    assert wrong.events.collect().equals(sound_trace.events.collect())


def test_a_file_that_repeats_another_counts_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        xplane.write(tmp_path / f"{name}.xplane.pb", xplane.training(8))
    trace = tl.open(tmp_path)
    assert trace.workers["rank"].to_list() == [0]
    assert "'b.xplane.pb' repeats 'a.xplane.pb'" in sentences(trace)


def test_a_file_without_events_is_empty(tmp_path: Path) -> None:
    content = xplane.training(1)
    for plane in content.planes:
        del plane.lines[:]
    with pytest.raises(EmptyTrace):
        tl.open(xplane.write(tmp_path / "node0.xplane.pb", content))


def test_without_protobuf_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = xplane.write(tmp_path / "node0.xplane.pb", xplane.training(1))
    space.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(MissingExtra, match="xplane"):
        XPlaneReader().read(file)

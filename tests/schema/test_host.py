"""Recorder and reader name a machine, its clock and its processes alike, and find segments by a note."""

import json
import os
import time
from pathlib import Path

import pytest

from tracelens.errors import NotATrace, TraceNotFound
from tracelens.schema import host

SECOND = 10**9


def test_a_clock_is_a_boot_and_a_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot, _, namespace = host.clock_domain().partition("/")
    assert boot.count("-") == 4
    assert namespace.startswith("time:[")
    monkeypatch.setattr(host, "_PROC", tmp_path)
    assert host.clock_domain() == "/"


def test_the_host_is_named_as_the_system_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.host_name() == os.uname().nodename != ""
    monkeypatch.delattr(os, "uname")
    monkeypatch.setenv("COMPUTERNAME", "PC7")
    assert host.host_name() == "PC7"
    monkeypatch.delenv("COMPUTERNAME")
    assert host.host_name() == ""


def test_cores_of_a_process_are_limited_by_its_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are as the kernel writes them; control groups may allow the time of fewer."""
    known = host.allowed_cores()
    assert known is not None
    assert known.replace("-", ",").replace(",", "").isdecimal()
    monkeypatch.setattr(host, "_PROC", tmp_path)
    monkeypatch.setattr(host, "_CGROUPS", tmp_path / "groups")
    assert host.allowed_cores() is None
    assert host.core_quota() is None
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text("Name:\tx\nCpus_allowed_list:\t0-3,8\n")
    assert host.allowed_cores() == "0-3,8"


@pytest.mark.parametrize(
    ("group", "files", "quota"),
    [
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 1.5),
        ("0::/", {"cpu.max": "200000 100000"}, 2.0),
        ("0::/a", {"a/cpu.max": "max 100000"}, None),
        ("0::/a", {"a/cpu.max": "plenty"}, None),
        (
            "4:cpu,cpuacct:/a",
            {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "100000"},
            0.5,
        ),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("4:memory:/", {"cpu/cpu.cfs_quota_us": "5", "cpu/cpu.cfs_period_us": "10"}, None),
    ],
)
def test_control_groups_limit_the_time_of_cores(
    group: str,
    files: dict[str, str],
    quota: float | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tightest limit of a group and those around it counts, in either version."""
    monkeypatch.setattr(host, "_PROC", tmp_path)
    monkeypatch.setattr(host, "_CGROUPS", tmp_path / "groups")
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(f"{group}\n")
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{text}\n")
    assert host.core_quota() == quota


def test_when_a_process_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field 22 of its state counts ticks since the boot; its name may hold parentheses and blanks."""
    (tmp_path / "7").mkdir()
    fields = ["S", *map(str, range(4, 22)), "12345", "23"]
    (tmp_path / "7" / "stat").write_text(f"7 (a ) b) {' '.join(fields)}\n")
    (tmp_path / "stat").write_text("cpu 1 2\nbtime 1700000000\nprocesses 5\n")
    monkeypatch.setattr(host, "_PROC", tmp_path)
    ticks = os.sysconf("SC_CLK_TCK")
    assert host.process_started_ns(7) == 1_700_000_000 * SECOND + 12345 * SECOND // ticks
    assert host.process_started_ns(8) is None
    for content in ("cpu 1 2\n", "btime\n", "btime soon\n"):
        (tmp_path / "stat").write_text(content)
        assert host.process_started_ns(7) is None


def test_this_process_began_before_now() -> None:
    began = host.process_started_ns(os.getpid())
    assert began is not None
    assert time.time_ns() - 3600 * SECOND < began < time.time_ns() + SECOND


def test_a_note_is_new_and_is_read_again(tmp_path: Path) -> None:
    note, folder = tmp_path / "note", tmp_path / "segments"
    host.leave_note(note, folder)
    assert note.read_text() == json.dumps(
        {"host": host.host_name(), "path": str(folder)}, separators=(",", ":")
    ) + "\n"  # fmt: skip
    assert note.stat().st_mode & 0o777 == 0o644 & ~_umask()
    assert host.read_note(note) == host.Elsewhere(host.host_name(), str(folder))
    with pytest.raises(FileExistsError):
        host.leave_note(note, folder)
    assert host.read_note(note).path == str(folder)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"host":"a"}', '{"path":"a"}', "{" * 9])
def test_a_note_without_a_path_is_refused(tmp_path: Path, content: str) -> None:
    note = tmp_path / "note"
    note.write_text(content)
    with pytest.raises(NotATrace, match="does not say where its segments lie"):
        host.read_note(note)
    with pytest.raises(NotATrace, match="does not say where"):
        host.read_note(tmp_path / "absent")


@pytest.mark.parametrize(("size", "read"), [(1 << 16, True), ((1 << 16) + 1, False)])
def test_a_note_has_an_end(tmp_path: Path, size: int, *, read: bool) -> None:
    """A note is 64 KiB at most; the rest is ignored."""
    note, text = tmp_path / "note", json.dumps({"host": "a", "path": "b"})
    note.write_text(" " * (size - len(text)) + text)
    if read:
        assert host.read_note(note).path == "b"
    else:
        with pytest.raises(NotATrace):
            host.read_note(note)


@pytest.mark.parametrize("name", ["aaaa", "zzzz", ""])
def test_segments_on_another_host(tmp_path: Path, name: str) -> None:
    note = tmp_path / "note"
    note.write_text(json.dumps({"host": name, "path": str(tmp_path / "gone")}))
    with pytest.raises(TraceNotFound, match=f"still on host {name}, in {tmp_path}/gone: they are"):
        host.find_segments(note)


def test_segments_on_this_host(tmp_path: Path) -> None:
    """Also where the folder is reached from another one, by a shared file system."""
    note, folder = tmp_path / "note", tmp_path / "segments"
    host.leave_note(note, folder)
    with pytest.raises(
        TraceNotFound, match=r"were on this host, in .*, and are not there any more"
    ):
        host.find_segments(note)
    folder.mkdir()
    assert host.find_segments(note) == folder
    note.write_text(json.dumps({"host": "another", "path": str(folder)}))
    assert host.find_segments(note) == folder

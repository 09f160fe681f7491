"""On a network file system live segments lie on a disk of the host, and the trace folder says where."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.launch.ending import end_process
from support.launch.patience import PATIENCE_S
from support.launch.recording import clean_environment, read_one, run_child

import tracelens as tl
from tracelens.schema.host import host_name, read_note
from tracelens_instrument import recorder
from tracelens_instrument.storage import placement
from tracelens_instrument.storage.placement import Mount, find_mount, is_network, read_mounts

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 27 0:40 /export /home rw,relatime shared:2 master:1 - nfs4 server:/export rw,vers=4.2
31 27 0:41 / /my\\040work rw,relatime - lustre 10.0.0.1@tcp:/scratch rw
32 30 254:1 /disk /home/me/local rw,relatime - xfs /dev/vdb rw
33 27 0:42 / /mnt rw,relatime - tmpfs below rw
34 33 0:43 / /mnt rw,relatime - fuse.sshfs me@there:/ rw
this is no row
35 27 x:y / /odd rw - nfs server:/ rw
"""
OURS = "tracelens-*"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me", "nfs4"),
        ("/home", "nfs4"),
        ("/homeless", "ext4"),
        ("/my work/trace", "lustre"),
        ("/home/me/local/x", "xfs"),
        ("/mnt/x", "fuse.sshfs"),  # mounted over the one below
        ("/odd/x", "ext4"),
    ],
)
def test_the_longest_and_last_mount_above_a_path_counts(
    path: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest mount above a path counts, and of several at one place the last."""
    (tmp_path / "mountinfo").write_text(TABLE)
    mounts = read_mounts(tmp_path / "mountinfo")
    assert len(mounts) == 7
    monkeypatch.setattr(Path, "stat", lambda _: os.stat_result([0] * 10))  # a number of no mount
    found = find_mount(Path(path), mounts)
    assert found is not None
    assert found.filesystem_type == kind


def test_device_number_decides(tmp_path: Path) -> None:
    """Where a table has several that hold the path, the file system is the one the kernel says."""
    device = tmp_path.stat().st_dev
    mounts = [Mount(device, "/", "nfs"), Mount(device + 1, str(tmp_path), "ext4")]
    assert find_mount(tmp_path, mounts) == mounts[0]


@pytest.mark.skipif(sys.platform != "linux", reason="the table is one of Linux")
def test_table_of_this_machine(tmp_path: Path) -> None:
    """The kernel's own table has the folder of the tests, and a process file system."""
    mounts = read_mounts()
    assert find_mount(tmp_path, mounts) is not None
    assert find_mount(Path("/proc/self"), mounts) == next(
        m for m in mounts if m.mount_path == "/proc"
    )


@pytest.mark.parametrize(
    ("kinds", "network"),
    [
        (
            "nfs nfs4 lustre gpfs beegfs cifs smb3 ceph 9p afs fuse fuseblk fuse.sshfs fuse.s3fs",
            True,
        ),
        ("ext4 xfs btrfs tmpfs overlay zfs f2fs ext3 nfsd fusectl nfs5 fusefs", False),
    ],
)
def test_network_file_systems_are_known_by_type(kinds: str, network: bool) -> None:  # noqa: FBT001 - the expectation
    """Those that may depend on a network or another process, and no others."""
    assert {is_network(kind) for kind in kinds.split()} == {network}


@pytest.fixture
def network_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the table of mounts lists as NFS."""
    folder, local = tmp_path / "shared", tmp_path / "local"
    folder.mkdir()
    local.mkdir()
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    table = tmp_path / "mountinfo"
    table.write_text(
        f"1 1 {number} / / rw - ext4 /dev/vda rw\n2 1 {number} / {folder} rw - nfs4 there:/ rw\n"
    )
    monkeypatch.setattr(placement, "_MOUNTS_FILE", table)
    monkeypatch.setattr(placement, "read_mounts", lambda: read_mounts(table))
    monkeypatch.setenv("TMPDIR", str(local))
    return folder


def record(count: int) -> None:
    span = tl.span("piece")
    for number in range(count):
        with span(nbytes=number):
            pass


def test_segments_lie_on_this_host(network_folder: Path, tmp_path: Path) -> None:
    """The trace folder has a note from the start, and at the end the file; nothing else is left."""
    tl.start(network_folder / "trace")
    record(10_000)
    (note,) = (network_folder / "trace").iterdir()
    location = read_note(note)
    assert note.name == f"worker-00000-{os.getpid()}.elsewhere"
    assert location.host == host_name()
    assert Path(location.path).parent.parent == tmp_path / "local"
    assert Path(location.path).parent.stat().st_mode & 0o777 == 0o700
    assert len(list(Path(location.path).glob("*.seg"))) > 2
    tl.stop()
    assert [path.name for path in (network_folder / "trace").iterdir()] == [
        f"worker-00000-{os.getpid()}.arrow"
    ]
    assert list((tmp_path / "local").iterdir()) == []
    assert len(read_one(network_folder / "trace").events) == 10_000


def test_running_recording_can_be_read(network_folder: Path) -> None:
    """By everybody on this host, through the note."""
    tl.start(network_folder / "trace")
    record(100)
    trace = tl.open(network_folder / "trace")
    assert trace.processes["events"].to_list() == [100]
    assert "running" in [note.kind for note in trace.notes]
    record(100)
    tl.stop()
    assert tl.open(network_folder / "trace").processes["events"].to_list() == [200]


def test_second_recording_beside_the_first(network_folder: Path) -> None:
    """The same process number has a note and a file of its own."""
    for _ in range(2):
        tl.start(network_folder / "trace")
        record(10)
        tl.stop()
    assert tl.open(network_folder / "trace").processes["events"].to_list() == [10, 10]


def test_rank_that_is_known_late(network_folder: Path) -> None:
    """The file bears the rank that the process turned out to have."""
    tl.start(network_folder / "trace")
    record(10)
    recorder.identify(rank=5, world=8)
    tl.stop()
    assert [path.name for path in (network_folder / "trace").iterdir()] == [
        f"worker-00005-{os.getpid()}.arrow"
    ]


def test_place_of_the_users_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`TRACELENS_LOCAL_DIR` is used for any trace folder, and created if it is missing."""
    monkeypatch.setenv("TRACELENS_LOCAL_DIR", str(tmp_path / "scratch" / "me"))
    tl.start(tmp_path / "trace")
    assert len(list((tmp_path / "scratch" / "me").glob(f"{OURS}/*.segments/000000.seg"))) == 1
    tl.stop()
    assert read_one(tmp_path / "trace").side.complete


def test_trace_folder_as_the_users_choice(
    network_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever knows that it maps well can have the segments in the trace folder all the same."""
    monkeypatch.setenv("TRACELENS_LOCAL_DIR", str(network_folder / "trace"))
    tl.start(network_folder / "trace")
    assert len(list((network_folder / "trace").glob("*.segments"))) == 1


def test_choice_that_cannot_be(network_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning, and another place is found."""
    (network_folder / "file").write_text("in the way")
    monkeypatch.setenv("TRACELENS_LOCAL_DIR", str(network_folder / "file" / "below"))
    with pytest.warns(RuntimeWarning, match="no room or no permission") as warned:
        tl.start(network_folder / "trace")
    assert len(warned) == 1
    assert len(list((network_folder / "trace").glob("*.elsewhere"))) == 1


def test_no_local_place(network_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather nothing is recorded than the training put at risk; one warning says what to do."""
    monkeypatch.setattr(placement, "_MIN_FREE_BYTES", 1 << 80)
    with pytest.warns(
        RuntimeWarning, match=r"nothing is recorded.*name one in TRACELENS_LOCAL_DIR"
    ):
        tl.start(network_folder / "trace")
    record(3)
    tl.stop()
    assert list((network_folder / "trace").iterdir()) == []


@pytest.mark.parametrize(
    ("free", "memory", "chosen"),
    [
        ({"a": 40, "b": 40, "c": 40}, "", "a"),
        ({"a": 40, "b": 40, "c": 40}, "a", "b"),  # what fills memory comes last
        ({"a": 25, "b": 29, "c": 40}, "", "c"),  # little room
        ({"a": 25, "b": 29, "c": 40}, "c", "c"),
        ({"a": 25, "b": 29, "c": 20}, "", "b"),  # the most that there is
        ({"a": 20, "b": 20, "c": 20}, "", None),
    ],
)
def test_segments_go_to_the_first_disk_with_room(
    free: dict[str, int], memory: str, chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first disk with plenty of room; memory before a disk that is nearly full."""
    monkeypatch.setattr(placement, "_free_bytes", lambda place: 1 << free[place.name])
    mounts = [Mount(0, f"/{name}", "tmpfs" if name == memory else "ext4") for name in free]
    monkeypatch.setattr(Path, "stat", lambda _: os.stat_result([0] * 10))
    best = placement._choose_directory([Path("/") / name for name in free], mounts)
    assert best == (None if chosen is None else Path("/") / chosen)


TRAIN = """
import sys, time
import tracelens as tl
tl.start(sys.argv[1])
span = tl.span("piece")
for number in range(10_000):
    with span(nbytes=number):
        pass
print("recorded", flush=True)
sys.stdin.readline()
print("trained to the end")
"""


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A FUSE file system, which ends with its server."""
    program = shutil.which("bindfs")
    if program is None or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("bindfs is not installed, or FUSE cannot be used")
    behind, folder = tmp_path / "behind", tmp_path / "mounted"
    behind.mkdir()
    folder.mkdir()
    server = subprocess.Popen([program, "-f", str(behind), str(folder)])
    try:
        while not os.path.ismount(folder):
            assert server.poll() is None
            time.sleep(0.01)
        yield folder
    finally:
        end_process(server)
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def start(folder: Path, local: Path) -> subprocess.Popen[str]:
    local.mkdir()
    child = subprocess.Popen(
        [sys.executable, "-c", TRAIN, str(folder)],
        env=clean_environment(TMPDIR=str(local)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "recorded\n"
    return child


@pytest.mark.end_to_end
def test_killed_on_fuse(mounted: Path, tmp_path: Path) -> None:
    """Whoever reads the trace on this host brings it to the trace folder, with nothing lost."""
    child = start(mounted / "trace", tmp_path / "local")
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert [path.suffix for path in (mounted / "trace").iterdir()] == [".elsewhere"]
    assert tl.open(mounted / "trace").processes["events"].to_list() == [10_000]
    assert [path.suffix for path in (mounted / "trace").iterdir()] == [".arrow"]
    assert list((tmp_path / "local").iterdir()) == []


@pytest.mark.end_to_end
def test_server_that_goes_away(mounted: Path, tmp_path: Path) -> None:
    """The training ends as if nothing were; the segments stay on the host, and one warning says so."""
    child = start(mounted / "trace", tmp_path / "local")
    subprocess.run(["umount", "-l", str(mounted)], check=True)
    mounted.rmdir()
    out, errors = child.communicate("\n", timeout=PATIENCE_S)
    assert (child.returncode, out) == (0, "trained to the end\n")
    assert errors.count("TraceLens") == 1
    assert "could not be converted, it stays as it is" in errors
    (segments,) = (tmp_path / "local").glob(f"{OURS}/*.segments")
    assert len(read_one(segments.parent).events) == 10_000


@pytest.mark.end_to_end
@pytest.mark.limits_memory
def test_record_gathers_what_is_left(tmp_path: Path) -> None:
    """`tracelens record` brings what killed processes of this host left elsewhere."""
    code = (
        "import os, signal, tracelens as tl; tl.instant('x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    program = f"""
import subprocess, sys
command = [sys.executable, "-m", "tracelens", "record", "--no-verdict"]
command += ["--out", sys.argv[1], "--", sys.executable]
done = subprocess.run([*command, "-c", {code!r}], capture_output=True, text=True)
assert "recorded 1 process with 1 events" in done.stderr, done.stderr
"""
    run_child(program, tmp_path / "t", TRACELENS_LOCAL_DIR=str(tmp_path / "local"))
    assert sorted(path.suffix for path in (tmp_path / "t").iterdir()) == [".arrow", ".jsonl"]
    assert list((tmp_path / "local").iterdir()) == []

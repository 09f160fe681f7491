"""Where live segments are kept: a new folder, in the trace folder or on a disk of this host.

Memory that is mapped from a network file system may stall, or end the process, when the network or
the server does not answer. A disk of the host does not; a note in the trace folder leads there, and
the Arrow file goes to the trace folder at the end.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from tracelens.schema.host import leave_note
from tracelens.schema.ownership import MARKER_FILE, mark
from tracelens.schema.vocabulary import ELSEWHERE_SUFFIX, SEGMENTS_SUFFIX, TRACE_SUFFIX, make_stem
from tracelens_instrument.core.failures import Tolerated, warn_once
from tracelens_instrument.storage.descriptors import LimitsAsErrors

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Final

    from tracelens_instrument.core.identity import Identity

__all__ = [
    "LOCAL_VARIABLE",
    "Location",
    "Mount",
    "discard_location",
    "find_local_directory",
    "find_mount",
    "is_network",
    "make_segments_folder",
    "read_mounts",
]

LOCAL_VARIABLE: Final = "TRACELENS_LOCAL_DIR"

_MOUNTS_FILE: Final = Path("/proc/self/mountinfo")
# fmt: off
_NETWORK_FILE_SYSTEMS: Final = frozenset((
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "cvfs", "davfs", "fhgfs", "fuse", "fuseblk",
    "gfs2", "glusterfs", "gpfs", "lustre", "mmfs", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs",
    "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs",
))
# fmt: on
_MEMORY_FILE_SYSTEMS: Final = ("tmpfs", "ramfs")
_OCTAL: Final = r"\\([0-7]{3})"
_AMPLE_FREE_BYTES: Final = 1 << 30
_MIN_FREE_BYTES: Final = 1 << 24
_RECORDING_SUFFIXES = (TRACE_SUFFIX, ELSEWHERE_SUFFIX, SEGMENTS_SUFFIX)


@dataclass(frozen=True)
class Mount:
    """A row of the table of mounted file systems: device number, path, and type."""

    device_number: int
    mount_path: str
    filesystem_type: str


def find_local_directory(directory: Path) -> Path | None:
    """Return the folder of this host to record in, instead of `directory`; None if that will do.

    The environment may name one. Else it is needed only if `directory` is on a network file system.

    Raises:
        OSError: `directory` will not do, and no local one has room.
    """
    directory_name = os.environ.get(LOCAL_VARIABLE)
    if directory_name:
        named_directory = Path(directory_name).absolute()
        with Tolerated(OSError):
            named_directory.mkdir(parents=True, exist_ok=True)
        if _free_bytes(named_directory):
            return None if _is_same_directory(named_directory, directory) else named_directory
        warn_once(
            f"{LOCAL_VARIABLE} is {directory_name!r}, where there is no room or no permission"
        )
    mounts = read_mounts()
    mount = find_mount(directory, mounts)
    if mount is None or not is_network(mount.filesystem_type):
        return None
    local_directory = _choose_directory(_list_local_candidates(), mounts)
    if local_directory is None:
        raise OSError(
            errno.ENOSPC,
            f"{directory} is on a network file system ({mount.filesystem_type}), and no disk of this "
            f"host has room for live segments: name one in {LOCAL_VARIABLE}",
        )
    return local_directory


def is_network(kind: str) -> bool:
    """Return True if a type of file system may depend on a network or on another process."""
    return kind in _NETWORK_FILE_SYSTEMS or kind.startswith(("fuse.", "fuseblk."))


def read_mounts(table: Path = _MOUNTS_FILE) -> list[Mount]:
    """Read the table of mounted file systems; empty if it cannot be read."""
    try:
        lines = table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    return [mount for mount in map(_parse_mount, lines) if mount is not None]


def find_mount(path: Path, mounts: Sequence[Mount]) -> Mount | None:
    """Return the file system that an existing path is on, by its device number, else by its name."""
    device, real_path = path.stat().st_dev, os.path.realpath(path)
    enclosing_mounts = [mount for mount in mounts if _contains(mount.mount_path, real_path)]
    same_device_mounts = [mount for mount in enclosing_mounts if mount.device_number == device]
    # Of several at one place the last is on top; some file systems give files other numbers.
    return max(
        reversed(same_device_mounts or enclosing_mounts),
        key=lambda mount: len(mount.mount_path),
        default=None,
    )


def _parse_mount(line: str) -> Mount | None:
    """Read ``36 35 98:0 /root /where options - type source options``; see proc(5)."""
    mount_text, _, file_system_text = line.partition(" - ")
    fields, file_system = mount_text.split(" "), file_system_text.partition(" ")[0]
    try:
        major, minor = map(int, fields[2].split(":"))
        mount_path = fields[4]
        if "\\" in mount_path:
            mount_path = re.sub(_OCTAL, lambda match: chr(int(match[1], 8)), mount_path)
    except (IndexError, ValueError):
        return None
    return Mount(os.makedev(major, minor), mount_path, file_system)


def _contains(mount_path: str, path: str) -> bool:
    return path == mount_path or path.startswith(mount_path.rstrip("/") + "/")


def _list_local_candidates() -> list[Path]:
    named = (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - in a folder that is ours alone
    return [Path(name) for name in dict.fromkeys(named) if name]


def _choose_directory(directories: Iterable[Path], mounts: Sequence[Mount]) -> Path | None:
    """Choose the first local disk with plenty of room, else memory, else what has most; None if full."""
    local_directories = [
        directory
        for directory in directories
        if _free_bytes(directory) >= _MIN_FREE_BYTES and _is_local(directory, mounts)
    ]
    ample_directories = [
        directory for directory in local_directories if _free_bytes(directory) >= _AMPLE_FREE_BYTES
    ]
    if ample_directories:
        return min(ample_directories, key=lambda directory: _is_in_memory(directory, mounts))
    return max(local_directories, key=_free_bytes, default=None)


def _is_local(directory: Path, mounts: Sequence[Mount]) -> bool:
    mount = find_mount(directory, mounts)
    return mount is not None and not is_network(mount.filesystem_type)


def _is_in_memory(directory: Path, mounts: Sequence[Mount]) -> bool:
    mount = find_mount(directory, mounts)
    return mount is not None and mount.filesystem_type in _MEMORY_FILE_SYSTEMS


def _free_bytes(directory: Path) -> int:
    """Return the number of bytes that may be written below a folder."""
    try:
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize if os.access(directory, os.W_OK | os.X_OK) else 0
    except OSError:
        return 0


def _is_same_directory(path: Path, other_path: Path) -> bool:
    return os.path.realpath(path) == os.path.realpath(other_path)


@dataclass(frozen=True)
class Location:
    """A segments folder, and the note in the trace folder that names it if it is elsewhere."""

    folder: Path
    note_path: Path | None = None


def make_segments_folder(directory: Path, identity: Identity, pid: int) -> Location:
    """Make a segments folder for process `pid`, in the trace folder or on a disk of this host.

    It is on this host's disk if the trace folder `directory` is on a file system that is shared.

    Raises:
        OSError: neither the trace folder nor a place of this host can be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    local_directory = find_local_directory(directory)
    for name in _names_to_try(identity, pid):
        if any((directory / f"{name}{suffix}").exists() for suffix in _RECORDING_SUFFIXES):
            continue
        try:
            location = (
                _in_trace_folder(directory, name)
                if local_directory is None
                else _on_this_host(local_directory, directory, name)
            )
        except FileExistsError:
            continue
        # The mark says to which trace the segments belong. Without it readers do not convert them.
        with Tolerated(OSError), LimitsAsErrors():
            mark(location.folder, directory)
        return location
    raise FileExistsError(f"{directory} holds a thousand recordings of process {pid}")


def discard_location(location: Location) -> None:
    """Remove a folder in which nothing could be written."""
    with Tolerated(OSError):
        (location.folder / MARKER_FILE).unlink(missing_ok=True)
        location.folder.rmdir()
        if location.note_path is not None:
            location.folder.parent.rmdir()
            location.note_path.unlink(missing_ok=True)


def _names_to_try(identity: Identity, pid: int) -> Iterator[str]:
    """Yield names to try: a pid may be reused, after a restart or in a second run."""
    for number in itertools.chain([pid], (pid * 1000 + again for again in range(1, 1000))):
        yield make_stem(identity.role, identity.rank, number)


def _in_trace_folder(directory: Path, name: str) -> Location:
    folder = directory / f"{name}{SEGMENTS_SUFFIX}"
    folder.mkdir()
    return Location(folder)


def _on_this_host(local_directory: Path, directory: Path, name: str) -> Location:
    """Make the segments folder in `local_directory`, where every user may write, inside a private one.

    A note in the trace folder `directory` leads there. `name` is that of both, without suffix.
    """
    private_folder = local_directory / f"tracelens-{os.getuid()}-{os.urandom(6).hex()}"
    note_path = directory / f"{name}{ELSEWHERE_SUFFIX}"
    with LimitsAsErrors():
        leave_note(note_path, private_folder / f"{name}{SEGMENTS_SUFFIX}")
    try:
        private_folder.mkdir(mode=0o700)
        return Location(_in_trace_folder(private_folder, name).folder, note_path)
    except OSError:
        note_path.unlink(missing_ok=True)
        raise

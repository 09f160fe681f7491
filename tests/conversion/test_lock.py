"""One at a time holds a lock; others wait as long as they like, and notice what changed meanwhile."""

import errno
import fcntl
import threading
import time
from pathlib import Path

import pytest

from tracelens.conversion.lock import hold_lock
from tracelens.errors import TraceNotFound


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file to lock."""
    path = tmp_path / "side.jsonl"
    path.write_bytes(b"")
    return path


def test_one_at_a_time(file: Path) -> None:
    """Whoever comes second is refused, until the first is done, however it ended."""
    with (
        hold_lock(file),
        pytest.raises(BlockingIOError, match="another process converts"),
        hold_lock(file),
    ):
        pass
    with pytest.raises(ZeroDivisionError), hold_lock(file):
        raise ZeroDivisionError
    descriptors_before = len(list(Path("/proc/self/fd").iterdir()))
    with hold_lock(file):
        pass
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors_before


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_lock_is_awaited_until_its_deadline(file: Path, *, is_gone: bool) -> None:
    """For the given time and no longer; a file that vanished meanwhile cannot be locked."""
    with hold_lock(file):
        began = time.monotonic()
        with pytest.raises(BlockingIOError), hold_lock(file, patience_s=0.1):
            pass
        assert time.monotonic() - began >= 0.1
    is_held = threading.Event()

    def hold() -> None:
        with hold_lock(file):
            is_held.set()
            time.sleep(0.1)
            if is_gone:
                file.unlink()

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()
    try:
        with hold_lock(file, patience_s=60):
            assert not is_gone
    except TraceNotFound:
        assert is_gone
    holder.join()


def test_what_cannot_be_locked(file: Path, tmp_path: Path) -> None:
    """Neither a file that is not there, nor a link to one."""
    with pytest.raises(TraceNotFound, match="not there any more"), hold_lock(tmp_path / "none"):
        pass
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(OSError, match="link"), hold_lock(tmp_path / "link"):
        pass


def test_a_file_system_without_locks(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is used without: better twice than never."""

    def refuse_lock(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse_lock)
    with hold_lock(file), hold_lock(file):
        pass

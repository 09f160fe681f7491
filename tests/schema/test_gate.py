"""The gate opens regular files within their limits, and says of all others what they are."""

import io
import os
import socket
import stat
from pathlib import Path

import pytest

from tracelens import containment
from tracelens.errors import InvalidArgument, NotATrace
from tracelens.schema import gate

# As docs/reliability.md has them.
VALUES = {
    "file": 4294967296,
    "decompressed": 68719476736,
    "rows": 50000000,
    "columns": 10000,
    "text": 1048576,
    "side": 268435456,
    "segment": 268435456,
    "samples": 1073741824,
    "document": 1073741824,
    "memory": 17179869184,
    "cpu": 120,
}


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take limits that a test raises back afterwards."""
    monkeypatch.setenv("TRACELENS_LIMITS", "")


def test_limits_are_those_that_are_documented() -> None:
    assert {name: gate.limit(name) for name in gate.LIMITS} == VALUES


def test_a_limit_is_set_beside_others() -> None:
    gate.raise_limit("rows", 7)
    gate.raise_limit("cpu", 1)
    gate.raise_limit("rows", 8)
    assert {name: gate.limit(name) for name in gate.LIMITS} == VALUES | {"rows": 8, "cpu": 1}
    assert os.environ["TRACELENS_LIMITS"] == "rows=8,cpu=1"


def test_senseless_limits_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_LIMITS", "rows=x,file=5,,cpu=-3,nothing=4,columns,side=1=2")
    assert {name: gate.limit(name) for name in gate.LIMITS} == VALUES | {"file": 5}
    monkeypatch.delenv("TRACELENS_LIMITS")
    assert gate.limit("file") == VALUES["file"]


def test_an_unknown_limit_names_the_known_ones() -> None:
    with pytest.raises(
        InvalidArgument, match=r"no limit 'row': expected one of columns, cpu, decom"
    ):
        gate.raise_limit("row", 5)


@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_is_positive(value: int) -> None:
    with pytest.raises(InvalidArgument, match=f"'rows' is {value}: expected 1 or more"):
        gate.raise_limit("rows", value)


def test_what_is_as_much_as_the_limit_is_admitted() -> None:
    gate.raise_limit("rows", 7)
    gate.refuse_beyond("rows", 7)
    gate.refuse_beyond("rows", 0)
    sentence = r"^it has 8 rows, more than the limit of 7 \('--limit rows=\.\.\.' raises it\)$"
    with pytest.raises(NotATrace, match=sentence):
        gate.refuse_beyond("rows", 8)


def test_a_file_is_opened_unbuffered(tmp_path: Path) -> None:
    """No child of this process inherits it, and nobody writes to it."""
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    gate.raise_limit("side", 3)
    with gate.open_regular(path, "side") as file:
        assert os.fstat(file.fileno()).st_size == 3
        assert not os.get_inheritable(file.fileno())
        assert not file.writable()
        assert file.read(2) == b"ab"
    assert gate.read_contents(path, "side") == b"abc"


def test_of_a_file_beyond_its_limit_nothing_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcd")
    gate.raise_limit("side", 3)
    descriptors_before = descriptors()
    with pytest.raises(NotATrace, match="it has 4 bytes, more than the limit of 3"):
        gate.open_regular(path, "side")
    assert descriptors() == descriptors_before
    assert gate.read_contents(path) == b"abcd"


def test_what_is_no_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    descriptors_before = descriptors()
    for path, kind in {tmp_path: "a folder", tmp_path / "pipe": "a named pipe"}.items():
        with pytest.raises(NotATrace, match=rf"^it is {kind}, expected a regular file$"):
            gate.open_regular(path)
    with pytest.raises(NotATrace, match="it is a device, expected"):
        gate.read_contents(Path("/dev/zero"))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(OSError, match="No such device or address"):
            gate.open_regular(tmp_path / "socket")
    assert descriptors() == descriptors_before


@pytest.mark.parametrize(
    ("mode", "kind"),
    [(stat.S_IFBLK, "a device"), (stat.S_IFSOCK, "a socket"), (stat.S_IFLNK, "special")],
)
def test_devices_and_sockets_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, kind: str
) -> None:
    """What only root can make, and what the system does not open."""
    path = tmp_path / "file"
    path.touch()
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result((mode, *[0] * 9)))
    with pytest.raises(NotATrace, match=f"it is {kind}"):
        gate.open_regular(path)


def test_what_is_left_out_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containment, "find_reason_left_out", lambda path: f"of {path.name}")
    with pytest.raises(NotATrace, match=r"^of absent$"):
        gate.open_regular(tmp_path / "absent")


def test_larger_files_may_take_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prolonged: list[tuple[int, int]] = []
    monkeypatch.setattr(containment, "allow_more_cpu", lambda *given: prolonged.append(given))
    path = tmp_path / "file"
    path.write_bytes(b"abcd")
    gate.raise_limit("cpu", 9)
    gate.open_regular(path).close()
    assert prolonged == [(9, 4)]


@pytest.mark.parametrize("piece", [1, 2, 100])
def test_contents_come_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """The system may return less than was asked for; what was added meanwhile is not read."""
    path = tmp_path / "file"
    path.write_bytes(b"abcde")

    class Slow(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            with path.open("ab") as growing:
                growing.write(b"more")
            return super().read(size if self.tell() else min(size or 0, piece))

    monkeypatch.setattr(io, "FileIO", Slow)
    assert gate.read_contents(path) == b"abcde"


def test_a_file_that_shrinks_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcde")

    class Shrinking(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            os.truncate(path, 2)
            return super().read(size)

    monkeypatch.setattr(io, "FileIO", Shrinking)
    assert gate.read_contents(path) == b"ab"


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))

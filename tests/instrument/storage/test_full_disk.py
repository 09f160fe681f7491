"""Where no room is left recording stops, the training does not, and the loss is counted."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launch.recording import read_one, run_child

import tracelens as tl
from tracelens.schema.record import RECORD_BYTES
from tracelens_instrument.core.spans import Span
from tracelens_instrument.storage.segments import SEGMENT_BYTES

SLOTS = SEGMENT_BYTES // RECORD_BYTES - 1
MORE = 1000


def full(_descriptor: int, _offset: int, _length: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def train(span: Span) -> None:
    """Seven events, many times."""
    for number in range(MORE):
        with tl.step(number), span, span(nbytes=1):
            span.begin().end()
            span.complete(1, 2)
            tl.counter("counter", 1.0)
            tl.instant("instant")


def test_loss_is_counted_exactly(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was recorded is kept, what was not is counted, in every form, with one warning."""
    span = tl.span("piece")
    monkeypatch.setattr(os, "posix_fallocate", full)
    for _ in range(2 * SLOTS):  # one segment is always ahead
        with span:
            pass
    with pytest.warns(RuntimeWarning, match="recording stopped, the training goes on") as warned:
        train(span)
    assert len(warned) == 1
    tl.stop()
    recorded = read_one(trace)
    assert len(recorded.events) == 2 * SLOTS
    assert recorded.side.dropped == {"no room or no permission for a segment": 7 * MORE}
    assert recorded.side.complete


def test_full_from_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording that never had room still says who it was and what it lost."""
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.warns(RuntimeWarning, match="recording stopped"):
        tl.start(tmp_path / "trace", rank=1, world=2)
    with tl.span("piece"):
        pass
    tl.stop()
    recorded = read_one(tmp_path / "trace")
    assert recorded.events == []
    assert recorded.side.process.rank == 1
    assert recorded.side.dropped == {"no room or no permission for a segment": 1}


def test_a_folder_that_cannot_be_made_records_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(RuntimeWarning, match="nothing is recorded, the training goes on"):
        tl.start(tmp_path / "file" / "trace")
    with tl.step(1), tl.span("piece"):
        pass
    tl.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode != 0:
        pytest.skip("this root may not mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


TRAIN = """
import sys, warnings
warnings.simplefilter("always")
import tracelens as tl
tl.start(sys.argv[1])
span = tl.span("piece")
count = int(sys.argv[2])
for number in range(count // 2):
    with tl.step(number), span:
        pass
print("trained to the end")
"""


@pytest.mark.root
@pytest.mark.end_to_end
def test_disk_that_fills_up(small_disk: Path) -> None:
    """On a real full disk the training ends normally; kept and counted make up all."""
    count = 16 * SLOTS
    child = run_child(TRAIN, small_disk / "trace", count)
    assert child.stdout == "trained to the end\n"
    assert child.stderr.count("TraceLens") == 1
    assert "recording stopped, the training goes on" in child.stderr
    recorded = read_one(small_disk / "trace")
    (lost,) = recorded.side.dropped.values()
    assert len(recorded.events) >= SLOTS
    assert len(recorded.events) + lost == count

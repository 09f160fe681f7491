"""What is left on disk: bytes a span after a proper end, spans after a SIGKILL.

A child records at the pace of a busy training, and says in shared memory, which a kill cannot lose
either, how many spans it has closed.
"""

from __future__ import annotations

import mmap
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.recorders.known import RECORDERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.recorders.arm import Recorder

__all__ = ["after_end", "after_kill", "child"]

PIECES = 20  # spans, then a pause: 2000 a second
PAUSE_S = 0.01
WORD = 8
AT_ONCE = 2
TIME_LIMIT_S = 120.0


@dataclass
class Left:
    """What was left of so many closed spans."""

    recorder: str
    closed: int
    kept: int
    bytes: int


class _Child:
    """A process that records, and what it says of it."""

    def __init__(self, recorder: type[Recorder], folder: Path, limit: int) -> None:
        self.recorder = recorder
        self.folder = folder / f"{recorder.__name__}-{limit}"
        self.folder.mkdir()
        count_path = folder / f"{self.folder.name}.said"
        count_path.write_bytes(bytes(WORD))
        with count_path.open("r+b") as file:
            self._said = mmap.mmap(file.fileno(), WORD)
        command = [sys.executable, sys.argv[0], "--child", recorder.__name__]
        command += [str(self.folder), str(count_path), str(limit)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    @property
    def closed(self) -> int:
        return int.from_bytes(self._said[:WORD], sys.byteorder)

    def left(self) -> Left:
        kept = self.recorder.count_kept(self.folder)
        size = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        return Left(self.recorder.name, self.closed, min(kept, self.closed), size)


def child(name: str, folder: str, said: str, limit: str) -> None:
    """Record, and end after so many spans; never, if that is 0."""
    (kind,) = (kind for kind in RECORDERS if kind.__name__ == name)
    with Path(said).open("r+b") as file:
        closed = memoryview(mmap.mmap(file.fileno(), WORD)).cast("q")
    recorder = kind(Path(folder))
    arm = recorder.arms()[0]
    recorder.resume()
    while limit == "0" or closed[0] < int(limit):
        arm.loop(PIECES)
        closed[0] += PIECES
        time.sleep(PAUSE_S)
    recorder.close()


def after_end(recorders: Sequence[type[Recorder]], spans: int) -> list[dict[str, Any]]:
    """Let each record so many spans and end."""
    return [asdict(child.left()) for child in _children(recorders, limit=spans)]


def after_kill(
    recorders: Sequence[type[Recorder]], trials: int, spans: int
) -> list[dict[str, Any]]:
    """Kill each at random moments, after at least so many spans."""
    rows = []
    for _ in range(trials):
        rows += [asdict(child.left()) for child in _children(recorders, kill_after=spans)]
    return rows


def _children(
    recorders: Sequence[type[Recorder]], *, limit: int = 0, kill_after: int = 0
) -> Iterator[_Child]:
    """Run children, few at a time; each has ended when it is returned.

    Each ends after `limit` spans; if that is 0, it is killed.
    """
    for first_index in range(0, len(recorders), AT_ONCE):
        with tempfile.TemporaryDirectory() as folder:
            children = [
                _Child(kind, Path(folder), limit)
                for kind in recorders[first_index : first_index + AT_ONCE]
            ]
            for running in children:
                if limit == 0:
                    _kill(running, kill_after)
                _, output = running.process.communicate(timeout=TIME_LIMIT_S)
                expected = 0 if limit else -signal.SIGKILL
                if running.process.returncode != expected:
                    raise RuntimeError(f"{running.recorder.name} ended by itself: {output}")
            yield from children


def _kill(running: _Child, spans: int) -> None:
    """Kill it at a random moment after it has recorded enough."""
    while running.closed < spans and running.process.poll() is None:
        time.sleep(PAUSE_S)
    time.sleep(random.uniform(0.0, 0.5))
    running.process.kill()

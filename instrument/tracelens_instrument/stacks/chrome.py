"""Reads py-spy's timeline: pairs of begin and end of frames, a stack of them for each thread."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Run", "runs"]

_THREAD: Final = re.compile(r"thread \((\d+)\)(?:: (.*))?", re.DOTALL)
_PROCESS: Final = re.compile(r"process \d+:")


@dataclass(frozen=True)
class Run:
    """Samples in a row that found the same stack; times as py-spy has them, ns."""

    pid: int
    thread: int  # as the operating system numbers it
    thread_name: str
    start_ns: int
    end_ns: int
    frames: tuple[str, ...]  # outermost first, as ``function (file:line)``


@dataclass
class _Track:
    """A thread, while its events are gone through."""

    pid: int
    thread: int = 0
    name: str = ""
    since_ns: int = 0
    frames: list[str] = field(default_factory=list)

    def until(self, moment_ns: int) -> Iterator[Run]:
        """End what has lasted until this moment."""
        shown = tuple(frame for frame in self.frames if frame)
        if shown and moment_ns > self.since_ns:
            yield Run(self.pid, self.thread, self.name, self.since_ns, moment_ns, shown)
        self.since_ns = moment_ns


def runs(path: Path, place: Callable[[str], str] = str) -> Iterator[Run]:
    """Return the runs in a file of ``py-spy record --format chrometrace --threads``.

    `place` names the file of a frame.

    Raises:
        ValueError: the file is none of these.
    """
    tracks: dict[tuple[int, int], _Track] = {}
    last_ns = 0
    for event in json.loads(path.read_bytes()):
        last_ns = round(event["ts"] * 1000)
        track = tracks.setdefault((event["pid"], event["tid"]), _Track(event["pid"]))
        yield from track.until(last_ns)
        if event["ph"] == "B":
            track.frames.append(_frame(event, track, place))
        elif track.frames:
            track.frames.pop()
    for track in tracks.values():
        yield from track.until(last_ns)


def _frame(event: dict[str, Any], track: _Track, place: Callable[[str], str]) -> str:
    """Return a frame's name, empty for py-spy's own: the process and the thread."""
    name: str = event["name"]
    where = event["args"]
    if not where["filename"]:
        thread = _THREAD.fullmatch(name)
        if thread:
            track.thread, track.name = int(thread[1]), thread[2] or ""
        if thread or _PROCESS.match(name):
            return ""
    return f"{name} ({place(where['filename'])}:{where['line']})"

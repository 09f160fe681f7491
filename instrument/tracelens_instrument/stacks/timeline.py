"""Reads py-spy's timeline: stacks of each thread, files named in short, times on the monotonic clock.

The timeline is pairs of begin and end of frames. Its clock is tied to the monotonic one by markers:
functions of known begin and end that its samples show. A sample is stamped after it was taken, so
every stamp is late, never early: the monotonic time is at least a marker's begin where it is first
seen, and at least its end where it is last seen. The largest of these lower bounds is the offset.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ["MARKER", "Run", "find_clock_offset_ns", "read_runs", "run_marker"]
_THREAD: Final = re.compile(r"thread \((\d+)\)(?:: (.*))?", re.DOTALL)
_PROCESS: Final = re.compile(r"process \d+:")
MARKER: Final = "tracelens_marker_"
_LASTS_S: Final = 0.025
_FEWEST_MARKERS: Final = 3


@dataclass(frozen=True)
class Run:
    """Samples in a row that found the same stack; times as py-spy has them, ns."""

    pid: int
    thread_id: int  # as the operating system numbers it
    thread_name: str
    start_ns: int
    end_ns: int
    frames: tuple[str, ...]  # outermost first, as ``function (file:line)``


@dataclass
class _Track:
    """A thread, while its events are gone through."""

    pid: int
    thread_id: int = 0
    name: str = ""
    run_start_ns: int = 0
    frames: list[str] = field(default_factory=list)

    def end_run_at(self, moment_ns: int) -> Iterator[Run]:
        """End what has lasted until this moment."""
        shown = tuple(frame for frame in self.frames if frame)
        if shown and moment_ns > self.run_start_ns:
            yield Run(self.pid, self.thread_id, self.name, self.run_start_ns, moment_ns, shown)
        self.run_start_ns = moment_ns


def read_runs(path: Path, shorten_path: Callable[[str], str] = str) -> Iterator[Run]:
    """Yield the runs in a file of ``py-spy record --format chrometrace --threads``.

    A run is a stack for as long as a thread had it. `shorten_path` names the file of a frame.

    Raises:
        ValueError: the file has another format.
    """
    tracks: dict[tuple[int, int], _Track] = {}  # by process and thread
    moment_ns = 0
    for event in json.loads(path.read_bytes()):
        moment_ns = round(event["ts"] * 1000)
        track = tracks.setdefault((event["pid"], event["tid"]), _Track(event["pid"]))
        yield from track.end_run_at(moment_ns)
        if event["ph"] == "B":
            track.frames.append(_name_frame(event, track, shorten_path))
        elif track.frames:
            track.frames.pop()
    for track in tracks.values():
        yield from track.end_run_at(moment_ns)


def _name_frame(event: dict[str, Any], track: _Track, shorten_path: Callable[[str], str]) -> str:
    """Return ``function (file:line)`` of a frame; `shorten_path` names its file.

    The outermost two frames are the process and its thread: they give the `track` its name, and "".
    """
    name: str = event["name"]
    source = event["args"]
    if not source["filename"]:
        thread_match = _THREAD.fullmatch(name)
        if thread_match:
            track.thread_id, track.name = int(thread_match[1]), thread_match[2] or ""
        if thread_match or _PROCESS.match(name):
            return ""
    return f"{name} ({shorten_path(source['filename'])}:{source['line']})"


def run_marker(number: int) -> dict[str, tuple[int, int]]:
    """Run for a moment in a function named after this number; return its name, begin and end (ns)."""
    name = f"{MARKER}{number}"
    # py-spy shows a function's qualified name where there is one (from Python 3.11).
    code = _sleep.__code__.replace(co_name=name)
    if hasattr(code, "co_qualname"):
        code = code.replace(co_qualname=name)
    marker: Callable[[], tuple[int, int]] = FunctionType(code, globals())
    return {name: marker()}


def find_clock_offset_ns(
    runs: Iterable[Run], marker_spans: Mapping[str, tuple[int, int]]
) -> int | None:
    """Return monotonic time minus py-spy's, ns; None if too few markers were sampled to tell.

    `marker_spans` are the true begin and end of each marker, by its name. Samples are stamped late, so
    each gives a lower bound.
    """
    sampled_spans: dict[str, tuple[int, int]] = {}  # first and last time, on py-spy's clock
    for run in runs:
        for frame in run.frames:
            name = frame.partition(" ")[0]
            if name in marker_spans:
                first_ns, last_ns = sampled_spans.get(name, (run.start_ns, run.end_ns))
                sampled_spans[name] = min(first_ns, run.start_ns), max(last_ns, run.end_ns)
    if len(sampled_spans) < _FEWEST_MARKERS:
        return None
    lower_bounds_ns: list[int] = []
    for name, (first_ns, last_ns) in sampled_spans.items():
        begin_ns, end_ns = marker_spans[name]
        lower_bounds_ns += [begin_ns - first_ns, end_ns - last_ns]
    return max(lower_bounds_ns)


def _sleep() -> tuple[int, int]:
    begin_ns = time.monotonic_ns()
    time.sleep(_LASTS_S)
    return begin_ns, time.monotonic_ns()

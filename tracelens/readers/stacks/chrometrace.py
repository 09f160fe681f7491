"""py-spy's events (`--format chrometrace`): a frame begins (B) with the first sample that has it.

It ends (E) with the first that has it not. Times are microseconds since py-spy began. Threads that were
idle have no stack then, unless py-spy ran with `--idle`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracelens.readers.event_stream import EventStream, read_first_bytes
from tracelens.readers.json_values import MOST_US, as_number, as_object
from tracelens.readers.stacks.runs import MAX_FRAMES, Frame, Run, Stacks, Thread

if TYPE_CHECKING:
    from pathlib import Path

_MARK: Final = re.compile(rb'"cat"\s*:\s*"py-spy"')


@dataclass(eq=False)
class _OpenFrames:
    """A thread's frames that are open, and its runs so far."""

    frames: list[Frame] = field(default_factory=list)  # the outermost first
    run_start_ns: int = 0  # since when these frames are open
    runs: list[Run] = field(default_factory=list)


def is_py_spy(path: Path) -> bool:
    """Return True if a file begins as py-spy's events do."""
    return _MARK.search(read_first_bytes(path)) is not None


def read_stacks(path: Path) -> Stacks:
    """Read the sampled stacks of a file, as `FilesReader.read_file` says."""
    stacks = Stacks()
    threads: dict[tuple[int, int], _OpenFrames] = defaultdict(_OpenFrames)  # by pid and tid

    def count_runs() -> int:
        return sum(len(thread.runs) for thread in threads.values())

    for event in stacks.read_events(EventStream(path), count_runs):
        _take_event(event, stacks, threads)
    open_count = sum(len(thread.frames) for thread in threads.values())
    if open_count:
        stacks.left_out_counts["frames that do not end"] = open_count
    for (pid, tid), thread in threads.items():
        if thread.runs:
            stacks.runs_by_thread[Thread(pid, f"thread {tid}")] = thread.runs
    return stacks.set_rows()


def _take_event(
    event: dict[str, Any], stacks: Stacks, threads: dict[tuple[int, int], _OpenFrames]
) -> None:
    """Open (B) or close (E) a frame of a thread; the time since its last event becomes a run."""
    phase, name = event.get("ph"), event.get("name")
    pid, tid, time_us = (as_number(event.get(key), MOST_US) for key in ("pid", "tid", "ts"))
    if phase not in ("B", "E"):
        stacks.left_out_counts["events that neither begin nor end a frame"] += 1
        return
    if not isinstance(name, str) or not name or pid is None or tid is None or time_us is None:
        stacks.unusable_count += 1
        return
    stacks.event_counts["begins and ends of frames"] += 1
    thread = threads[pid, tid]
    now_ns = time_us * 1_000
    if thread.frames and now_ns > thread.run_start_ns:
        stack_number = stacks.number_stack(tuple(thread.frames))
        thread.runs.append(Run(thread.run_start_ns, now_ns, stack_number))
    thread.run_start_ns = max(thread.run_start_ns, now_ns)
    if phase == "B" and len(thread.frames) < MAX_FRAMES:
        args = as_object(event.get("args"))
        file, line = args.get("filename"), as_number(args.get("line"), MOST_US)
        thread.frames.append(
            Frame(name, file=file if isinstance(file, str) else "", line=line or 0)
        )
    elif phase == "E" and thread.frames and thread.frames[-1].name == name:
        thread.frames.pop()
    else:
        stacks.unusable_count += 1

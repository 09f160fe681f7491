"""Stacks in speedscope's JSON, which py-spy and others write: a profile a thread, sampled or by events.

Source: https://www.speedscope.app/file-format-schema.json. py-spy leaves out samples of threads
that were idle, unless it ran with `--idle`, and puts the others end to end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from tracelens.errors import NotATrace
from tracelens.readers.json_values import MOST_NS, as_count, as_object
from tracelens.readers.stacks.runs import MAX_FRAMES, Frame, Run, Stacks, Thread
from tracelens.schema.gate import read_beginning, read_contents, refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MARK: Final = b"speedscope.app/file-format-schema.json"
_BEGIN_BYTES: Final = 1 << 16
_UNITS_NS: Final = {
    "nanoseconds": 1,
    "microseconds": 1_000,
    "milliseconds": 10**6,
    "seconds": 10**9,
}
_EXPORTER_WITHOUT_IDLE: Final = "py-spy@"
_PROCESS: Final = re.compile(r"Process (\d{1,9}) ")


def is_speedscope(path: Path) -> bool:
    """Return True if a file says that it is of this format, near its begin."""
    return _MARK in read_beginning(path, _BEGIN_BYTES)


def read_stacks(path: Path) -> Stacks:
    """Read the sampled stacks of a file, as `FilesReader.read_file` says."""
    try:
        document = as_object(orjson.loads(read_contents(path)))
    except orjson.JSONDecodeError as error:
        raise NotATrace(f"it is no whole JSON ({error})") from error
    shared, profiles = document.get("shared"), document.get("profiles")
    if not isinstance(profiles, list) or not isinstance(shared, dict):
        raise NotATrace("it has no profiles and no frames, expected those of speedscope's format")
    entries = shared.get("frames")
    frames = [_to_frame(entry) for entry in entries] if isinstance(entries, list) else []
    exporter = str(document.get("exporter"))
    stacks = Stacks(leaves_out_idle=exporter.startswith(_EXPORTER_WITHOUT_IDLE))
    for profile in profiles:
        _take_profile(profile, frames, stacks)
    if not stacks.runs_by_thread and stacks.left_out_counts["profiles that count no time"]:
        raise NotATrace("what its profiles count is no time, such as bytes or numbers of samples")
    return stacks.set_rows()


def _take_profile(profile: object, frames: list[Frame], stacks: Stacks) -> None:
    """Take the runs of a profile, which is that of one thread."""
    if not isinstance(profile, dict):
        stacks.unusable_count += 1
        return
    unit_ns = _UNITS_NS.get(str(profile.get("unit")))
    if unit_ns is None:
        stacks.left_out_counts["profiles that count no time"] += 1
        return
    name = str(profile.get("name") or "")
    process = _PROCESS.match(name)
    thread = Thread(int(process[1]) if process else 0, name)
    read_runs = _read_events if profile.get("type") == "evented" else _read_samples
    runs = stacks.runs_by_thread.setdefault(thread, [])
    runs.extend(read_runs(profile, frames, unit_ns, stacks))
    refuse_beyond("rows", sum(map(len, stacks.runs_by_thread.values())))
    if not runs:
        del stacks.runs_by_thread[thread]


def _read_samples(
    profile: dict[str, Any], frames: list[Frame], unit_ns: int, stacks: Stacks
) -> Iterator[Run]:
    """Yield runs of samples, as long as their weights in units of `unit_ns`; skip empty stacks.

    A sample lists the indices of its frames in `frames`, the outermost first.
    """
    samples, weights = profile.get("samples"), profile.get("weights")
    if not isinstance(samples, list) or not isinstance(weights, list):
        stacks.unusable_count += 1
        return
    stacks.unusable_count += abs(len(samples) - len(weights))
    start_ns = float(_to_ns(profile.get("startValue"), unit_ns) or 0)
    for sample, weight in zip(samples, weights, strict=False):
        duration_ns = _to_ns(weight, unit_ns)
        stack = _find_frames(sample, frames)
        stacks.event_counts["samples"] += 1
        if stack is None or duration_ns is None or start_ns + duration_ns >= MOST_NS:
            stacks.unusable_count += 1
            continue
        end_ns = start_ns + duration_ns
        if stack and round(end_ns) > round(start_ns):
            yield Run(round(start_ns), round(end_ns), stacks.number_stack(stack))
        start_ns = end_ns


def _read_events(
    profile: dict[str, Any], frames: list[Frame], unit_ns: int, stacks: Stacks
) -> Iterator[Run]:
    """Yield runs between events, at times in `unit_ns`: a frame, given by its index, opens or closes."""
    events = profile.get("events")
    if not isinstance(events, list):
        stacks.unusable_count += 1
        return
    open_indices: list[int] = []  # of frames, the outermost first
    known_indices = range(len(frames))
    run_start_ns = 0
    for entry in events:
        event = as_object(entry)
        frame_index, time_ns = event.get("frame"), _to_ns(event.get("at"), unit_ns)
        stacks.event_counts["begins and ends of frames"] += 1
        if time_ns is None or not isinstance(frame_index, int) or frame_index not in known_indices:
            stacks.unusable_count += 1
            continue
        now_ns = round(time_ns)
        if open_indices and now_ns > run_start_ns:
            stack_number = stacks.number_stack(tuple(frames[index] for index in open_indices))
            yield Run(run_start_ns, now_ns, stack_number)
        run_start_ns = max(run_start_ns, now_ns)
        if event.get("type") == "O" and len(open_indices) < MAX_FRAMES:
            open_indices.append(frame_index)
        elif event.get("type") == "C" and open_indices and open_indices[-1] == frame_index:
            open_indices.pop()
        else:
            stacks.unusable_count += 1


def _find_frames(sample: object, frames: list[Frame]) -> tuple[Frame, ...] | None:
    """Return the frames of a sample; None if it names one that does not exist."""
    if not isinstance(sample, list) or len(sample) > MAX_FRAMES:
        return None
    if not all(isinstance(index, int) and 0 <= index < len(frames) for index in sample):
        return None
    return tuple(frames[index] for index in sample)


def _to_frame(entry: object) -> Frame:
    """Return a frame by its name, file and line; 0 if the line is not known."""
    fields = as_object(entry)
    name, file = fields.get("name"), fields.get("file")
    return Frame(
        name=name if isinstance(name, str) and name else "?",
        file=file if isinstance(file, str) else "",
        line=as_count(fields.get("line"), limit=MOST_NS) or 0,
    )


def _to_ns(value: object, unit_ns: int) -> float | None:
    """Return a time in some unit as nanoseconds; None for anything else, or beyond all times."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value * unit_ns if 0 <= value * unit_ns < MOST_NS else None

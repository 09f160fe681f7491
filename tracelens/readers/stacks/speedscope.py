"""Stacks in speedscope's JSON, which py-spy and others write: a profile a thread, sampled or by events.

Source: https://www.speedscope.app/file-format-schema.json. py-spy leaves out samples of threads
that were idle, unless it ran with `--idle`, and puts the others end to end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from tracelens.errors import NotATrace
from tracelens.readers.gathered import MOST_NS
from tracelens.readers.stacks.runs import Frame, Run, Stacks, Thread
from tracelens.schema.gate import beginning, contents, refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["is_speedscope", "stacks_of"]

_MARK: Final = b"speedscope.app/file-format-schema.json"
_BEGIN_BYTES: Final = 1 << 16
_NS: Final = {"nanoseconds": 1, "microseconds": 1_000, "milliseconds": 10**6, "seconds": 10**9}
_IDLE_LEFT_OUT: Final = ("py-spy@",)  # exporters
_PROCESS: Final = re.compile(r"Process (\d{1,9}) ")
_DEEPEST: Final = 2_000


def is_speedscope(path: Path) -> bool:
    """Return whether a file says that it is of this format, near its begin."""
    return _MARK in beginning(path, _BEGIN_BYTES)


def stacks_of(path: Path) -> Stacks:
    """Read one file.

    Raises:
        NotATrace: it is no such file, larger than it may be, or what it counts is no time.
        OSError: it cannot be read.
    """
    try:
        content = orjson.loads(contents(path))
    except orjson.JSONDecodeError as error:
        raise NotATrace(f"it is no whole JSON ({error})") from error
    shared = content.get("shared") if isinstance(content, dict) else None
    profiles = content.get("profiles") if isinstance(content, dict) else None
    if not isinstance(profiles, list) or not isinstance(shared, dict):
        raise NotATrace("it has no profiles and no frames, expected those of speedscope's format")
    listed = shared.get("frames")
    frames = [_frame(each) for each in listed] if isinstance(listed, list) else []
    exporter = str(content.get("exporter"))
    found = Stacks(compressed=exporter.startswith(_IDLE_LEFT_OUT))
    for profile in profiles:
        _take(profile, frames, found)
    if not found.runs and found.left_out["profiles that count no time"]:
        raise NotATrace("what its profiles count is no time, such as bytes or numbers of samples")
    return found.translated()


def _take(profile: Any, frames: list[Frame], found: Stacks) -> None:
    if not isinstance(profile, dict):
        found.unusable += 1
        return
    unit = _NS.get(str(profile.get("unit")))
    if unit is None:
        found.left_out["profiles that count no time"] += 1
        return
    named = str(profile.get("name") or "")
    process = _PROCESS.match(named)
    thread = Thread(int(process[1]) if process else 0, named)
    read = _by_events if profile.get("type") == "evented" else _sampled
    found.runs.setdefault(thread, []).extend(read(profile, frames, unit, found))
    refuse_beyond("rows", sum(map(len, found.runs.values())))
    if not found.runs[thread]:
        del found.runs[thread]


def _sampled(
    profile: dict[str, Any], frames: list[Frame], unit: int, found: Stacks
) -> Iterator[Run]:
    """Yield runs of samples, of which each weighs how long it was seen; an empty one is no run."""
    samples, weights = profile.get("samples"), profile.get("weights")
    if not isinstance(samples, list) or not isinstance(weights, list):
        found.unusable += 1
        return
    found.unusable += abs(len(samples) - len(weights))
    start = _time(profile.get("startValue"), unit)
    now = float(start or 0)
    for stack, weight in zip(samples, weights, strict=False):
        length = _time(weight, unit)
        known = _stack(stack, frames)
        found.sorts["samples"] += 1
        if known is None or length is None or now + length >= MOST_NS:
            found.unusable += 1
            continue
        begin, now = round(now), now + length
        if known and round(now) > begin:
            yield Run(begin, round(now), found.number(known))


def _by_events(
    profile: dict[str, Any], frames: list[Frame], unit: int, found: Stacks
) -> Iterator[Run]:
    """Yield runs between frames that open (O) and close (C)."""
    events = profile.get("events")
    if not isinstance(events, list):
        found.unusable += 1
        return
    stack: list[int] = []
    since = 0
    for event in events:
        place = event.get("frame") if isinstance(event, dict) else None
        at = _time(event.get("at"), unit) if isinstance(event, dict) else None
        found.sorts["begins and ends of frames"] += 1
        if at is None or not isinstance(place, int) or not 0 <= place < len(frames):
            found.unusable += 1
            continue
        now = round(at)
        if stack and now > since:
            yield Run(since, now, found.number(tuple(frames[each] for each in stack)))
        since = max(since, now)
        if event.get("type") == "O" and len(stack) < _DEEPEST:
            stack.append(place)
        elif event.get("type") == "C" and stack and stack[-1] == place:
            stack.pop()
        else:
            found.unusable += 1


def _stack(stack: Any, frames: list[Frame]) -> tuple[Frame, ...] | None:
    """Return the frames of a sample; None if it names one that there is not."""
    if not isinstance(stack, list) or len(stack) > _DEEPEST:
        return None
    if not all(isinstance(place, int) and 0 <= place < len(frames) for place in stack):
        return None
    return tuple(frames[place] for place in stack)


def _frame(each: Any) -> Frame:
    if not isinstance(each, dict):
        return Frame("?", "", 0)
    name, file, line = each.get("name"), each.get("file"), each.get("line")
    return Frame(
        name if isinstance(name, str) and name else "?",
        file if isinstance(file, str) else "",
        line if isinstance(line, int) and not isinstance(line, bool) and 0 <= line < MOST_NS else 0,
    )


def _time(value: object, unit: int) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value * unit if 0 <= value * unit < MOST_NS else None

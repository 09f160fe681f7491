"""Reads Horovod's timeline: of each operation, what each rank waited for it, as rank 0 saw it.

Tensors are processes in the file. An operation is negotiated first: the event ``NEGOTIATE_ALLREDUCE``
holds a mark for each rank at the time at which rank 0 heard that it was ready. Then it runs, as
``ALLREDUCE``, with activities in it. Operations that Horovod knows from the step before (its response
cache) have no marks.

Source: horovod/common/timeline.cc. What is made of it: docs/formats.md.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.model.recognition import Gap
from tracelens.readers import files
from tracelens.readers.base import SIMPLY, Reading
from tracelens.readers.event_stream import EventStream, begin_of_events
from tracelens.readers.files import ReadFile
from tracelens.readers.gathered import MOST_NS
from tracelens.readers.words import meaning
from tracelens.schema.gate import refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.event_stream import Event

__all__ = ["HorovodReader"]

# share of a tensor's operations: with fewer lost or added, it is still one of each step [chosen]
MAX_SHARE_OF_CALLS_LOST: Final = 0.1
# share of how late the last rank is: one that goes on sooner after each operation waited [chosen]
MAX_PAUSE_AFTER_WAIT: Final = 0.2
_FORMAT: Final = "timeline of Horovod"
_LISTED: Final = 6
_MARK: Final = re.compile(rb'"NEGOTIATE_[A-Z]|"start_time_since_epoch_in_micros"')
_NEGOTIATION: Final = "NEGOTIATE_"
_CYCLE: Final = "CYCLE_START"
_US: Final = 1_000
_MOST_US: Final = MOST_NS // _US
_LONGEST_NAME: Final = 256
_MOST_RANKS: Final = 1_000_000
_ITEM_BYTES: Final = {
    **dict.fromkeys(("uint8", "int8", "bool", "byte"), 1),
    **dict.fromkeys(("uint16", "int16", "float16", "half"), 2),
    **dict.fromkeys(("int32", "float32"), 4),
    **dict.fromkeys(("int64", "float64"), 8),
}
_SHAPE: Final = re.compile(r"\d+")


@dataclass(eq=False)
class _Call:
    """An operation: when ranks were ready for it, when it ran, and on what. Times are microseconds."""

    tensor: str
    begin: int
    ready: dict[int, int] = field(default_factory=dict)
    op: str = ""
    end: int = -1
    nbytes: int | None = None
    step: int | None = None


@dataclass(eq=False)
class Timeline(ReadFile):
    """What a file holds: `calls` operations of `ranks`, of which `unmarked` say nothing of other ranks.

    `activities_us` is how long operations of rank 0 were in each of their activities.
    """

    calls: int = 0
    ranks: int = 0
    unmarked: int = 0
    activities_us: Counter[str] = field(default_factory=Counter)


@dataclass(eq=False)
class _Tensor:
    """A process of the file: its name, the operation that it is in, and its events that are open."""

    name: str = ""
    call: _Call | None = None
    open: list[tuple[str, int]] = field(default_factory=list)


def is_timeline(path: Path) -> bool:
    """Return whether a file begins as Horovod's timelines do."""
    return _MARK.search(begin_of_events(path)) is not None


def timeline_of(path: Path) -> Timeline:
    """Read one file.

    Raises:
        NotATrace: there is no list of events, it is no regular file, or larger than it may be.
        OSError: it cannot be read.
    """
    found = Timeline(says_ranks=True)
    tensors: dict[int, _Tensor] = defaultdict(_Tensor)
    calls: list[_Call] = []
    begin_us = 0
    stream = EventStream(path)
    for piece in stream.pieces():
        for event in piece:
            begin_us = _take(event, found, tensors, calls) or begin_us
        refuse_beyond("rows", len(calls))
    found.streamed(stream)
    running = sum(tensor.call is not None for tensor in tensors.values())
    if running:
        found.left_out["operations that do not end"] += running
    found.calls, found.unmarked = len(calls), sum(not call.ready for call in calls)
    _number_steps(calls)
    found.ranks = len({rank for call in calls for rank in call.ready})
    if 2 * found.unmarked > len(calls):
        _leave_others_out(calls)
    found.rows = _rows(calls, begin_us)
    return found


def _leave_others_out(calls: list[_Call]) -> None:
    """Keep what is known of rank 0 alone, where of the others hardly anything is."""
    for call in calls:
        call.ready = {0: call.ready.get(0, call.begin)}


def _take(
    event: Event | object, found: Timeline, tensors: dict[int, _Tensor], calls: list[_Call]
) -> int:
    """Take an event; return when the file's times begin, in microseconds since 1970, if it says so."""
    if not isinstance(event, dict):
        found.unusable += 1
        return 0
    phase, name, now = event.get("ph"), event.get("name"), _whole(event.get("ts"))
    tensor = tensors[_whole(event.get("pid")) or 0]
    args: Any = event.get("args")
    args = args if isinstance(args, dict) else {}
    if phase == "M":
        if event.get("name") == "process_name" and isinstance(args.get("name"), str):
            tensor.name = args["name"][:_LONGEST_NAME]
        found.left_out["names of tensors"] += 1
    elif phase in ("i", "I"):
        found.left_out["begins of cycles" if name == _CYCLE else "instants"] += 1
    elif now is None or (phase != "E" and not isinstance(name, str)):
        found.unusable += 1
    elif phase == "B":
        _begin(str(name), now, tensor, found)
    elif phase == "X":
        _mark(str(name), now, tensor, found)
    elif phase == "E" and tensor.open:
        _end(now, tensor, args, found, calls)
    else:
        found.unusable += 1
    return _whole(args.get("start_time_since_epoch_in_micros")) or 0


def _begin(name: str, now: int, tensor: _Tensor, found: Timeline) -> None:
    is_negotiation = name.startswith(_NEGOTIATION)
    if is_negotiation and tensor.open:  # a tensor has one operation at a time: an end was lost
        tensor.open.clear()
        found.left_out["operations that do not end"] += 1
    if is_negotiation:
        tensor.call = _Call(tensor.name, now)
    elif not tensor.open:
        tensor.call = tensor.call or _Call(tensor.name, now)
        tensor.call.op = name
    tensor.open.append((name[:_LONGEST_NAME], now))
    found.sorts["begins" if len(tensor.open) == 1 else "begins of activities"] += 1


def _mark(name: str, now: int, tensor: _Tensor, found: Timeline) -> None:
    """Take the mark that a rank is ready; the first counts."""
    rank = int(name) if name.isdecimal() and len(name) < len(str(_MOST_RANKS)) else None
    if rank is None or tensor.call is None:
        found.unusable += 1
        return
    tensor.call.ready.setdefault(rank, now)
    found.sorts["ranks that are ready"] += 1


def _end(
    now: int, tensor: _Tensor, args: dict[str, Any], found: Timeline, calls: list[_Call]
) -> None:
    name, begun = tensor.open.pop()
    found.sorts["ends"] += 1
    if tensor.open:
        found.activities_us[name] += max(0, now - begun)
    elif not name.startswith(_NEGOTIATION) and tensor.call is not None:
        tensor.call.end, tensor.call.nbytes = now, _size(args)
        calls.append(tensor.call)
        tensor.call = None


def _number_steps(calls: list[_Call]) -> None:
    """Number steps by tensors that come back: a step begins with the first one that it has already.

    What most operations do about as often, they do in each step, but for operations that were lost.
    """
    times = Counter(call.tensor for call in calls)
    ((often, _),) = Counter(times[call.tensor] for call in calls).most_common(1) or ((0, 0),)
    if often < 2:
        return
    step = 0
    seen: set[str] = set()
    for call in calls:
        if abs(times[call.tensor] - often) > MAX_SHARE_OF_CALLS_LOST * often:
            continue
        if call.tensor in seen:
            step += 1
            seen.clear()
        seen.add(call.tensor)
        call.step = step


def _rows(calls: list[_Call], begin_us: int) -> pl.DataFrame:
    schema = {
        "rank": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64, "kind": pl.String, "op": pl.String,
        "name": pl.String, "thread": pl.String, "step": pl.Int32, "seq": pl.Int64, "bytes": pl.Int64,
        "status": pl.String,
    }  # fmt: skip
    rows = [*_reductions(calls, begin_us), *_waits(calls, begin_us)]
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(clock=pl.lit("rank 0"))


def _reductions(calls: list[_Call], begin_us: int) -> Iterator[tuple[Any, ...]]:
    """Yield an operation for each rank that is known to take part: from when it was ready to its end."""
    for number, call in enumerate(calls):
        found = meaning(call.op)
        kind, op = found or ("reduction", None)
        for rank, ready in (call.ready or {0: call.begin}).items():
            start, end = ((begin_us + at) * _US for at in (ready, max(ready, call.end)))
            yield (
                rank, start, end, kind, op, call.tensor, "reductions", call.step, number, call.nbytes,
                "closed",
            )  # fmt: skip


def _waits(calls: list[_Call], begin_us: int) -> Iterator[tuple[Any, ...]]:
    """Yield how long each rank waits: from its last tensor of a step to the last operation's end.

    That is how `DistributedOptimizer` works; the file itself does not hold it. Ranks that go on
    only after each operation wait for each.
    """
    of_ranks: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    ends: dict[int, int] = {}
    for call in calls:
        if call.step is not None:
            ends[call.step] = max(ends.get(call.step, 0), call.end)
            for rank, ready in (call.ready or {0: call.begin}).items():
                of_ranks[rank].append((ready, call.step, max(ready, call.end)))
    is_blocking = _waits_for_each(calls, of_ranks.values())
    for rank, waits in of_ranks.items():
        last = {step: (ready, step, max(ready, ends[step])) for ready, step, _ in sorted(waits)}
        for ready, step, ended in waits if is_blocking else last.values():
            start, end = ((begin_us + at) * _US for at in (ready, ended))
            yield (
                rank, start, end, "wait", None, "synchronize", "training", step, None, None, "estimated",
            )  # fmt: skip


def _waits_for_each(calls: list[_Call], of_ranks: Iterable[list[tuple[int, int, int]]]) -> bool:
    """Return whether ranks go on only after each operation: at once, however late one of them was.

    Each operation of a rank is when it was ready, its step, and its end.
    """
    pauses = []
    for waits in of_ranks:
        pairs = [pair for pair in pairwise(sorted(waits)) if pair[0][1] == pair[1][1]]
        if not pairs or any(later[0] < earlier[2] for earlier, later in pairs):
            return False
        pauses.append(median(later[0] - earlier[2] for earlier, later in pairs))
    delays = [max(call.ready.values()) - min(call.ready.values()) for call in calls if call.ready]
    return bool(delays and pauses) and min(pauses) < MAX_PAUSE_AFTER_WAIT * median(delays)


def _size(args: dict[str, Any]) -> int | None:
    """Return how many bytes a tensor has, by its type and its shape, ``[3, 224, 224]``."""
    item, shape = _ITEM_BYTES.get(str(args.get("dtype")).casefold()), args.get("shape")
    if item is None or not isinstance(shape, str):
        return None
    size = item * math.prod(int(number[:12]) for number in _SHAPE.findall(shape[:_LONGEST_NAME]))
    return size if size < MOST_NS else None


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < _MOST_US else None


@dataclass(frozen=True)
class HorovodReader:
    """Reads a file that `HOROVOD_TIMELINE` named."""

    name: str = _FORMAT

    def sniff(self, path: Path) -> bool:
        """Return whether it is a file that begins as a timeline does."""
        return path.is_file() and is_timeline(path)

    def read(self, path: Path, how: Reading = SIMPLY) -> Trace:
        """Read the file.

        Raises:
            NotATrace: it cannot be read.
            EmptyTrace: there is no operation in it.
        """
        found, notes = files.each_read(path, [path], timeline_of, how)
        timeline = found[path.name]
        recognition = files.recognized(_FORMAT, found, _gaps(timeline), *_facts(timeline))
        return files.joined(path, found, {}, notes, recognition)


def _facts(timeline: Timeline) -> Iterator[tuple[str, str]]:
    total = timeline.activities_us.total()
    if total:
        shares = [
            f"{name} {spent / total:.0%}"
            for name, spent in timeline.activities_us.most_common(_LISTED)
        ]
        yield "operations of rank 0", f"of their activities' time {', '.join(shares)}"


def _gaps(timeline: Timeline) -> Iterator[Gap]:
    yield from files.cut_off(
        {"the file": timeline}, "Let the program end by itself, so that Horovod closes its file."
    )
    if timeline.unmarked:
        yield Gap(
            f"{timeline.unmarked:,} of {timeline.calls:,} operations do not say when "
            f"{f'the other of {timeline.ranks:,} ranks' if timeline.ranks > 1 else 'other ranks'} were "
            "ready, as Horovod knew them from the step before",
            "which rank others wait for in them",
            "Run with HOROVOD_CACHE_CAPACITY=0, and the timeline has a mark for each rank.",
        )
    yield Gap(
        "what ranks do between reductions is not recorded",
        "in which phase a rank is slow",
        "Record the run with 'tracelens record'.",
    )
    yield Gap(
        "waits at the end of a step are taken from the last tensor to the last operation's end",
        "how much of communication is hidden behind the update",
        "Record the run with 'tracelens record'.",
        decisive=False,
    )
    yield Gap(
        "rank 0 hears once a cycle which ranks are ready",
        "who is late by less than HOROVOD_CYCLE_TIME (1 ms, if it is not set)",
        "Set HOROVOD_CYCLE_TIME to less.",
        decisive=False,
    )

"""The events of one file of DFTracer as columns; one event a line, times in microseconds since 1970.

Older versions write numbers as text, and the host's name into every event. Newer ones write hashes of
names (`hhash`), which events of phase M called HH resolve.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from tracelens.errors import NotATrace
from tracelens.readers.event_stream import EventStream, begin_of_events
from tracelens.readers.files import ReadFile
from tracelens.readers.gathered import MOST_NS, Gathered, What, chosen
from tracelens.readers.words import meaning
from tracelens.schema.gate import refuse_beyond

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from tracelens.readers.event_stream import Event

__all__ = ["FileEvents", "is_dftracer", "read_events"]

_KEYS: Final = frozenset({"id", "name", "cat", "pid", "tid", "ph"})
_US: Final = 1_000
_MOST_US: Final = MOST_NS // _US
_MOST_DIGITS: Final = 20
_OF_IO: Final = frozenset({"posix", "stdio", "storage", "reader", "dataloader"})
_OUT: Final = ("write", "sync", "send")
_SYSTEM_CALLS: Final = frozenset({"posix", "stdio"})
# Of which what they return is bytes: fread counts items, readdir returns an address.
_MOVES: Final = frozenset(
    {
        *("read", "pread", "pread64", "readv", "preadv", "recv", "recvfrom", "recvmsg"),
        *("write", "pwrite", "pwrite64", "writev", "pwritev", "send", "sendto", "sendmsg"),
    }
)
_OTHERS_WORK: Final = frozenset({"reduction", "device", "ps", "elastic", "wait"})
_Spans = Gathered[tuple[str, str], tuple[str, str, str]]  # (category, name), (pid, tid, host)
_PHASES: Final = {"M": "names of files, hosts and processes", "C": "values of counters"}


@dataclass(eq=False)
class FileEvents(ReadFile):
    """What one file holds; `epochs` and `steps` are numbers that events name."""

    pids: set[str] = field(default_factory=set)
    epochs: set[int] = field(default_factory=set)
    steps: set[tuple[int, int]] = field(default_factory=set)


def is_dftracer(path: Path) -> bool:
    """Return whether a file begins with an event of DFTracer: a line of its own, no comma behind it."""
    begin = begin_of_events(path).removeprefix(b"[").lstrip()
    line, _, _ = begin.partition(b"\n")
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(event, dict) or "ph" not in event:
        return False
    return event.keys() >= _KEYS or event.get("cat") == "dftracer"


def read_events(path: Path) -> FileEvents:
    """Read one file.

    Raises:
        NotATrace: it does not begin as such, is no regular file, or larger than it may be.
        OSError: it cannot be read.
    """
    if not is_dftracer(path):
        raise NotATrace("it does not begin with an event of DFTracer on a line of its own")
    found, spans = FileEvents(), _Spans()
    hosts: dict[str, str] = {}
    stream = EventStream(path, lines=True)
    for piece in stream.pieces():
        for event in piece:
            _take(event, found, spans, hosts)
        refuse_beyond("rows", len(spans))
    found.streamed(stream)
    found.rows = _rows(spans, hosts)
    return found


def _take(event: Event | object, found: FileEvents, spans: _Spans, hosts: dict[str, str]) -> None:
    if not isinstance(event, dict):
        found.unusable += 1
        return
    phase, args = event.get("ph"), event.get("args")
    args = args if isinstance(args, dict) else {}
    if phase != "X":
        if event.get("name") == "HH":
            hosts[_word(args.get("value"))] = _word(args.get("name"))
        sort = _PHASES.get(phase) if isinstance(phase, str) else None
        found.left_out[sort or "events of other phases"] += 1
        return
    name, start, duration = event.get("name"), _whole(event.get("ts")), _whole(event.get("dur"))
    if not isinstance(name, str) or not name or start is None or duration is None or duration < 0:
        found.unusable += 1
        return
    category, pid = _word(event.get("cat")), _word(event.get("pid"))
    found.sorts[category] += 1
    found.pids.add(pid)
    _note_epoch(args, found)
    host = _word(args.get("hostname") or args.get("hhash"))
    place = (pid, _word(event.get("tid")), host)
    begin = start * _US
    spans.add(begin, begin + duration * _US, (category, name), place, _moved(category, name, args))


def _note_epoch(args: dict[str, Any], found: FileEvents) -> None:
    epoch = _whole(args.get("epoch"))
    if epoch is None:
        return
    found.epochs.add(epoch)
    step = _whole(args.get("step"))
    if step is not None:
        found.steps.add((epoch, step))


def _moved(category: str, name: str, args: dict[str, Any]) -> int | None:
    """Return how many bytes a call of the system says that it moved."""
    if category.casefold() != "posix" or name not in _MOVES:
        return None
    returned = _whole(args.get("ret"))
    return returned if returned is not None and returned >= 0 else None


def _word(value: object) -> str:
    return str(value)[:256] if isinstance(value, str | int) else ""


def _whole(value: object) -> int | None:
    """Return a number that may be written as text; None if it is none, or beyond all times."""
    if isinstance(value, str):
        digits = value.strip()
        if len(digits) > _MOST_DIGITS or not digits.removeprefix("-").isdecimal():
            return None
        value = int(digits)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if -_MOST_US < value < _MOST_US else None


def _kind(category: str, name: str) -> str:
    """Return the kind of a span by its category, else by the last part of its name."""
    sort, last = category.casefold().replace("_", ""), name.rpartition(".")[2]
    if sort in _SYSTEM_CALLS and any(word in name for word in _OUT):
        return "user"  # what is written is not loaded; a checkpoint says so around it
    if sort in _OF_IO:
        return "data"
    found = meaning(last) or meaning(category)
    if last.casefold() == "checkpoint" or sort == "checkpoint":
        return "checkpoint"
    return found[0] if found and found[0] not in _OTHERS_WORK else "user"


def _rows(spans: _Spans, hosts: dict[str, str]) -> pl.DataFrame:
    several = len({pid for pid, _, _ in spans.places}) > 1
    named = [hosts.get(host, host) or None for _, _, host in spans.places]

    def thread(place: tuple[str, str, str]) -> str:
        pid, tid, _ = place
        return f"thread {tid} of {pid}" if several else f"thread {tid}"

    rows = spans.frame(lambda key: What(_kind(*key), None, key[1]), thread)
    return rows.with_columns(host=chosen(named, spans.placed))

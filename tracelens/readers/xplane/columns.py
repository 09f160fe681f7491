"""One XPlane file as rows in our words: threads of the host, and streams of devices.

Planes are the host or a device, lines their threads and streams. Lines of a device that say again what
its operations are part of (modules, scopes, source code) are counted and left out; its steps mark steps
where the host's annotations do not. Times are picoseconds from a line's begin.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from tracelens.errors import NotATrace
from tracelens.readers.files import ReadFile
from tracelens.readers.words import kernel_meaning, meaning, step_number
from tracelens.readers.xplane.messages import parsed
from tracelens.schema.gate import contents, refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Profile", "profile_of"]

_DEVICE: Final = "/device:"
_HOST: Final = "/host:CPU"
_STEPS: Final = "Steps"
_STREAM: Final = re.compile(r"^(?:Stream #|XLA Ops|Async XLA Ops|SparseCore)")
_OF_XLA: Final = re.compile(r"^([a-z]+(?:-[a-z]+)*?)(?:-start|-done)?(?:\.\d+)*$")
_STEP_NUMBER: Final = "step_num"
_STREAMS_OF_A_DEVICE: Final = 1_000
_PS: Final = 1_000
_MOST_NS: Final = 2**61
_LONGEST_NAME: Final = 256
_NOT_OF_HOSTS: Final = frozenset({"ps", "elastic", "device"})
_NONE: Final = -1


class _Track(NamedTuple):
    """A line: `stream` is null on the host; `numbered` is the stat that numbers steps, -1 for none."""

    name: str
    begin_ns: int
    stream: int | None
    numbered: int


class _Row(NamedTuple):
    start_ns: int
    end_ns: int
    kind: str
    op: str | None
    name: str
    thread: str | None
    stream: int | None
    step: int | None


@dataclass(eq=False)
class Profile(ReadFile):
    """What one file holds, of the host that wrote it; its `sorts` are planes."""

    host: str = ""


def profile_of(path: Path) -> Profile:
    """Translate a file.

    Raises:
        NotATrace: it is none, or damaged.
        MissingExtra: protobuf's library is not installed.
        OSError: it cannot be read.
    """
    content = parsed(contents(path))
    if not content.planes:
        raise NotATrace("there is no plane in it")
    found = Profile(host=next(iter(content.hostnames), ""))
    rows: list[_Row] = []
    for place, plane in enumerate(content.planes):
        rows += _of_plane(place, plane, found)
        refuse_beyond("rows", len(rows))
    found.rows = _frame(_marked_once(rows)).with_columns(
        host=pl.lit(found.host or None, pl.String), clock=pl.lit(path.name)
    )
    return found


def _marked_once(rows: list[_Row]) -> list[_Row]:
    """Keep the steps that the host marks, else those of the first device that does."""
    by = {_NONE if row.stream is None else row.stream for row in rows if row.kind == "step"}
    first = min(by, default=_NONE)
    kept = None if first == _NONE else first
    return [row for row in rows if row.kind != "step" or row.stream == kept]


def _of_plane(place: int, plane: Any, found: Profile) -> Iterator[_Row]:
    names = {entry.key: entry.value for entry in plane.event_metadata}
    stats = {entry.key: entry.value.name for entry in plane.stat_metadata}
    numbered = next((key for key, name in stats.items() if name == _STEP_NUMBER), _NONE)
    on_device = plane.name.startswith(_DEVICE)
    for line in plane.lines:
        called = line.display_name or line.name
        found.sorts[plane.name] += len(line.events)
        if on_device and not _STREAM.match(called) and called != _STEPS:
            found.left_out[f"events of '{called[:40]}', which repeat operations"] += len(
                line.events
            )
            continue
        if not on_device and plane.name != _HOST:
            found.left_out[f"events of the plane '{plane.name[:40]}'"] += len(line.events)
            continue
        stream = place * _STREAMS_OF_A_DEVICE + line.id % _STREAMS_OF_A_DEVICE
        track = _Track(called, line.timestamp_ns, stream if on_device else None, numbered)
        for event in line.events:
            row = _row(event, names.get(event.metadata_id), track)
            if row is None:
                found.unusable += 1
            else:
                yield row


def _row(event: Any, known: Any, track: _Track) -> _Row | None:
    """Return an event as a row; None where it has no name, or no time that there can be."""
    name = (known.display_name or known.name)[:_LONGEST_NAME] if known is not None else ""
    start = track.begin_ns + event.offset_ps // _PS
    end = start + event.duration_ps // _PS
    if not name or event.num_occurrences or not 0 <= start <= end < _MOST_NS:
        return None
    on_host = track.stream is None
    if on_host or track.name == _STEPS:
        step = _step(event, track.numbered, name) if on_host else _number(name)
        if step is not None or not on_host:
            return _Row(start, end, "step", None, name, track.name, track.stream, step)
        return _Row(start, end, *_of_host(name), name, track.name, None, None)
    return _Row(start, end, *_of_device(name), name, None, track.stream, None)


def _of_host(name: str) -> tuple[str, str | None]:
    """Return the kind of an annotation; "$" begins a function of Python."""
    found = None if name.startswith("$") else meaning(name)
    return found if found and found[0] not in _NOT_OF_HOSTS else ("user", None)


def _of_device(name: str) -> tuple[str, str | None]:
    """Return the kind of an operation on a device, by the kernel's name or XLA's."""
    of_xla = _OF_XLA.match(name)
    found = kernel_meaning(name) or (meaning(of_xla[1]) if of_xla else None)
    return found if found and found[0] == "reduction" else ("device", None)


def _step(event: Any, numbered: int, name: str) -> int | None:
    """Return which step an annotation of the host is: what it says, or what its name does."""
    for stat in event.stats if numbered != _NONE else ():
        if stat.metadata_id == numbered:
            return _number(str(stat.int64_value or stat.uint64_value))
    return step_number(name)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _frame(rows: list[_Row]) -> pl.DataFrame:
    schema = {
        "start_ns": pl.Int64, "end_ns": pl.Int64, "kind": pl.String, "op": pl.String,
        "name": pl.String, "thread": pl.String, "stream": pl.Int64, "step": pl.Int32,
    }  # fmt: skip
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    on_steps = (pl.col("kind") == "step") & pl.col("stream").is_not_null()
    return frame.with_columns(stream=pl.when(~on_steps).then("stream"))

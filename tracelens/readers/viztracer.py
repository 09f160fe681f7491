"""Reads VizTracer's traces: calls of functions, with names ``Class.method (file:line)``.

Times are microseconds with three digits behind the point, of the clock that `perf_counter` reads. A file
is of a rank, whose other processes and threads are of that rank (docs/formats.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.model import fmt
from tracelens.model.recognition import Gap
from tracelens.readers import files
from tracelens.readers.base import SIMPLY, Reading
from tracelens.readers.event_stream import EventStream, begin_of_events
from tracelens.readers.functions import function_meaning
from tracelens.readers.gathered import MOST_NS, Gathered, What
from tracelens.readers.processes import FileOfProcesses, process_column, rank_processes
from tracelens.readers.words import step_number
from tracelens.schema.gate import refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.event_stream import Event

__all__ = ["VizTracerReader"]

_SUFFIXES: Final = (".json", ".json.gz")
_FORMAT: Final = "trace of VizTracer"
_WHY: Final = "VizTracer does not write ranks, and there are several files"
_MARK: Final = re.compile(rb'"cat"\s*:\s*"fee"|"viztracer_metadata"', re.IGNORECASE)
_CALL: Final = re.compile(r"^(?P<name>.*) \((?P<file>.*):\d+\)$", re.DOTALL)
_FUNCTION: Final = "fee"  # VizTracer's category: function entry and exit
_US: Final = 1_000
_LONGEST_NAME: Final = 256
_PHASES: Final = {
    "M": "names of processes and threads",
    "C": "values of counters",
    "i": "instants",
    **dict.fromkeys("NDO", "records of objects"),
    **dict.fromkeys("be", "asynchronous events"),
    **dict.fromkeys("stf", "arrows between events"),
}
_Place = tuple[int, int]  # pid and tid
_Spans = Gathered[tuple[bool, str], _Place]  # whether it is a function, and its name


@dataclass(eq=False)
class Calls(FileOfProcesses):
    """What one file holds; `threads` are names by number, `overflow`: calls were overwritten."""

    threads: dict[_Place, str] = field(default_factory=dict)
    overflow: bool = False


def is_viztracer(path: Path) -> bool:
    """Return whether a file begins as VizTracer's do."""
    return _MARK.search(begin_of_events(path)) is not None


def calls_of(path: Path) -> Calls:
    """Read one file.

    Raises:
        NotATrace: there is no list of events, it is no regular file, or larger than it may be.
        OSError: it cannot be read.
    """
    found, spans = Calls(), _Spans()
    stream = EventStream(path)
    for piece in stream.pieces():
        for event in piece:
            _take(event, found, spans)
        refuse_beyond("rows", len(spans))
    found.streamed(stream)
    written = stream.facts.get("viztracer_metadata")
    found.overflow = isinstance(written, dict) and written.get("overflow") is True
    found.processes = {pid: found.processes.get(pid, "") for pid, _ in spans.places}
    found.rows = spans.frame(
        _what, lambda place: found.threads.get(place, f"thread {place[1]}")
    ).with_columns(process=process_column(spans, [pid for pid, _ in spans.places]))
    return found


def _take(event: Event | object, found: Calls, spans: _Spans) -> None:
    if not isinstance(event, dict):
        found.unusable += 1
        return
    phase, pid, tid = event.get("ph"), _number(event.get("pid")), _number(event.get("tid"))
    if phase == "M":
        _name(event, found, (pid, tid))
    if phase != "X":
        sort = _PHASES.get(phase) if isinstance(phase, str) else None
        found.left_out[sort or "events of other phases"] += 1
        return
    name, start, length = event.get("name"), _ns(event.get("ts")), _ns(event.get("dur"))
    if not isinstance(name, str) or not name or start is None or length is None or length < 0:
        found.unusable += 1
        return
    is_function = str(event.get("cat")).casefold() == _FUNCTION
    found.sorts["calls of functions" if is_function else "events that the program logged"] += 1
    spans.add(start, start + length, (is_function, name[:_LONGEST_NAME]), (pid, tid))


def _name(event: Event, found: Calls, place: _Place) -> None:
    args = event.get("args")
    name: Any = args.get("name") if isinstance(args, dict) else None
    if not isinstance(name, str):
        return
    if event.get("name") == "process_name":
        found.processes[place[0]] = name[:_LONGEST_NAME]
    elif event.get("name") == "thread_name":
        found.threads[place] = name[:_LONGEST_NAME]


def _what(key: tuple[bool, str]) -> What:
    """Return what a call is; an event that the program logged may be called as a step is."""
    is_function, name = key
    call = _CALL.match(name) if is_function else None
    if call:
        return What(*function_meaning(call["name"], call["file"]), name)
    step = None if is_function else step_number(name)
    return What("step" if step is not None else "user", None, name)


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < MOST_NS else 0


def _ns(value: object) -> int | None:
    """Return microseconds as nanoseconds; None if they are none, or beyond all times."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return round(value * _US) if -MOST_NS < value * _US < MOST_NS else None


@dataclass(frozen=True)
class VizTracerReader:
    """Reads a file or a folder of VizTracer's traces."""

    name: str = _FORMAT

    def sniff(self, path: Path) -> bool:
        """Return whether a file, or one of the first of a folder, is VizTracer's."""
        return files.sniffed(path, _SUFFIXES, is_viztracer)

    def read(self, path: Path, how: Reading = SIMPLY) -> Trace:
        """Read all files; one that cannot be read is noted, where there are others.

        Raises:
            NotATrace: no file can be read.
            EmptyTrace: there is no call in them.
            UnusableInput: it is not known of which rank a file is.
        """
        found, notes = files.each_read(path, files.called(path, _SUFFIXES), calls_of, how)
        rank_processes(found, how.rank_of)
        ranks = files.ranks_given(found, how.rank_of, _WHY, alone=True)
        rows = pl.concat((file.rows for file in found.values()), how="diagonal")
        gaps = _gaps(rows, found, how.rank_of)
        return files.joined(path, found, ranks, notes, files.recognized(_FORMAT, found, gaps))


def _gaps(
    rows: pl.DataFrame, found: Mapping[str, Calls], given: Mapping[str, int]
) -> Iterator[Gap]:
    kinds = set(rows["kind"].unique().cast(pl.String))
    yield from files.cut_off(
        found, "Let the program end by itself, so that VizTracer saves its file."
    )
    full = [name for name, file in found.items() if file.overflow]
    if full:
        yield Gap(
            f"the buffer of {fmt.series(full)} was full, and the oldest calls were overwritten",
            "what happened before the first call that is left",
            "Trace a shorter part, or give viztracer a larger --tracer_entries.",
        )
    yield from files.ranks_unknown(found, given)
    yield from files.python_alone(kinds)

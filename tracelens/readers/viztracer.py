"""Reads VizTracer's traces: calls of functions, with names ``Class.method (file:line)``.

Times are microseconds with three digits behind the point, of the clock that `perf_counter` reads. A file
is of a rank, whose other processes and threads are of that rank (docs/formats.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracelens.model import fmt
from tracelens.model.recognition import Gap
from tracelens.readers.event_stream import EventStream, read_first_bytes
from tracelens.readers.files import FileSet, FilesReader, gaps_of_python_calls
from tracelens.readers.functions import function_meaning
from tracelens.readers.gathered import SpanBuffer, SpanMeaning
from tracelens.readers.json_values import as_number, us_as_ns
from tracelens.readers.processes import FileOfProcesses, process_column, rank_processes
from tracelens.readers.words import step_number

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.readers.event_stream import Event

__all__ = ["VizTracerReader"]

_MARK: Final = re.compile(rb'"cat"\s*:\s*"fee"|"viztracer_metadata"', re.IGNORECASE)
_CALL: Final = re.compile(r"^(?P<name>.*) \((?P<file>.*):\d+\)$", re.DOTALL)
_FUNCTION: Final = "fee"  # VizTracer's category: function entry and exit
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
_Spans = SpanBuffer[tuple[bool, str], _Place]  # whether it is a function, and its name


@dataclass(eq=False)
class Calls(FileOfProcesses):
    """What one file holds; `threads` are names by number, `overflow`: calls were overwritten."""

    threads: dict[_Place, str] = field(default_factory=dict)
    overflow: bool = False


def is_viztracer(path: Path) -> bool:
    """Return True if a file begins as VizTracer's do."""
    return _MARK.search(read_first_bytes(path)) is not None


def read_calls(path: Path) -> Calls:
    """Read one file.

    Raises:
        NotATrace: there is no list of events, it is no regular file, or larger than it may be.
        OSError: it cannot be read.
    """
    calls, spans = Calls(), _Spans()
    stream = EventStream(path)
    for event in calls.read_events(stream, spans.__len__):
        _add_event(event, calls, spans)
    metadata = stream.facts.get("viztracer_metadata")
    calls.overflow = isinstance(metadata, dict) and metadata.get("overflow") is True
    calls.processes = {pid: calls.processes.get(pid, "") for pid, _ in spans.threads}
    threads = {(pid, tid): f"thread {tid}" for pid, tid in spans.threads} | calls.threads
    processes = process_column(spans, [pid for pid, _ in spans.threads])
    calls.rows = spans.frame(_translate, threads.__getitem__).with_columns(process=processes)
    return calls


def _add_event(event: Event, calls: Calls, spans: _Spans) -> None:
    """Add an event to `spans` if it lasts, else take its name or leave it out, and count it."""
    phase = event.get("ph")
    pid, tid = (as_number(event.get(key)) or 0 for key in ("pid", "tid"))
    if phase == "M":
        _take_name(event, calls, pid, tid)
    if phase != "X":
        left_out_as = _PHASES.get(phase) if isinstance(phase, str) else None
        calls.left_out[left_out_as or "events of other phases"] += 1
        return
    name = event.get("name") or None
    start_ns, length_ns = us_as_ns(event.get("ts")), us_as_ns(event.get("dur"))
    if not isinstance(name, str) or start_ns is None or length_ns is None or length_ns < 0:
        calls.unusable += 1
        return
    is_function = str(event.get("cat")).casefold() == _FUNCTION
    calls.sorts["calls of functions" if is_function else "events that the program logged"] += 1
    spans.add(start_ns, start_ns + length_ns, (is_function, name[:_LONGEST_NAME]), (pid, tid))


def _take_name(event: Event, calls: Calls, pid: int, tid: int) -> None:
    """Take from a metadata event the name of a process or thread."""
    args = event.get("args")
    name: Any = args.get("name") if isinstance(args, dict) else None
    if not isinstance(name, str):
        return
    if event.get("name") == "process_name":
        calls.processes[pid] = name[:_LONGEST_NAME]
    elif event.get("name") == "thread_name":
        calls.threads[pid, tid] = name[:_LONGEST_NAME]


def _translate(key: tuple[bool, str]) -> SpanMeaning:
    """Translate a call; an event that the program logged may be called as a step is."""
    is_function, name = key
    call = _CALL.match(name) if is_function else None
    if call:
        return SpanMeaning(*function_meaning(call["name"], call["file"]), name)
    step = None if is_function else step_number(name)
    return SpanMeaning("step" if step is not None else "user", None, name)


class VizTracerReader(FilesReader[Calls]):
    """Reads a file or a folder of VizTracer's traces."""

    name = "trace of VizTracer"
    suffixes = (".json", ".json.gz")
    why_no_rank = "VizTracer does not write ranks, and there are several files"
    advice_if_cut = "Let the program end by itself, so that VizTracer saves its file."
    is_format = staticmethod(is_viztracer)
    read_file = staticmethod(read_calls)
    rank_parts = staticmethod(rank_processes)

    def severe_gaps(self, run: FileSet[Calls]) -> Iterator[Gap]:
        """Yield which files lost their oldest calls."""
        names = [name for name, file in run.contents.items() if file.overflow]
        if names:
            yield Gap(
                f"the buffer of {fmt.series(names)} was full, and the oldest calls were overwritten",
                "what happened before the first call that is left",
                "Trace a shorter part, or give viztracer a larger --tracer_entries.",
            )

    def gaps(self, run: FileSet[Calls]) -> Iterator[Gap]:
        """Yield what calls of functions do not say."""
        return gaps_of_python_calls(run.kinds)

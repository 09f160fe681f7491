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
from tracelens.readers.files import FileSet, FilesReader, find_gaps_of_python_calls
from tracelens.readers.functions import find_function_meaning
from tracelens.readers.gathered import SpanBuffer, SpanMeaning
from tracelens.readers.json_values import as_number, as_object, convert_us_to_ns
from tracelens.readers.processes import FileOfProcesses, build_process_column, rank_processes
from tracelens.readers.words import parse_step_number

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.readers.event_stream import Event

_MARK: Final = re.compile(rb'"cat"\s*:\s*"fee"|"viztracer_metadata"', re.IGNORECASE)
_CALL: Final = re.compile(r"^(?P<name>.*) \((?P<file>.*):\d+\)$", re.DOTALL)
_CATEGORY_OF_FUNCTIONS: Final = "fee"  # function entry and exit
_MAX_CHARACTERS_OF_NAME: Final = 256
_PHASES_IN_NO_ROW: Final = {
    "M": "names of processes and threads",
    "C": "values of counters",
    "i": "instants",
    **dict.fromkeys("NDO", "records of objects"),
    **dict.fromkeys("be", "asynchronous events"),
    **dict.fromkeys("stf", "arrows between events"),
}
_Thread = tuple[int, int]  # pid and tid
_Spans = SpanBuffer[tuple[bool, str], _Thread]  # whether it is a function, and its name


@dataclass(eq=False)
class Calls(FileOfProcesses):
    """What one file holds."""

    name_by_thread: dict[_Thread, str] = field(default_factory=dict)
    has_overflowed: bool = False  # the oldest calls were overwritten


def is_viztracer(path: Path) -> bool:
    """Return True if a file begins as VizTracer's do."""
    return _MARK.search(read_first_bytes(path)) is not None


def read_calls(path: Path) -> Calls:
    """Read the calls of a file, as `FilesReader.read_file` says."""
    calls, spans = Calls(), _Spans()
    stream = EventStream(path)
    for event in calls.read_events(stream, row_count=spans.__len__):
        _add_event(event, calls, spans)
    tool_facts = as_object(stream.metadata.get("viztracer_metadata"))
    calls.has_overflowed = tool_facts.get("overflow") is True
    threads = [*spans.number_by_thread]  # those with calls
    calls.name_by_process = {pid: calls.name_by_process.get(pid, "") for pid, _ in threads}
    name_by_thread = {(pid, tid): f"thread {tid}" for pid, tid in threads} | calls.name_by_thread
    process_column = build_process_column(spans, [pid for pid, _ in threads])
    rows = spans.to_frame(_translate_key, name_by_thread.__getitem__)
    calls.rows = rows.with_columns(process=process_column)
    return calls


def _add_event(event: Event, calls: Calls, spans: _Spans) -> None:
    """Add an event to `spans` if it lasts (phase X), else take its name or leave it out; count it."""
    phase = event.get("ph")
    pid, tid = (as_number(event.get(key)) or 0 for key in ("pid", "tid"))
    if phase == "M":
        _take_name(event, calls, pid, tid)
    if phase != "X":
        left_out_as = _PHASES_IN_NO_ROW.get(phase) if isinstance(phase, str) else None
        calls.left_out_counts[left_out_as or "events of other phases"] += 1
        return
    name = event.get("name") or None
    start_ns, duration_ns = convert_us_to_ns(event.get("ts")), convert_us_to_ns(event.get("dur"))
    if not isinstance(name, str) or start_ns is None or duration_ns is None or duration_ns < 0:
        calls.unusable_count += 1
        return
    is_function = str(event.get("cat")).casefold() == _CATEGORY_OF_FUNCTIONS
    counted_as = "calls of functions" if is_function else "events that the program logged"
    calls.event_counts[counted_as] += 1
    key = (is_function, name[:_MAX_CHARACTERS_OF_NAME])
    spans.add(start_ns, start_ns + duration_ns, key, thread=(pid, tid))


def _take_name(event: Event, calls: Calls, pid: int, tid: int) -> None:
    """Take from a metadata event the name of a process or thread."""
    args = event.get("args")
    name: Any = args.get("name") if isinstance(args, dict) else None
    if not isinstance(name, str):
        return
    if event.get("name") == "process_name":
        calls.name_by_process[pid] = name[:_MAX_CHARACTERS_OF_NAME]
    elif event.get("name") == "thread_name":
        calls.name_by_thread[pid, tid] = name[:_MAX_CHARACTERS_OF_NAME]


def _translate_key(key: tuple[bool, str]) -> SpanMeaning:
    """Translate a call; an event that the program logged may be called as a step is."""
    is_function, name = key
    call = _CALL.match(name) if is_function else None
    if call:
        kind, op = find_function_meaning(call["name"], call["file"])
        return SpanMeaning(kind, op, name)
    step = None if is_function else parse_step_number(name)
    return SpanMeaning(kind="step" if step is not None else "user", op=None, name=name)


class VizTracerReader(FilesReader[Calls]):
    """Reads a file or a folder of VizTracer's traces."""

    name = "trace of VizTracer"
    suffixes = (".json", ".json.gz")
    why_no_rank = "VizTracer does not write ranks, and there are several files"
    advice_if_cut = "Let the program end by itself, so that VizTracer saves its file."
    is_format = staticmethod(is_viztracer)
    read_file = staticmethod(read_calls)
    rank_processes = staticmethod(rank_processes)

    def list_severe_gaps(self, run: FileSet[Calls]) -> Iterator[Gap]:
        """Yield which files lost their oldest calls."""
        full_files = [name for name, file in run.file_by_name.items() if file.has_overflowed]
        if full_files:
            yield Gap(
                f"the buffer of {fmt.join_words(full_files)} was full, and the oldest calls were "
                "overwritten",
                "what happened before the first call that is left",
                "Trace a shorter part, or give viztracer a larger --tracer_entries.",
            )

    def list_gaps(self, run: FileSet[Calls]) -> Iterator[Gap]:
        """Yield what calls of functions do not say."""
        return find_gaps_of_python_calls(run.kinds)

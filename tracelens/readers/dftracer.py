"""Reads DFTracer's events (``.pfw``, ``.pfw.gz``): calls of I/O, and what a data loader did around them.

One event a line, times in microseconds since 1970. Older versions write numbers as text, and the host's
name into every event. Newer ones write hashes of names (`hhash`), which events of phase M called HH
resolve. A file does not say its rank. A file alone, of one process, is shown as rank 0, and the verdict
stays open; of several files the user says each one's rank. Files of one rank, such as those of the
processes that load its data, are threads of that rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson
import polars as pl

from tracelens.errors import NotATrace
from tracelens.model import fmt
from tracelens.model.recognition import Gap
from tracelens.readers.event_stream import EventStream, read_first_bytes
from tracelens.readers.files import FileSet, FilesReader, ReadFile
from tracelens.readers.gathered import SpanBuffer, SpanMeaning, words_by_number
from tracelens.readers.json_values import MOST_US, as_object, as_signed_number, as_text, unquoted
from tracelens.readers.words import meaning_of_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_KEYS: Final = frozenset({"id", "name", "cat", "pid", "tid", "ph"})
_CATEGORIES_OF_IO: Final = frozenset({"posix", "stdio", "storage", "reader", "dataloader"})
_SYSTEM_CALLS: Final = frozenset({"posix", "stdio"})
_WORDS_OF_OUTPUT: Final = ("write", "sync", "send")
# Calls that return a number of bytes: fread counts items, readdir returns an address.
_CALLS_THAT_RETURN_BYTES: Final = frozenset(
    {
        *("read", "pread", "pread64", "readv", "preadv", "recv", "recvfrom", "recvmsg"),
        *("write", "pwrite", "pwrite64", "writev", "pwritev", "send", "sendto", "sendmsg"),
    }
)
_NOT_OF_DFTRACER: Final = frozenset({"reduction", "device", "ps", "elastic", "wait"})
_PHASES_IN_NO_ROW: Final = {"M": "names of files, hosts and processes", "C": "values of counters"}
_Thread = tuple[str, str, str]  # pid, tid, host or its hash
_Spans = SpanBuffer[tuple[str, str], _Thread]  # by category and name


@dataclass(eq=False)
class FileEvents(ReadFile):
    """What one file holds; `epochs` and `steps` are numbers that events name."""

    pids: set[str] = field(default_factory=set)
    epochs: set[int] = field(default_factory=set)
    steps: set[tuple[int, int]] = field(default_factory=set)

    @property
    def process_count(self) -> int:
        """Number of processes whose events it holds."""
        return len(self.pids)


class DFTracerReader(FilesReader[FileEvents]):
    """Reads a file or a folder of DFTracer's events."""

    name = "log of DFTracer"
    suffixes = (".pfw", ".pfw.gz", ".json", ".json.gz")
    why_no_rank = (
        "DFTracer does not write ranks, and there are events of several processes (those that load "
        "data for a rank are of that rank)"
    )
    advice_if_cut = "Let the program end by itself, so that DFTracer closes its file."

    def is_format(self, file: Path) -> bool:
        """Return True if a file begins with an event on a line of its own, no comma behind it."""
        line, _, _ = read_first_bytes(file).removeprefix(b"[").lstrip().partition(b"\n")
        try:
            event = as_object(orjson.loads(line))
        except orjson.JSONDecodeError:
            return False
        return "ph" in event and (event.keys() >= _KEYS or event.get("cat") == "dftracer")

    def read_file(self, file: Path) -> FileEvents:
        """Read one file, as `FilesReader.read_file` says."""
        if not self.is_format(file):
            raise NotATrace("it does not begin with an event of DFTracer on a line of its own")
        events, spans = FileEvents(), _Spans()
        host_of_hash: dict[str, str] = {}
        for event in events.read_events(EventStream(file, lines=True), spans.__len__):
            _add_event(event, events, spans, host_of_hash)
        events.rows = _build_rows(spans, host_of_hash)
        return events

    def facts(self, run: FileSet[FileEvents]) -> Iterator[tuple[str, str]]:
        """Yield how many bytes moved, and how many epochs and steps events name."""
        transfers = run.rows.filter(pl.col("bytes").is_not_null())
        if transfers.height:
            is_read = pl.col("kind").cast(pl.String) == "data"
            read_bytes = transfers.filter(is_read)["bytes"].sum()
            written_bytes = transfers.filter(~is_read)["bytes"].sum()
            yield (
                "I/O",
                f"{transfers.height:,} calls moved {read_bytes:,} bytes in and {written_bytes:,} out",
            )
        epochs = {epoch for file in run.contents.values() for epoch in file.epochs}
        steps = {step for file in run.contents.values() for step in file.steps}
        if epochs:
            step_count = fmt.count(len(steps), "step")
            yield "epochs", f"{len(epochs):,}, with {step_count} that events name"

    def gaps(self, run: FileSet[FileEvents]) -> Iterator[Gap]:
        """Yield what calls of I/O do not say."""
        yield Gap(
            "collectives are not recorded",
            "which rank others wait for",
            "Record the run with 'tracelens record', or profile it with torch.profiler.",
            decisive=len({*run.ranks.values()}) > 1,
            hides_waits=True,
        )
        if "step" not in run.kinds:
            yield Gap(
                "no step is marked by a span (numbers of steps in events are those of samples loaded "
                "ahead)",
                "where steps begin",
                "Record the run with 'tracelens record'.",
            )
        if not run.kinds & {"forward", "backprop", "update"}:
            yield Gap(
                "no span names a phase of training",
                "what ranks did while they did not load data",
                "Wrap forward, backward and optimizer in DFTracer's functions of these names.",
            )


def _add_event(
    event: dict[str, Any], events: FileEvents, spans: _Spans, host_of_hash: dict[str, str]
) -> None:
    """Add an event to `spans` if it lasts, else note what it says, and count it."""
    phase, args = event.get("ph"), as_object(event.get("args"))
    if phase != "X":
        if event.get("name") == "HH":
            host_of_hash[_label(args.get("value"))] = _label(args.get("name"))
        left_out_as = _PHASES_IN_NO_ROW.get(phase) if isinstance(phase, str) else None
        events.left_out[left_out_as or "events of other phases"] += 1
        return
    name = event.get("name") or None
    start_us, duration_us = _number(event.get("ts")), _number(event.get("dur"))
    if not isinstance(name, str) or start_us is None or duration_us is None or duration_us < 0:
        events.unusable += 1
        return
    category, pid = _label(event.get("cat")), _label(event.get("pid"))
    events.sorts[category] += 1
    events.pids.add(pid)
    epoch, step = _number(args.get("epoch")), _number(args.get("step"))
    if epoch is not None:
        events.epochs.add(epoch)
        if step is not None:
            events.steps.add((epoch, step))
    thread = (pid, _label(event.get("tid")), _label(args.get("hostname") or args.get("hhash")))
    nbytes = _bytes_moved(category, name, args)
    end_us = start_us + duration_us
    spans.add(start_us * 1_000, end_us * 1_000, (category, name), thread, nbytes)


def _bytes_moved(category: str, name: str, args: dict[str, Any]) -> int | None:
    """Return the number of bytes that a call of the system says it moved."""
    if category.casefold() != "posix" or name not in _CALLS_THAT_RETURN_BYTES:
        return None
    returned = _number(args.get("ret"))
    return returned if returned is not None and returned >= 0 else None


def _label(value: object) -> str:
    return as_text(str(value) if isinstance(value, int) else value)


def _number(value: object) -> int | None:
    return as_signed_number(unquoted(value), MOST_US)


def _kind_of(category: str, name: str) -> str:
    """Return the kind of a span by its category, else by the last part of its name."""
    plain_category, last_word = category.casefold().replace("_", ""), name.rpartition(".")[2]
    if plain_category in _SYSTEM_CALLS and any(word in name for word in _WORDS_OF_OUTPUT):
        return "user"  # what is written is not loaded; a checkpoint says so around it
    if plain_category in _CATEGORIES_OF_IO:
        return "data"
    if last_word.casefold() == "checkpoint" or plain_category == "checkpoint":
        return "checkpoint"
    return meaning_of_name(last_word, category, excluded=_NOT_OF_DFTRACER)[0]


def _build_rows(spans: _Spans, host_of_hash: dict[str, str]) -> pl.DataFrame:
    """Return one row per span, in words of `spans.build`; `host_of_hash` are the names of hosts."""
    has_several_processes = len({pid for pid, _, _ in spans.threads}) > 1
    hosts = [host_of_hash.get(host, host) or None for _, _, host in spans.threads]

    def thread_name(thread: _Thread) -> str:
        pid, tid, _ = thread
        return f"thread {tid} of {pid}" if has_several_processes else f"thread {tid}"

    rows = spans.frame(lambda key: SpanMeaning(_kind_of(*key), None, key[1]), thread_name)
    return rows.with_columns(host=words_by_number(hosts, spans.thread_of_row))

"""Reads DFTracer's events (``.pfw``, ``.pfw.gz``): calls of I/O, and what a data loader did around them.

One event a line, times in microseconds since 1970. Older versions write numbers as text, and the host's
name into every event; newer ones write hashes of names (`hhash`). A file does not say its rank: one
alone, of one process, is shown as rank 0; of several the user says it. Files of one rank, such as those
of the processes that load its data, are threads of that rank.
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
from tracelens.readers.gathered import SpanBuffer, SpanMeaning, gather_words
from tracelens.readers.json_values import (
    MOST_US,
    as_object,
    as_signed_number,
    as_text,
    unquote_number,
)
from tracelens.readers.words import find_meaning_of_names

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
_KINDS_NOT_OF_DFTRACER: Final = frozenset({"reduction", "device", "ps", "elastic", "wait"})
_PHASES_IN_NO_ROW: Final = {"M": "names of files, hosts and processes", "C": "values of counters"}
_Thread = tuple[str, str, str]  # pid, tid, host or its hash
_Spans = SpanBuffer[tuple[str, str], _Thread]  # by category and name


@dataclass(eq=False)
class FileEvents(ReadFile):
    """What one file holds."""

    pids: set[str] = field(default_factory=set)
    epochs: set[int] = field(default_factory=set)  # numbers that events name
    epoch_steps: set[tuple[int, int]] = field(default_factory=set)  # epoch and step, where both are

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
        """Read the events of a file, as `FilesReader.read_file` says."""
        if not self.is_format(file):
            raise NotATrace("it does not begin with an event of DFTracer on a line of its own")
        file_events, spans = FileEvents(), _Spans()
        host_by_hash: dict[str, str] = {}
        stream = EventStream(file, has_event_per_line=True)
        for event in file_events.read_events(stream, row_count=spans.__len__):
            _add_event(event, file_events, spans, host_by_hash)
        file_events.rows = _build_rows(spans, host_by_hash)
        return file_events

    def list_facts(self, run: FileSet[FileEvents]) -> Iterator[tuple[str, str]]:
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
        epochs = {epoch for file in run.file_by_name.values() for epoch in file.epochs}
        epoch_steps = {step for file in run.file_by_name.values() for step in file.epoch_steps}
        if epochs:
            count_text = fmt.count(len(epoch_steps), "step")
            yield "epochs", f"{len(epochs):,}, with {count_text} that events name"

    def list_gaps(self, run: FileSet[FileEvents]) -> Iterator[Gap]:
        """Yield what calls of I/O do not say."""
        yield Gap(
            "collectives are not recorded",
            "which rank others wait for",
            "Record the run with 'tracelens record', or profile it with torch.profiler.",
            is_decisive=len({*run.rank_by_file.values()}) > 1,
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
    event: dict[str, Any], file_events: FileEvents, spans: _Spans, host_by_hash: dict[str, str]
) -> None:
    """Add an event to `spans` if it lasts (phase X), else take what it says; count it either way."""
    phase, args = event.get("ph"), as_object(event.get("args"))
    if phase != "X":
        if event.get("name") == "HH":  # the name of a host that other events name by a hash
            host_by_hash[_to_label(args.get("value"))] = _to_label(args.get("name"))
        left_out_as = _PHASES_IN_NO_ROW.get(phase) if isinstance(phase, str) else None
        file_events.left_out_counts[left_out_as or "events of other phases"] += 1
        return
    name = event.get("name") or None
    start_us, duration_us = _to_number(event.get("ts")), _to_number(event.get("dur"))
    if not isinstance(name, str) or start_us is None or duration_us is None or duration_us < 0:
        file_events.unusable_count += 1
        return
    category, pid = _to_label(event.get("cat")), _to_label(event.get("pid"))
    file_events.event_counts[category] += 1
    file_events.pids.add(pid)
    epoch, step = _to_number(args.get("epoch")), _to_number(args.get("step"))
    if epoch is not None:
        file_events.epochs.add(epoch)
        if step is not None:
            file_events.epoch_steps.add((epoch, step))
    host_or_hash = _to_label(args.get("hostname") or args.get("hhash"))
    thread = (pid, _to_label(event.get("tid")), host_or_hash)
    moved_bytes = _find_moved_bytes(category, name, args)
    end_us = start_us + duration_us
    spans.add(start_us * 1_000, end_us * 1_000, (category, name), thread, moved_bytes)


def _find_moved_bytes(category: str, name: str, args: dict[str, Any]) -> int | None:
    """Return the number of bytes that a call of the system says it moved; None of other calls."""
    if category.casefold() != "posix" or name not in _CALLS_THAT_RETURN_BYTES:
        return None
    returned_bytes = _to_number(args.get("ret"))  # negative if the call failed
    return returned_bytes if returned_bytes is not None and returned_bytes >= 0 else None


def _to_label(value: object) -> str:
    return as_text(str(value) if isinstance(value, int) else value)


def _to_number(value: object) -> int | None:
    return as_signed_number(unquote_number(value), MOST_US)


def _find_kind(category: str, name: str) -> str:
    """Return the kind of a span by its category, else by the last part of its name."""
    plain_category, last_word = category.casefold().replace("_", ""), name.rpartition(".")[2]
    if plain_category in _SYSTEM_CALLS and any(word in name for word in _WORDS_OF_OUTPUT):
        return "user"  # what is written is not loaded; a checkpoint says so around it
    if plain_category in _CATEGORIES_OF_IO:
        return "data"
    if last_word.casefold() == "checkpoint" or plain_category == "checkpoint":
        return "checkpoint"
    kind, _ = find_meaning_of_names(last_word, category, excluded_kinds=_KINDS_NOT_OF_DFTRACER)
    return kind


def _build_rows(spans: _Spans, host_by_hash: dict[str, str]) -> pl.DataFrame:
    """Return one row per span, in words of `spans.build`."""
    threads = [*spans.number_by_thread]  # pid, tid, and the host's name or its hash
    has_several_processes = len({pid for pid, _, _ in threads}) > 1
    hosts = [host_by_hash.get(host, host) or None for _, _, host in threads]

    def translate_key(category_and_name: tuple[str, str]) -> SpanMeaning:
        _, name = category_and_name
        return SpanMeaning(kind=_find_kind(*category_and_name), op=None, name=name)

    def name_thread(thread: _Thread) -> str:
        pid, tid, _ = thread
        return f"thread {tid} of {pid}" if has_several_processes else f"thread {tid}"

    rows = spans.to_frame(translate_key, name_thread)
    return rows.with_columns(host=gather_words(hosts, spans.thread_numbers))

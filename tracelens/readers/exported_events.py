"""Reads the trace events that TraceLens wrote for ui.perfetto.dev: the run comes back as it was.

Reads only files of TraceLens: kinds, facts and numbers are trusted. What is drawn a second time,
and what is drawn for people alone (arrows, names of tracks, sampled stacks), is passed over. Of a part
that the dashboard wrote it is not known how many ranks the run has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.model.trace import EVENT_COLUMNS
from tracelens.readers.event_stream import EventStream, read_first_bytes
from tracelens.readers.exported import ExportedFile, as_recorded, ranks_in
from tracelens.readers.files import FileSet, FilesReader
from tracelens.readers.gathered import RowBuffer
from tracelens.readers.json_values import as_count, as_object, as_objects, us_as_ns
from tracelens.schema.gate import refuse_beyond
from tracelens.schema.vocabulary import FACTS, KINDS, MOST_RANKS, ROLES

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.event_stream import Event

__all__ = ["ExportedEventsReader", "is_exported"]

_MARK: Final = re.compile(rb'^\{"displayTimeUnit":"ns","otherData":\{"written by": "TraceLens"')
_NAMED: Final = re.compile(r"^(rank|PS) (\d{1,7}) \((.*)\)$", re.DOTALL)
_TRACK: Final = re.compile(r" \(\d+\)$")  # of several for one thread
_WORDS: Final = ("kind", "op", "name", "communicator", "algorithm", "status", "type", "thread")
_PROCESS_WORDS: Final = ("role", "host", "clock")
_NUMBERS: Final = (
    *(name for name in FACTS if name not in _WORDS),
    *("step", "micro_step", "device_start_ns", "device_duration_ns", "stream"),
)
_COLUMNS: Final[dict[str, pl.DataType]] = {
    **dict.fromkeys(("pid", "start_ns", "end_ns", *_NUMBERS), pl.Int64()),
    **dict.fromkeys(_WORDS, pl.String()),
    "value": pl.Float64(),
}
_DRAWN: Final = {"s": "arrows", "t": "arrows", "f": "arrows", "M": "names of tracks"}


@dataclass(eq=False)
class Exported(ExportedFile):
    """What one file holds; `processes` are by number, `tracks` names of threads by process and track."""

    processes: dict[int, dict[str, Any]] = field(default_factory=dict)
    tracks: dict[tuple[int, int], str] = field(default_factory=dict)


def is_exported(path: Path) -> bool:
    """Return True if a file begins as our export does."""
    return _MARK.match(read_first_bytes(path)) is not None


def read_export(path: Path) -> Exported:
    """Read one file; its rows are spans.

    Raises:
        NotATrace: there is no list of events, it is no regular file, or larger than it may be.
        OSError: it cannot be read.
    """
    export, stream, rows = Exported(), EventStream(path), RowBuffer(_COLUMNS)
    for piece in stream.pieces():
        for event in piece:
            if row := _convert_event(event, export):
                rows.add(row)
        refuse_beyond("rows", len(rows))
    export.take_damage(stream)
    _take_run_facts(stream.facts, export)
    export.rows, export.says_ranks = _build_spans(rows.frame(), export, stream.facts), True
    return export


def _convert_event(event: Event | object, export: Exported) -> dict[str, Any]:
    """Return an event as a row, with cells of `_COLUMNS`; empty if it has no row.

    `our_facts` are those for this reader, `args` those that the viewer shows.
    """
    if not isinstance(event, dict):
        export.unusable += 1
        return {}
    phase, our_facts, args = _text(event.get("ph")), event.get("tracelens"), event.get("args")
    pid, args = as_count(event.get("pid")), args if isinstance(args, dict) else {}
    if phase == "M":
        _take_name(event, args, pid, export)
    if phase in _DRAWN or not isinstance(our_facts, dict) or "again" in our_facts:
        is_sampled = phase == "X" and our_facts is None
        left_out_as = "frames of sampled stacks" if is_sampled else "what is drawn again"
        export.left_out[_DRAWN.get(phase or "", left_out_as)] += 1
        return {}
    start_ns, duration_ns = us_as_ns(event.get("ts")), us_as_ns(event.get("dur"))
    name = _text(event.get("name"))
    if pid is None or start_ns is None or name is None or phase not in {"X", "B", "i", "C"}:
        export.unusable += 1
        return {}
    thread = as_count(our_facts.get("thread"))
    track = as_count(event.get("tid"))
    if thread is not None and track is not None and (pid, track) in export.tracks:
        export.threads.setdefault(("", pid, thread), export.tracks[pid, track])
    value = args.get("value") if phase == "C" else None
    shown_facts = {} if phase == "C" else args
    return {
        **{name: as_count(our_facts.get(name, shown_facts.get(name))) for name in _NUMBERS},
        **{name: _text(shown_facts.get(name)) for name in _WORDS},
        "pid": pid,
        "start_ns": start_ns,
        "end_ns": start_ns + (duration_ns or 0) if phase != "B" else None,
        "value": float(value) if isinstance(value, int | float) else None,
        "kind": _text(event.get("cat")),
        "name": name,
        "type": {"i": "instant", "C": "counter"}.get(phase or "", "span"),
        "thread": None if thread is None else str(thread),
    }


def _take_name(event: Event, args: dict[str, Any], pid: int | None, export: Exported) -> None:
    """Take from a metadata event the name of a process, which says its rank, or that of a track."""
    name, track = _text(args.get("name")), as_count(event.get("tid"))
    if name is None or pid is None:
        return
    if event.get("name") == "process_name" and (match := _NAMED.match(name)):
        role = "ps" if match[1] == "PS" else "worker"
        export.processes[pid] = {"role": role, "rank": int(match[2]), "host": match[3] or None}
    elif event.get("name") == "thread_name" and track is not None:
        export.tracks[pid, track] = _TRACK.sub("", name)


def _take_run_facts(facts: dict[str, Any], export: Exported) -> None:
    """Take from the head of the file what `facts` say of the run, its groups and its processes."""
    other_data = as_object(facts.get("otherData"))
    our_facts = as_object(other_data.get("tracelens"))
    if (notes := _text(other_data.get("notes"))) is not None:
        export.sentences.append(notes)
    export.window_ns = as_count(our_facts.get("window_ns")) or 0
    export.offset_ns = as_count(our_facts.get("offset_ns")) or 0
    for name, ranks in as_object(our_facts.get("communicators")).items():
        export.members[name] = ranks_in(ranks)
    for entry in as_objects(our_facts.get("processes")):
        if (pid := as_count(entry.get("process"))) in export.processes:
            export.processes[pid or 0] |= {
                "clock": _text(entry.get("clock_domain")),
                **{name: as_count(entry.get(name)) for name in ("world", "shard", "pid")},
            }
    export.threads = {
        (process["role"], process["rank"], thread): name
        for (_, pid, thread), name in export.threads.items()
        if (process := export.processes.get(pid)) is not None
    }


def _build_spans(rows: pl.DataFrame, export: Exported, facts: dict[str, Any]) -> pl.DataFrame:
    """Return one row per span in words of `spans.build`; count rows of unknown processes or kinds."""
    rows = rows.cast({name: EVENT_COLUMNS[name] for name in _NUMBERS}, strict=False)
    process_columns = ("rank", "role", "host", "clock", "world", "shard", "pid")
    processes = pl.DataFrame(
        [
            (pid, *(process.get(name) for name in process_columns))
            for pid, process in export.processes.items()
        ],
        schema={
            "pid": pl.Int64(), "rank": pl.Int64(), "role": pl.String(), "host": pl.String(),
            "clock": pl.String(), "world": pl.Int64(), "own_shard": pl.Int64(), "own_pid": pl.Int64(),
        },
        orient="row",
    )  # fmt: skip
    usable_processes = processes.filter(pl.col("role").is_in(ROLES), pl.col("rank") < MOST_RANKS)
    joined = rows.join(usable_processes, on="pid", how="inner", maintain_order="left")
    usable_rows = joined.filter(pl.col("kind").is_in(KINDS))
    export.unusable += rows.height - usable_rows.height
    origin_ns = _origin_ns(facts)
    return (
        usable_rows.with_columns(
            pl.col("start_ns", "end_ns", "device_start_ns") + origin_ns,
            pl.col("rank").cast(pl.Int32),
            pl.col("world").cast(pl.Int32, strict=False),
            shard=pl.coalesce("shard", pl.col("own_shard").cast(pl.Int32, strict=False)),
            pid="own_pid",
        )
        .drop("own_shard", "own_pid")
        .with_columns(pl.col(*_WORDS, *_PROCESS_WORDS).cast(pl.Categorical()))
    )


def _origin_ns(facts: dict[str, Any]) -> int:
    our_facts = as_object(as_object(facts.get("otherData")).get("tracelens"))
    return as_count(our_facts.get("origin_ns")) or 0


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


class ExportedEventsReader(FilesReader[Exported]):
    """Reads a file that `tracelens convert --to perfetto` or the dashboard wrote."""

    name = "trace events that TraceLens exported"
    is_format = staticmethod(is_exported)
    read_file = staticmethod(read_export)

    def complete(self, trace: Trace, run: FileSet[Exported]) -> Trace:
        """Add what the head of the file says of the run."""
        return as_recorded(trace, run.contents.values())

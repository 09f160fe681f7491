"""Reads the trace events that TraceLens wrote for ui.perfetto.dev: the run comes back as it was.

Kinds, facts and numbers are trusted. Of a part that the dashboard wrote it is not known how many ranks
the run has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.model.trace import EVENT_COLUMNS
from tracelens.readers.event_stream import EventStream, read_first_bytes
from tracelens.readers.exported import ExportedFile, add_run_facts, as_ranks
from tracelens.readers.files import FileSet, FilesReader
from tracelens.readers.gathered import RowBuffer
from tracelens.readers.json_values import as_count, as_object, as_objects, convert_us_to_ns
from tracelens.schema.gate import refuse_beyond
from tracelens.schema.vocabulary import FACTS, KINDS, MOST_RANKS, ROLES

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.event_stream import Event

_MARK: Final = re.compile(rb'^\{"displayTimeUnit":"ns","otherData":\{"written by": "TraceLens"')
_PROCESS_NAME: Final = re.compile(r"^(rank|PS) (\d{1,7}) \((.*)\)$", re.DOTALL)  # with its host
_TRACK_NUMBER: Final = re.compile(r" \(\d+\)$")  # behind the name of a thread that has several
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
_DRAWN_ONLY: Final = {"s": "arrows", "t": "arrows", "f": "arrows", "M": "names of tracks"}


@dataclass(eq=False)
class Exported(ExportedFile):
    """What one file holds; a `pid` is the file's own number of a process."""

    process_by_pid: dict[int, dict[str, Any]] = field(default_factory=dict)  # cells of its rows
    name_by_track: dict[tuple[int, int], str] = field(default_factory=dict)  # by pid and tid
    # By pid and number of the thread.
    track_name_by_thread: dict[tuple[int, int], str] = field(default_factory=dict)
    origin_ns: int = 0  # times of the file are since then


def is_exported(path: Path) -> bool:
    """Return True if a file begins as our export does."""
    return _MARK.match(read_first_bytes(path)) is not None


def read_export(path: Path) -> Exported:
    """Read the spans of a file that TraceLens exported, as `FilesReader.read_file` says."""
    export, stream, rows = Exported(), EventStream(path), RowBuffer(_COLUMNS)
    for piece in stream.read_pieces():
        for event in piece:
            if row := _convert_event(event, export):
                rows.add(row)
        refuse_beyond("rows", len(rows))
    export.copy_damage(stream)
    _take_run_facts(stream.metadata, export)
    export.rows, export.has_rank_column = _build_spans(rows.to_frame(), export), True
    return export


def _convert_event(event: Event | object, export: Exported) -> dict[str, Any]:
    """Return an event as a row, with cells of `_COLUMNS`; empty if it has no row.

    `our_facts` are those for this reader, `args` those that the viewer shows. Phases are X (complete),
    B (begin of an open span), i (instant), C (counter); arrows, names and what is drawn a second time
    have no row.
    """
    if not isinstance(event, dict):
        export.unusable_count += 1
        return {}
    phase, our_facts, args = _as_text(event.get("ph")), event.get("tracelens"), event.get("args")
    pid, args = as_count(event.get("pid")), args if isinstance(args, dict) else {}
    if phase == "M":
        _take_name(event, args, pid, export)
    if phase in _DRAWN_ONLY or not isinstance(our_facts, dict) or "again" in our_facts:
        is_sampled = phase == "X" and our_facts is None
        left_out_as = "frames of sampled stacks" if is_sampled else "what is drawn again"
        export.left_out_counts[_DRAWN_ONLY.get(phase or "", left_out_as)] += 1
        return {}
    start_ns, duration_ns = convert_us_to_ns(event.get("ts")), convert_us_to_ns(event.get("dur"))
    name = _as_text(event.get("name"))
    if pid is None or start_ns is None or name is None or phase not in {"X", "B", "i", "C"}:
        export.unusable_count += 1
        return {}
    thread, tid = as_count(our_facts.get("thread")), as_count(event.get("tid"))
    if thread is not None and tid is not None and (pid, tid) in export.name_by_track:
        export.track_name_by_thread.setdefault((pid, thread), export.name_by_track[pid, tid])
    counter_value = args.get("value") if phase == "C" else None
    shown_facts = {} if phase == "C" else args
    return {
        **{name: as_count(our_facts.get(name, shown_facts.get(name))) for name in _NUMBERS},
        **{name: _as_text(shown_facts.get(name)) for name in _WORDS},
        "pid": pid,
        "start_ns": start_ns,
        "end_ns": start_ns + (duration_ns or 0) if phase != "B" else None,
        "value": float(counter_value) if isinstance(counter_value, int | float) else None,
        "kind": _as_text(event.get("cat")),
        "name": name,
        "type": {"i": "instant", "C": "counter"}.get(phase or "", "span"),
        "thread": None if thread is None else str(thread),
    }


def _take_name(event: Event, args: dict[str, Any], pid: int | None, export: Exported) -> None:
    """Take from a metadata event the name of a process, which says its rank, or that of a track."""
    name, tid = _as_text(args.get("name")), as_count(event.get("tid"))
    if name is None or pid is None:
        return
    if event.get("name") == "process_name" and (match := _PROCESS_NAME.match(name)):
        role = "ps" if match[1] == "PS" else "worker"
        export.process_by_pid[pid] = {"role": role, "rank": int(match[2]), "host": match[3] or None}
    elif event.get("name") == "thread_name" and tid is not None:
        export.name_by_track[pid, tid] = _TRACK_NUMBER.sub("", name)


def _take_run_facts(metadata: dict[str, Any], export: Exported) -> None:
    """Take from the head of the file what it says of the run, its groups and its processes."""
    other_data = as_object(metadata.get("otherData"))
    our_facts = as_object(other_data.get("tracelens"))
    if (notes := _as_text(other_data.get("notes"))) is not None:
        export.note_sentences.append(notes)
    export.origin_ns = as_count(our_facts.get("origin_ns")) or 0
    export.clock_window_ns = as_count(our_facts.get("window_ns")) or 0
    export.date_offset_ns = as_count(our_facts.get("offset_ns")) or 0
    for name, ranks in as_object(our_facts.get("communicators")).items():
        export.ranks_by_communicator[name] = as_ranks(ranks)
    for entry in as_objects(our_facts.get("processes")):
        if (pid := as_count(entry.get("process"))) in export.process_by_pid:
            export.process_by_pid[pid or 0] |= {
                "clock": _as_text(entry.get("clock_domain")),
                **{name: as_count(entry.get(name)) for name in ("world", "shard", "pid")},
            }
    export.name_by_thread = {
        (process["role"], process["rank"], thread): name
        for (pid, thread), name in export.track_name_by_thread.items()
        if (process := export.process_by_pid.get(pid)) is not None
    }


def _build_spans(rows: pl.DataFrame, export: Exported) -> pl.DataFrame:
    """Return one row per span in words of `spans.build`; count rows of unknown processes or kinds."""
    rows = rows.cast({name: EVENT_COLUMNS[name] for name in _NUMBERS}, strict=False)
    process_columns = ("rank", "role", "host", "clock", "world", "shard", "pid")
    processes = pl.DataFrame(
        [
            (pid, *(process.get(name) for name in process_columns))
            for pid, process in export.process_by_pid.items()
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
    export.unusable_count += rows.height - usable_rows.height
    return (
        usable_rows.with_columns(
            pl.col("start_ns", "end_ns", "device_start_ns") + export.origin_ns,
            pl.col("rank").cast(pl.Int32),
            pl.col("world").cast(pl.Int32, strict=False),
            shard=pl.coalesce("shard", pl.col("own_shard").cast(pl.Int32, strict=False)),
            pid="own_pid",  # the system's number of the process, instead of the file's
        )
        .drop("own_shard", "own_pid")
        .with_columns(pl.col(*_WORDS, *_PROCESS_WORDS).cast(pl.Categorical()))
    )


def _as_text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


class ExportedEventsReader(FilesReader[Exported]):
    """Reads a file that `tracelens convert --to perfetto` or the dashboard wrote."""

    name = "trace events that TraceLens exported"
    is_format = staticmethod(is_exported)
    read_file = staticmethod(read_export)

    def complete_trace(self, trace: Trace, run: FileSet[Exported]) -> Trace:
        """Add what the head of the file says of the run."""
        return add_run_facts(trace, run.file_by_name.values())

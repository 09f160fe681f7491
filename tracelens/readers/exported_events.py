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
from tracelens.readers.event_stream import EventStream, begin_of_events
from tracelens.readers.exported import ExportedFile, as_recorded, ranks_in
from tracelens.readers.files import FileSet, FilesReader
from tracelens.readers.json_values import as_count, as_object, us_as_ns
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
_DRAWN: Final = {"s": "arrows", "t": "arrows", "f": "arrows", "M": "names of tracks"}


@dataclass(eq=False)
class Exported(ExportedFile):
    """What one file holds; `processes` are by number, `tracks` names of threads by process and track."""

    processes: dict[int, dict[str, Any]] = field(default_factory=dict)
    tracks: dict[tuple[int, int], str] = field(default_factory=dict)


def is_exported(path: Path) -> bool:
    """Return True if a file begins as our export does."""
    return _MARK.match(begin_of_events(path)) is not None


def events_of(path: Path) -> Exported:
    """Read one file.

    Raises:
        NotATrace: there is no list of events, it is no regular file, or larger than it may be.
        OSError: it cannot be read.
    """
    export, stream = Exported(), EventStream(path)
    columns: dict[str, list[Any]] = {
        name: [] for name in ("pid", "start_ns", "end_ns", "value", *_WORDS, *_NUMBERS)
    }
    for piece in stream.pieces():
        for event in piece:
            row = _row(event, export)
            for name, cells in columns.items() if row else ():
                cells.append(row.get(name))
        refuse_beyond("rows", len(columns["pid"]))
    export.take_damage(stream)
    _learn(stream.facts, export)
    export.rows, export.says_ranks = _frame(columns, export, stream.facts), True
    return export


def _row(event: Event | object, export: Exported) -> dict[str, Any]:
    """Return an event as a row, empty for other members."""
    if not isinstance(event, dict):
        export.unusable += 1
        return {}
    phase, our_facts, args = _text(event.get("ph")), event.get("tracelens"), event.get("args")
    pid, args = as_count(event.get("pid")), args if isinstance(args, dict) else {}
    if phase == "M":
        _name(event, args, pid, export)
    if phase in _DRAWN or not isinstance(our_facts, dict) or "again" in our_facts:
        sort = (
            "frames of sampled stacks"
            if phase == "X" and our_facts is None
            else "what is drawn again"
        )
        export.left_out[_DRAWN.get(phase or "", sort)] += 1
        return {}
    start, length = us_as_ns(event.get("ts")), us_as_ns(event.get("dur"))
    name = _text(event.get("name"))
    if pid is None or start is None or name is None or phase not in {"X", "B", "i", "C"}:
        export.unusable += 1
        return {}
    thread = as_count(our_facts.get("thread"))
    track = as_count(event.get("tid"))
    if thread is not None and track is not None and (pid, track) in export.tracks:
        export.threads.setdefault(("", pid, thread), export.tracks[pid, track])
    value = args.get("value") if phase == "C" else None
    facts = {} if phase == "C" else args
    return {
        **{name: as_count(our_facts.get(name, facts.get(name))) for name in _NUMBERS},
        **{name: _text(facts.get(name)) for name in _WORDS},
        "pid": pid,
        "start_ns": start,
        "end_ns": start + (length or 0) if phase != "B" else None,
        "value": float(value) if isinstance(value, int | float) else None,
        "kind": _text(event.get("cat")),
        "name": name,
        "type": {"i": "instant", "C": "counter"}.get(phase or "", "span"),
        "thread": None if thread is None else str(thread),
    }


def _name(event: Event, args: dict[str, Any], pid: int | None, export: Exported) -> None:
    """Take the name of a process, which says a rank, or of a track."""
    name, track = _text(args.get("name")), as_count(event.get("tid"))
    if name is None or pid is None:
        return
    if event.get("name") == "process_name" and (match := _NAMED.match(name)):
        role = "ps" if match[1] == "PS" else "worker"
        export.processes[pid] = {"role": role, "rank": int(match[2]), "host": match[3] or None}
    elif event.get("name") == "thread_name" and track is not None:
        export.tracks[pid, track] = _TRACK.sub("", name)


def _learn(facts: dict[str, Any], export: Exported) -> None:
    """Take what the head of the file says of the run, as far as it says it."""
    other = as_object(facts.get("otherData"))
    our_facts = as_object(other.get("tracelens"))
    if (notes := _text(other.get("notes"))) is not None:
        export.sentences.append(notes)
    export.window_ns, export.offset_ns = (
        as_count(our_facts.get(n)) or 0 for n in ("window_ns", "offset_ns")
    )
    groups = our_facts.get("communicators")
    for name, ranks in groups.items() if isinstance(groups, dict) else ():
        export.members[name] = ranks_in(ranks)
    listed = our_facts.get("processes")
    for process in listed if isinstance(listed, list) else ():
        if (
            isinstance(process, dict)
            and (pid := as_count(process.get("process"))) in export.processes
        ):
            export.processes[pid or 0] |= {
                "clock": _text(process.get("clock_domain")),
                **{name: as_count(process.get(name)) for name in ("world", "shard", "pid")},
            }
    export.threads = {
        (process["role"], process["rank"], thread): name
        for (_, pid, thread), name in export.threads.items()
        if (process := export.processes.get(pid)) is not None
    }


def _frame(columns: dict[str, list[Any]], export: Exported, facts: dict[str, Any]) -> pl.DataFrame:
    """Return rows in words of `spans.build`; those of no known process are counted."""
    kinds = {"pid": pl.Int64(), "start_ns": pl.Int64(), "end_ns": pl.Int64(), "value": pl.Float64()}
    rows = pl.DataFrame(
        {
            **{name: pl.Series(columns[name], dtype=kind) for name, kind in kinds.items()},
            **{name: pl.Series(columns[name], dtype=pl.String) for name in _WORDS},
            **{
                name: pl.Series(columns[name], dtype=pl.Int64).cast(
                    EVENT_COLUMNS[name], strict=False
                )
                for name in _NUMBERS
            },
        }
    )
    columns.clear()
    names = ("rank", "role", "host", "clock", "world", "shard", "pid")
    owners = pl.DataFrame(
        [(pid, *(known.get(name) for name in names)) for pid, known in export.processes.items()],
        schema={
            "pid": pl.Int64(), "rank": pl.Int64(), "role": pl.String(), "host": pl.String(),
            "clock": pl.String(), "world": pl.Int64(), "own_shard": pl.Int64(), "own_pid": pl.Int64(),
        },
        orient="row",
    )  # fmt: skip
    usable_owners = owners.filter(pl.col("role").is_in(ROLES), pl.col("rank") < MOST_RANKS)
    joined = rows.join(usable_owners, on="pid", how="inner", maintain_order="left")
    usable = joined.filter(pl.col("kind").is_in(KINDS))
    export.unusable += rows.height - usable.height
    origin = _origin_ns(facts)
    return (
        usable.with_columns(
            pl.col("start_ns", "end_ns", "device_start_ns") + origin,
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
    read_file = staticmethod(events_of)

    def complete(self, trace: Trace, run: FileSet[Exported]) -> Trace:
        """Add what the head of the file says of the run."""
        return as_recorded(trace, run.contents.values())

"""Chrome's trace-event JSON, which ui.perfetto.dev and chrome://tracing open.

A process is a process there, a thread a thread; times are microseconds with three decimals. The format
lets events of one thread only nest, so spans that merely overlap (collectives in flight) go onto further
threads of the same name. Spans that were open when the recording ended begin and do not end.
"""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.align.selection import begin_of
from tracelens.exports.content import Saved
from tracelens.exports.output import new_file, size_of
from tracelens.exports.selection import Owner, Selection, Size
from tracelens.schema.vocabulary import FACTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.exports.content import Content

__all__ = [
    "ENDLESS",
    "MOST_EVENTS",
    "OPEN_WITH",
    "SAMPLE",
    "SUFFIX",
    "TRACKS_A_PROCESS",
    "save",
    "selection_of",
    "size",
    "write",
]

SUFFIX: Final = ".perfetto.json"
OPEN_WITH: Final = "https://ui.perfetto.dev (it stays in the browser)"
MOST_EVENTS: Final = 500_000  # about 100 MB: the viewer's browser tab has to hold it
SAMPLE: Final = 500
ENDLESS: Final = 1 << 62
TRACKS_A_PROCESS: Final = 100_000
_ARGUMENTS: Final = ("step", *FACTS)
_SILENT: Final = {None, -1, "closed"}
_TAIL: Final = "\n]}\n"
_TIMED: Final = '{"ts":'  # how an event begins that is no name
_OWNER: Final = ("process", "role", "rank", "host")


def save(content: Content, place: Path) -> Saved:
    """Write the spans of main processes, a process at a time.

    Raises:
        InvalidArgument: there is something at `place`, it cannot be written, or nothing is chosen.
    """
    tally = {"summed_up": 0, "sums": 0}
    chosen, events = selection_of(content, tally), 0
    with new_file(place) as draft, draft.open("w", encoding="utf-8") as file:
        file.write(_head(chosen))
        for text in _separated(line for owner in chosen.owners for line in _process(chosen, owner)):
            events += text.lstrip(",\n").startswith(_TIMED)
            file.write(text)
        file.write(_TAIL)
        if not events:
            raise content.nothing()
    notes = (_too_many(events),) if events > MOST_EVENTS else ()
    return Saved(events, size_of(place), **tally, notes=notes)


def selection_of(content: Content, tally: dict[str, int] | None = None) -> Selection:
    """Return the main processes of a content; `tally` counts what is summed up as they are read."""
    counts = {} if tally is None else tally

    def spans_of(process: int) -> pl.DataFrame:
        part = content.part(process)
        for name in counts:
            counts[name] += getattr(part, name)
        return part.events.filter(pl.col("type") == "span")

    main = content.processes.filter("main").with_columns(pl.col("host").fill_null(""))
    names = content.trace.threads["name"]
    text = [None if name is None else content.text(name) for name in names]
    threads = content.trace.threads.with_columns(name=pl.Series(text, dtype=pl.String))
    return Selection(
        run=content.name,
        owners=tuple(Owner(*row) for row in main.select(_OWNER).iter_rows()),
        start_ns=-(1 << 62),
        end_ns=1 << 62,
        origin_ns=begin_of(content.trace),
        threads=threads.select("process", "thread", "name", "device"),
        spans_of=spans_of,
        notes=content.notes,
    )


def _too_many(events: int) -> str:
    return (
        f"Perfetto opens about {MOST_EVENTS:,} events well, and these are {events:,}: fewer are chosen "
        "with --keep flagged, --ranks, --steps or --time."
    )


def size(chosen: Selection) -> Size:
    """Return how many events a selection holds, and about how many bytes; reads all of it."""
    events, sampled, letters = 0, 0, 0
    for owner in chosen.owners:
        spans = chosen.spans(owner)
        events += sum(table.height for _, table in _by_thread(spans))
        for line in _spans(chosen, owner, spans.head(SAMPLE)):
            sampled, letters = sampled + 1, letters + len(line) + 2
    rest = len(_head(chosen)) + 300 * len(chosen.owners)
    return Size(events, rest + round(events * letters / max(sampled, 1)))


def write(chosen: Selection) -> Iterator[str]:
    """Write a selection, process by process."""
    yield _head(chosen)
    lines = _separated(line for owner in chosen.owners for line in _process(chosen, owner))
    while part := list(islice(lines, 1 << 10)):
        yield "".join(part)
    yield _TAIL


def _separated(lines: Iterator[str]) -> Iterator[str]:
    yield next(lines, "")
    for line in lines:
        yield f",\n{line}"


def _head(chosen: Selection) -> str:
    facts: dict[str, Any] = {"run": chosen.run, "written by": "TraceLens"}
    if chosen.notes:
        facts["notes"] = " ".join(chosen.notes)
    return f'{{"displayTimeUnit":"ns","otherData":{json.dumps(facts)},"traceEvents":[\n'


def _process(chosen: Selection, owner: Owner) -> Iterator[str]:
    spans = chosen.spans(owner)
    yield _named(owner, "process_name", name=f"{owner.name} ({owner.host})")
    yield _named(owner, "process_sort_index", sort_index=chosen.owners.index(owner))
    yield from _spans(chosen, owner, spans)


def _spans(chosen: Selection, owner: Owner, spans: pl.DataFrame) -> Iterator[str]:
    """Write the spans of a process, thread by thread, each thread's in the order of their begins."""
    known = chosen.threads.filter(process=owner.process)
    names = dict(known.select("thread", "name").iter_rows())
    devices = set(known.drop_nulls("device")["thread"])
    track = 0
    for thread, table in _by_thread(spans):
        label = names.get(thread) or f"thread {thread}"
        lanes: dict[int, int] = {}
        for lane, row in _nested(table):
            if lane not in lanes:
                track += 1
                lanes[lane] = owner.process * TRACKS_A_PROCESS + track
                yield _named(owner, "thread_name", lanes[lane], name=label)
                order = track + (TRACKS_A_PROCESS if thread in devices else 0)
                yield _named(owner, "thread_sort_index", lanes[lane], sort_index=order)
            yield _event(row, owner, lanes[lane], chosen.origin_ns)


def _by_thread(spans: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    """Yield the spans of each thread, and again those that a device's stream ran, with its times."""
    end = pl.col("device_start_ns") + pl.col("device_duration_ns")
    there = spans.filter(end.is_not_null() & pl.col("stream").is_not_null()).with_columns(
        thread="stream", start_ns="device_start_ns", end_ns=end
    )
    for part in (spans, there):
        for (thread,), table in part.sort("thread").group_by("thread", maintain_order=True):
            yield int(thread), table


def _nested(spans: pl.DataFrame) -> Iterator[tuple[int, dict[str, Any]]]:
    """Assign to each span the first lane in which it is within or after all that are there."""
    until = pl.col("end_ns").fill_null(ENDLESS)
    ordered = spans.with_columns(until=until).sort(
        "start_ns", "until", "depth", descending=[False, True, False]
    )
    lanes: list[
        list[int]
    ] = []  # of each lane, the ends of the spans that are open, the outermost first
    for row in ordered.iter_rows(named=True):
        yield _placed(lanes, row["start_ns"], row["until"]), row


def _placed(lanes: list[list[int]], start: int, end: int) -> int:
    for number, open_ in enumerate(lanes):
        while open_ and open_[-1] <= start:
            open_.pop()
        if not open_ or end <= open_[-1]:
            open_.append(end)
            return number
    lanes.append([end])
    return len(lanes) - 1


def _event(row: dict[str, Any], owner: Owner, track: int, origin_ns: int) -> str:
    start, end = row["start_ns"], row["end_ns"]
    event = {
        "name": row["name"] or row["kind"],
        "cat": row["kind"],
        "ph": "B" if end is None else "X",
        "pid": owner.process + 1,
        "tid": track,
        "args": {name: row[name] for name in _ARGUMENTS if row[name] not in _SILENT},
    }
    lasted = "" if end is None else f',"dur":{_microseconds(end - start)}'
    times = f'"ts":{_microseconds(start - origin_ns)}{lasted},'
    return "{" + times + json.dumps(event, separators=(",", ":"))[1:]


def _named(owner: Owner, what: str, track: int = 0, **facts: Any) -> str:
    event = {"name": what, "ph": "M", "pid": owner.process + 1, "tid": track, "args": facts}
    return json.dumps(event, separators=(",", ":"))


def _microseconds(ns: int) -> str:
    """Write nanoseconds as microseconds without losing one."""
    sign, size = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{size // 1000}.{size % 1000:03d}"

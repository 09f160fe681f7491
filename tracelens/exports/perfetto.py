"""Chrome's trace-event JSON, which ui.perfetto.dev and chrome://tracing open.

A process is a process there, a thread a thread; times are microseconds with three decimals, from the
first event on. The format lets events of one thread only nest, so spans that overlap (collectives in
flight) go onto further threads, which are numbered, as are several threads of one name. Spans that were
open when the recording ended begin and do not end. Counters and sampled stacks are tracks, and arrows
lead from call to call of a collective, and from a request to its server and back (`flows`). What the
format has no place for stands in members that viewers pass over, called `tracelens`, by which
`tracelens.readers.exported_events` reads the run back.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.align.selection import begin_of
from tracelens.exports.content import Saved
from tracelens.exports.flows import NO_POINTS, survey
from tracelens.exports.otlp import unix_offset_ns
from tracelens.exports.output import new_file, size_of
from tracelens.exports.selection import Owner, Selection, Size
from tracelens.schema.vocabulary import FACTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tracelens.exports.content import Content
    from tracelens.exports.flows import Point, Survey

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
_OF_PROCESS: Final = ("role", "rank", "host", "world", "shard", "pid", "clock_domain")
_BESIDE: Final = ("micro_step", "device_duration_ns", "stream")


def save(content: Content, place: Path, max_events: int = MOST_EVENTS) -> Saved:
    """Write the events of main processes, a process at a time; note if they are more than `max_events`.

    Raises:
        InvalidArgument: there is something at `place`, it cannot be written, or nothing is chosen.
    """
    tally = {"summed_up": 0, "sums": 0}
    chosen, events = selection_of(content, tally), 0
    with new_file(place) as draft, draft.open("w", encoding="utf-8") as file:
        for text in _texts(chosen):
            events += text.lstrip(",\n").startswith(_TIMED)
            file.write(text)
        if not events:
            raise content.nothing()
    notes = (_too_many(events, max_events),) if events > max_events else ()
    return Saved(events, size_of(place), **tally, notes=notes)


def selection_of(content: Content, tally: dict[str, int] | None = None) -> Selection:
    """Return the main processes of a content; `tally` counts what is summed up in what is read."""
    counts: dict[str, int] = {} if tally is None else tally
    counted: set[int] = set()

    def events_of(process: int) -> pl.DataFrame:
        part = content.part(process)
        for name in counts if process not in counted else ():
            counts[name] += getattr(part, name)
        counted.add(process)
        return part.events

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
        events_of=events_of,
        samples_of=content.samples,
        notes=content.notes,
        facts=_facts(content, main),
    )


def _facts(content: Content, main: pl.DataFrame) -> dict[str, Any]:
    """Return what is known of the run beside its events; processes have the numbers of the file."""
    groups = content.trace.communicators.select(pl.col("communicator").cast(pl.String), "ranks")
    owners = main.select(pl.col("process") + 1, *_OF_PROCESS).iter_rows(named=True)
    return {
        "offset_ns": unix_offset_ns(content.trace) or 0,
        "window_ns": 2 * content.trace.alignment.uncertainty_ns,
        "communicators": {content.text(name): ranks for name, ranks in groups.iter_rows()},
        "processes": [*owners],
    }


def _too_many(events: int, max_events: int) -> str:
    return (
        f"Perfetto opens about {max_events:,} events well, and these are {events:,}: fewer are chosen "
        "with --keep flagged, --ranks, --steps or --time."
    )


def size(chosen: Selection) -> Size:
    """Return how many events a selection holds, and about how many bytes; reads all of it."""
    found, events, sampled, letters = survey(chosen), 0, 0, 0
    for owner in chosen.owners:
        for line in islice(_process(chosen, owner, found), SAMPLE):
            sampled, letters = sampled + 1, letters + len(line) + 2
        events += _count(chosen, owner, found)
    rest = len(_head(chosen, found.origin_ns)) + 300 * len(chosen.owners)
    return Size(events, rest + round(events * letters / max(sampled, 1)))


def _count(chosen: Selection, owner: Owner, found: Survey) -> int:
    """Return how many events of a process are written."""
    events = chosen.events(owner)
    spans = events.filter(pl.col("type") == "span")
    drawn = sum(table.height for _, table in _by_thread(spans))
    others = events.filter(type="instant").height + _readings(events).height
    arrows = sum(map(len, found.points.get(owner.process, NO_POINTS).values()))
    return drawn + others + arrows + sum(1 for _, frames in _stacks(chosen, owner) for _ in frames)


def write(chosen: Selection) -> Iterator[str]:
    """Write a selection, process by process."""
    texts = _texts(chosen)
    while part := list(islice(texts, 1 << 10)):
        yield "".join(part)


def _texts(chosen: Selection) -> Iterator[str]:
    found = survey(chosen)
    yield _head(chosen, found.origin_ns)
    lines = chain.from_iterable(_process(chosen, owner, found) for owner in chosen.owners)
    yield next(lines, "")
    for line in lines:
        yield f",\n{line}"
    yield _TAIL


def _head(chosen: Selection, origin_ns: int) -> str:
    facts: dict[str, Any] = {"written by": "TraceLens", "run": chosen.run}
    facts["tracelens"] = {"origin_ns": origin_ns} | dict(chosen.facts)
    if chosen.notes:
        facts["notes"] = " ".join(chosen.notes)
    return f'{{"displayTimeUnit":"ns","otherData":{json.dumps(facts)},"traceEvents":[\n'


@dataclass
class _Tracks:
    """Numbers the tracks of a process, and names each once."""

    owner: Owner
    used: int = 0
    names: dict[str, int] = field(default_factory=dict)

    def added(self, label: str, *, below: int = 0) -> tuple[int, Iterator[str]]:
        """Return a new track's number and what names it; tracks with `below` come after others."""
        self.used += 1
        self.names[label] = count = self.names.get(label, 0) + 1
        track = self.owner.process * TRACKS_A_PROCESS + self.used
        name = label if count == 1 else f"{label} ({count})"
        order = self.used + below * TRACKS_A_PROCESS
        named = (
            _named(self.owner, "thread_name", track, name=name),
            _named(self.owner, "thread_sort_index", track, sort_index=order),
        )
        return track, iter(named)


def _process(chosen: Selection, owner: Owner, found: Survey) -> Iterator[str]:
    tracks, events = _Tracks(owner), chosen.events(owner).with_row_index("row")
    yield _named(owner, "process_name", name=f"{owner.name} ({owner.host})")
    yield _named(owner, "process_sort_index", sort_index=chosen.owners.index(owner))
    yield from _spans(chosen, tracks, events, found)
    yield from _counters(owner, events, found.origin_ns)
    for label, frames in _stacks(chosen, owner):
        track, named = tracks.added(label, below=2)
        yield from named
        for frame in frames:
            yield _slice(frame, owner, track, found.origin_ns)


def _spans(
    chosen: Selection, tracks: _Tracks, events: pl.DataFrame, found: Survey
) -> Iterator[str]:
    """Write the spans and instants of a process, thread by thread, each thread's in order of begin."""
    owner, origin_ns = tracks.owner, found.origin_ns
    known = chosen.threads.filter(process=owner.process)
    names = dict(known.select("thread", "name").iter_rows())
    devices = set(known.drop_nulls("device")["thread"])
    points = found.points.get(owner.process, NO_POINTS)
    instants = _instants(events)
    for thread, table in _by_thread(events.filter(pl.col("type") == "span")):
        label, numbers = _label(names, thread), dict[int, int]()
        for lane, row in _nested(table):
            if lane not in numbers:
                numbers[lane], named = tracks.added(label, below=int(thread in devices))
                yield from named
            yield _slice(row, owner, numbers[lane], origin_ns)
            for point in points.get(row["row"], ()) if row["pointed_at"] else ():
                yield _arrow(point, owner, numbers[lane], origin_ns)
        for row in instants.pop(thread, ()):
            yield _instant(row, owner, numbers[0], origin_ns)
    for thread, rows in instants.items():
        track, named = tracks.added(_label(names, thread))
        yield from named
        for row in rows:
            yield _instant(row, owner, track, origin_ns)


def _label(names: Mapping[int, str | None], thread: int) -> str:
    return names.get(thread) or f"thread {thread}"


def _by_thread(spans: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    """Yield the spans of each thread, and again those that a device's stream ran, with its times.

    Arrows point at the latter, where there are both.
    """
    end = pl.col("device_start_ns") + pl.col("device_duration_ns")
    ran = end.is_not_null() & pl.col("stream").is_not_null()
    there = spans.filter(ran).with_columns(
        thread="stream", start_ns="device_start_ns", end_ns=end, pointed_at=pl.lit(value=True)
    )
    for part in (spans.with_columns(pointed_at=~ran), there):
        for (thread,), table in part.sort("thread").group_by("thread", maintain_order=True):
            yield int(thread), table


def _instants(events: pl.DataFrame) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for row in events.filter(type="instant").sort("start_ns").iter_rows(named=True):
        found.setdefault(row["thread"], []).append(row)
    return found


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


def _readings(events: pl.DataFrame) -> pl.DataFrame:
    """Return the counters that read a number, in order of time."""
    finite = pl.col("value").is_finite().fill_null(value=False)
    return events.filter(finite, type="counter").sort("start_ns")


def _counters(owner: Owner, events: pl.DataFrame, origin_ns: int) -> Iterator[str]:
    for row in _readings(events).iter_rows(named=True):
        event = {"ph": "C", "pid": owner.process + 1, "name": row["name"], "cat": row["kind"]}
        known = {"thread": row["thread"], "step": row["step"]}
        event |= {"args": {"value": row["value"]}, "tracelens": known}
        yield _timed(row["start_ns"] - origin_ns, event)


def _stacks(chosen: Selection, owner: Owner) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the sampled stacks of each thread and child of a process as nested frames, with a label."""
    samples = chosen.samples(owner).sort("start_ns")
    for (_, name), rows in samples.group_by("pid", "thread_name", maintain_order=True):
        table = rows.select("start_ns", "end_ns", "frames").iter_rows()
        yield f"stacks of {name}", sorted(_frames(table), key=_outermost_first)


def _outermost_first(frame: dict[str, Any]) -> tuple[int, int, int]:
    return frame["start_ns"], -frame["end_ns"], frame["depth"]


def _frames(samples: Iterator[tuple[int, int, list[str]]]) -> Iterator[dict[str, Any]]:
    """Yield a span for each frame, as long as samples that follow one another have it in its place."""
    opened: list[tuple[str, int]] = []  # frames and since when, the outermost first
    until = -ENDLESS

    def closed(depth: int, at_ns: int) -> Iterator[dict[str, Any]]:
        while len(opened) > depth:
            name, since = opened.pop()
            place = {"depth": len(opened), "kind": "sample", "name": name}
            yield place | {"start_ns": since, "end_ns": at_ns}

    for start, end, frames in samples:
        common = 0 if start > until else _common([name for name, _ in opened], frames)
        yield from closed(common, min(start, until))
        opened += [(name, start) for name in frames[common:]]
        until = max(end, start)
    yield from closed(0, until)


def _common(first: list[str], second: list[str]) -> int:
    """Return how many names two lists have in common from their begin on."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))


def _slice(row: dict[str, Any], owner: Owner, track: int, origin_ns: int) -> str:
    start, end = row["start_ns"], row["end_ns"]
    event = {
        "name": row["name"] or row["kind"],
        "cat": row["kind"],
        "ph": "B" if end is None else "X",
        "pid": owner.process + 1,
        "tid": track,
        "args": _arguments(row),
    }
    if row["kind"] != "sample":
        event["tracelens"] = _beside(row, origin_ns)
    return _timed(start - origin_ns, event, None if end is None else end - start)


def _beside(row: dict[str, Any], origin_ns: int) -> dict[str, Any]:
    """Return what only we read: the thread, and when a device did what was queued.

    What is drawn again where a device ran it is `again` there.
    """
    known = {name: row[name] for name in _BESIDE if row[name] is not None}
    if row["device_start_ns"] is not None:
        known["device_start_ns"] = row["device_start_ns"] - origin_ns
        if row.get("pointed_at") and row["stream"] is not None and row["type"] == "span":
            return {"again": 1}
    return {"thread": row["thread"]} | known


def _instant(row: dict[str, Any], owner: Owner, track: int, origin_ns: int) -> str:
    place = {"pid": owner.process + 1, "tid": track, "s": "t", "args": _arguments(row)}
    place["tracelens"] = _beside(row, origin_ns)
    event = {"name": row["name"] or row["kind"], "cat": row["kind"], "ph": "i"} | place
    return _timed(row["start_ns"] - origin_ns, event)


def _arguments(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in _ARGUMENTS if row.get(name) not in _SILENT}


def _arrow(point: Point, owner: Owner, track: int, origin_ns: int) -> str:
    event = {
        "name": point.name,
        "cat": point.category,
        "ph": point.phase,
        "id": point.number,
        "bp": "e",  # it ends in the span that is open, not in the next one
        "pid": owner.process + 1,
        "tid": track,
    }
    return _timed(point.at_ns - origin_ns, event)


def _timed(at_ns: int, event: dict[str, Any], length_ns: int | None = None) -> str:
    lasted = "" if length_ns is None else f',"dur":{_microseconds(length_ns)}'
    times = f'"ts":{_microseconds(at_ns)}{lasted},'
    return "{" + times + json.dumps(event, separators=(",", ":"))[1:]


def _named(owner: Owner, what: str, track: int = 0, **facts: Any) -> str:
    event = {"name": what, "ph": "M", "pid": owner.process + 1, "tid": track, "args": facts}
    return json.dumps(event, separators=(",", ":"))


def _microseconds(ns: int) -> str:
    """Write nanoseconds, which are not negative, as microseconds without losing one."""
    return f"{ns // 1000}.{ns % 1000:03d}"

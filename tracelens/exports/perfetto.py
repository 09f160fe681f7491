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


def save(content: Content, target: Path, max_events: int = MOST_EVENTS) -> Saved:
    """Write the events of main processes, a process at a time; note if they are more than `max_events`.

    Raises:
        InvalidArgument: there is something at `target`, it cannot be written, or nothing is chosen.
    """
    counts = {"summed_up": 0, "sums": 0}
    selection, events = selection_of(content, counts), 0
    with new_file(target) as draft, draft.open("w", encoding="utf-8") as file:
        for text in _iterate_texts(selection):
            events += text.lstrip(",\n").startswith(_TIMED)
            file.write(text)
        if not events:
            raise content.nothing()
    notes = (_warn_of_size(events, max_events),) if events > max_events else ()
    return Saved(events, size_of(target), **counts, notes=notes)


def selection_of(content: Content, totals: dict[str, int] | None = None) -> Selection:
    """Return the main processes of a content; `totals` counts what is summed up in what is read."""
    counts: dict[str, int] = {} if totals is None else totals
    counted_processes: set[int] = set()

    def events_of(process: int) -> pl.DataFrame:
        process_events = content.read_process(process)
        for name in counts if process not in counted_processes else ():
            counts[name] += getattr(process_events, name)
        counted_processes.add(process)
        return process_events.events

    main_processes = content.processes.filter("main").with_columns(pl.col("host").fill_null(""))
    names = content.trace.threads["name"]
    thread_names = [None if name is None else content.text(name) for name in names]
    threads = content.trace.threads.with_columns(name=pl.Series(thread_names, dtype=pl.String))
    return Selection(
        run=content.name,
        owners=tuple(Owner(*row) for row in main_processes.select(_OWNER).iter_rows()),
        start_ns=-(1 << 62),
        end_ns=1 << 62,
        origin_ns=begin_of(content.trace),
        threads=threads.select("process", "thread", "name", "device"),
        events_of=events_of,
        samples_of=content.samples,
        notes=content.notes,
        facts=_facts(content, main_processes),
    )


def _facts(content: Content, main_processes: pl.DataFrame) -> dict[str, Any]:
    """Collect the facts of the run that are no events; processes have the numbers of the file."""
    groups = content.trace.communicators.select(pl.col("communicator").cast(pl.String), "ranks")
    owners = main_processes.select(pl.col("process") + 1, *_OF_PROCESS).iter_rows(named=True)
    return {
        "offset_ns": unix_offset_ns(content.trace) or 0,
        "window_ns": 2 * content.trace.alignment.uncertainty_ns,
        "communicators": {content.text(name): ranks for name, ranks in groups.iter_rows()},
        "processes": [*owners],
    }


def _warn_of_size(events: int, max_events: int) -> str:
    return (
        f"Perfetto opens about {max_events:,} events well, and these are {events:,}: fewer are chosen "
        "with --keep flagged, --ranks, --steps or --time."
    )


def size(selection: Selection) -> Size:
    """Count the events of a selection, and estimate its bytes; reads all of it."""
    prepared, event_count, sampled_lines, sampled_letters = survey(selection), 0, 0, 0
    for owner in selection.owners:
        for line in islice(_write_process(selection, owner, prepared), SAMPLE):
            sampled_lines, sampled_letters = sampled_lines + 1, sampled_letters + len(line) + 2
        event_count += _count_events(selection, owner, prepared)
    other_letters = len(_write_head(selection, prepared.origin_ns)) + 300 * len(selection.owners)
    return Size(
        event_count, other_letters + round(event_count * sampled_letters / max(sampled_lines, 1))
    )


def _count_events(selection: Selection, owner: Owner, prepared: Survey) -> int:
    """Count the events of a process that are written."""
    events = selection.events(owner)
    spans = events.filter(pl.col("type") == "span")
    span_count = sum(table.height for _, table in _split_by_thread(spans))
    instant_and_counter_count = events.filter(type="instant").height + _find_readings(events).height
    arrow_count = sum(map(len, prepared.points.get(owner.process, NO_POINTS).values()))
    return (
        span_count
        + instant_and_counter_count
        + arrow_count
        + sum(1 for _, frames in _read_stacks(selection, owner) for _ in frames)
    )


def write(selection: Selection) -> Iterator[str]:
    """Write a selection, process by process."""
    texts = _iterate_texts(selection)
    while chunk := list(islice(texts, 1 << 10)):
        yield "".join(chunk)


def _iterate_texts(selection: Selection) -> Iterator[str]:
    prepared = survey(selection)
    yield _write_head(selection, prepared.origin_ns)
    lines = chain.from_iterable(
        _write_process(selection, owner, prepared) for owner in selection.owners
    )
    yield next(lines, "")
    for line in lines:
        yield f",\n{line}"
    yield _TAIL


def _write_head(selection: Selection, origin_ns: int) -> str:
    facts: dict[str, Any] = {"written by": "TraceLens", "run": selection.run}
    facts["tracelens"] = {"origin_ns": origin_ns} | dict(selection.facts)
    if selection.notes:
        facts["notes"] = " ".join(selection.notes)
    return f'{{"displayTimeUnit":"ns","otherData":{json.dumps(facts)},"traceEvents":[\n'


@dataclass
class _Tracks:
    """Numbers the tracks of a process, and names each once."""

    owner: Owner
    used: int = 0
    names: dict[str, int] = field(default_factory=dict)

    def add(self, label: str, *, group: int = 0) -> tuple[int, Iterator[str]]:
        """Return a new track's number and what names it; tracks with `group` come after others."""
        self.used += 1
        self.names[label] = number = self.names.get(label, 0) + 1
        track = self.owner.process * TRACKS_A_PROCESS + self.used
        name = label if number == 1 else f"{label} ({number})"
        order = self.used + group * TRACKS_A_PROCESS
        name_events = (
            _write_metadata(self.owner, "thread_name", track, name=name),
            _write_metadata(self.owner, "thread_sort_index", track, sort_index=order),
        )
        return track, iter(name_events)


def _write_process(selection: Selection, owner: Owner, prepared: Survey) -> Iterator[str]:
    tracks, events = _Tracks(owner), selection.events(owner).with_row_index("row")
    yield _write_metadata(owner, "process_name", name=f"{owner.name} ({owner.host})")
    yield _write_metadata(owner, "process_sort_index", sort_index=selection.owners.index(owner))
    yield from _write_spans(selection, tracks, events, prepared)
    yield from _write_counters(owner, events, prepared.origin_ns)
    for label, frames in _read_stacks(selection, owner):
        track, name_events = tracks.add(label, group=2)
        yield from name_events
        for frame in frames:
            yield _write_span(frame, owner, track, prepared.origin_ns)


def _write_spans(
    selection: Selection, tracks: _Tracks, events: pl.DataFrame, prepared: Survey
) -> Iterator[str]:
    """Write the spans and instants of a process, thread by thread, each thread's in order of begin."""
    owner, origin_ns = tracks.owner, prepared.origin_ns
    threads = selection.threads.filter(process=owner.process)
    names = dict(threads.select("thread", "name").iter_rows())
    devices = set(threads.drop_nulls("device")["thread"])
    points_by_row = prepared.points.get(owner.process, NO_POINTS)
    instants = _find_instants(events)
    for thread, table in _split_by_thread(events.filter(pl.col("type") == "span")):
        label, track_by_lane = _label_thread(names, thread), dict[int, int]()
        for lane, row in _assign_lanes(table):
            if lane not in track_by_lane:
                track_by_lane[lane], name_events = tracks.add(label, group=int(thread in devices))
                yield from name_events
            yield _write_span(row, owner, track_by_lane[lane], origin_ns)
            for point in points_by_row.get(row["row"], ()) if row["pointed_at"] else ():
                yield _write_arrow(point, owner, track_by_lane[lane], origin_ns)
        for row in instants.pop(thread, ()):
            yield _write_instant(row, owner, track_by_lane[0], origin_ns)
    for thread, rows in instants.items():
        track, name_events = tracks.add(_label_thread(names, thread))
        yield from name_events
        for row in rows:
            yield _write_instant(row, owner, track, origin_ns)


def _label_thread(names: Mapping[int, str | None], thread: int) -> str:
    return names.get(thread) or f"thread {thread}"


def _split_by_thread(spans: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    """Yield the spans of each thread, and again those that a device's stream ran, with its times.

    Arrows point at the latter, where there are both.
    """
    device_end_ns = pl.col("device_start_ns") + pl.col("device_duration_ns")
    ran_on_device = device_end_ns.is_not_null() & pl.col("stream").is_not_null()
    device_spans = spans.filter(ran_on_device).with_columns(
        thread="stream",
        start_ns="device_start_ns",
        end_ns=device_end_ns,
        pointed_at=pl.lit(value=True),
    )
    for table in (spans.with_columns(pointed_at=~ran_on_device), device_spans):
        for (thread,), rows in table.sort("thread").group_by("thread", maintain_order=True):
            yield int(thread), rows


def _find_instants(events: pl.DataFrame) -> dict[int, list[dict[str, Any]]]:
    rows_by_thread: dict[int, list[dict[str, Any]]] = {}
    for row in events.filter(type="instant").sort("start_ns").iter_rows(named=True):
        rows_by_thread.setdefault(row["thread"], []).append(row)
    return rows_by_thread


def _assign_lanes(spans: pl.DataFrame) -> Iterator[tuple[int, dict[str, Any]]]:
    """Assign each span to the first lane whose open spans all contain it."""
    until_ns = pl.col("end_ns").fill_null(ENDLESS)
    ordered = spans.with_columns(until=until_ns).sort(
        "start_ns", "until", "depth", descending=[False, True, False]
    )
    lanes: list[
        list[int]
    ] = []  # of each lane, the ends of the spans that are open, the outermost first
    for row in ordered.iter_rows(named=True):
        yield _find_lane(lanes, row["start_ns"], row["until"]), row


def _find_lane(lanes: list[list[int]], start_ns: int, end_ns: int) -> int:
    for number, open_ends_ns in enumerate(lanes):
        while open_ends_ns and open_ends_ns[-1] <= start_ns:
            open_ends_ns.pop()
        if not open_ends_ns or end_ns <= open_ends_ns[-1]:
            open_ends_ns.append(end_ns)
            return number
    lanes.append([end_ns])
    return len(lanes) - 1


def _find_readings(events: pl.DataFrame) -> pl.DataFrame:
    """Return the counters that read a number, in order of time."""
    is_finite = pl.col("value").is_finite().fill_null(value=False)
    return events.filter(is_finite, type="counter").sort("start_ns")


def _write_counters(owner: Owner, events: pl.DataFrame, origin_ns: int) -> Iterator[str]:
    for row in _find_readings(events).iter_rows(named=True):
        event = {"ph": "C", "pid": owner.process + 1, "name": row["name"], "cat": row["kind"]}
        recorded = {"thread": row["thread"], "step": row["step"]}
        event |= {"args": {"value": row["value"]}, "tracelens": recorded}
        yield _write_event(row["start_ns"] - origin_ns, event)


def _read_stacks(selection: Selection, owner: Owner) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the stacks of each sampled thread, also of child processes, as labelled nested frames."""
    samples = selection.samples(owner).sort("start_ns")
    for (_, name), rows in samples.group_by("pid", "thread_name", maintain_order=True):
        table = rows.select("start_ns", "end_ns", "frames").iter_rows()
        yield f"stacks of {name}", sorted(_iterate_frames(table), key=_outermost_first)


def _outermost_first(frame: dict[str, Any]) -> tuple[int, int, int]:
    return frame["start_ns"], -frame["end_ns"], frame["depth"]


def _iterate_frames(samples: Iterator[tuple[int, int, list[str]]]) -> Iterator[dict[str, Any]]:
    """Yield a span for each frame, for as long as consecutive samples have it at the same depth."""
    open_frames: list[tuple[str, int]] = []  # frames and since when, the outermost first
    until_ns = -ENDLESS

    def close_frames(depth: int, at_ns: int) -> Iterator[dict[str, Any]]:
        while len(open_frames) > depth:
            name, since = open_frames.pop()
            place = {"depth": len(open_frames), "kind": "sample", "name": name}
            yield place | {"start_ns": since, "end_ns": at_ns}

    for start_ns, end_ns, frames in samples:
        common_depth = (
            0 if start_ns > until_ns else _count_common([name for name, _ in open_frames], frames)
        )
        yield from close_frames(common_depth, min(start_ns, until_ns))
        open_frames += [(name, start_ns) for name in frames[common_depth:]]
        until_ns = max(end_ns, start_ns)
    yield from close_frames(0, until_ns)


def _count_common(first: list[str], second: list[str]) -> int:
    """Count the names that two lists share at their begin."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))


def _write_span(row: dict[str, Any], owner: Owner, track: int, origin_ns: int) -> str:
    start_ns, end_ns = row["start_ns"], row["end_ns"]
    event = {
        "name": row["name"] or row["kind"],
        "cat": row["kind"],
        "ph": "B" if end_ns is None else "X",
        "pid": owner.process + 1,
        "tid": track,
        "args": _arguments(row),
    }
    if row["kind"] != "sample":
        event["tracelens"] = _own_members(row, origin_ns)
    return _write_event(start_ns - origin_ns, event, None if end_ns is None else end_ns - start_ns)


def _own_members(row: dict[str, Any], origin_ns: int) -> dict[str, Any]:
    """Return the members that TraceLens alone reads: the thread, and the times on a device.

    What is drawn again where a device ran it is `again` there.
    """
    recorded = {name: row[name] for name in _BESIDE if row[name] is not None}
    if row["device_start_ns"] is not None:
        recorded["device_start_ns"] = row["device_start_ns"] - origin_ns
        if row.get("pointed_at") and row["stream"] is not None and row["type"] == "span":
            return {"again": 1}
    return {"thread": row["thread"]} | recorded


def _write_instant(row: dict[str, Any], owner: Owner, track: int, origin_ns: int) -> str:
    place = {"pid": owner.process + 1, "tid": track, "s": "t", "args": _arguments(row)}
    place["tracelens"] = _own_members(row, origin_ns)
    event = {"name": row["name"] or row["kind"], "cat": row["kind"], "ph": "i"} | place
    return _write_event(row["start_ns"] - origin_ns, event)


def _arguments(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in _ARGUMENTS if row.get(name) not in _SILENT}


def _write_arrow(point: Point, owner: Owner, track: int, origin_ns: int) -> str:
    event = {
        "name": point.name,
        "cat": point.category,
        "ph": point.phase,
        "id": point.number,
        "bp": "e",  # it ends in the span that is open, not in the next one
        "pid": owner.process + 1,
        "tid": track,
    }
    return _write_event(point.at_ns - origin_ns, event)


def _write_event(at_ns: int, event: dict[str, Any], length_ns: int | None = None) -> str:
    duration_text = "" if length_ns is None else f',"dur":{_write_microseconds(length_ns)}'
    times_text = f'"ts":{_write_microseconds(at_ns)}{duration_text},'
    return "{" + times_text + json.dumps(event, separators=(",", ":"))[1:]


def _write_metadata(owner: Owner, event_name: str, track: int = 0, **facts: Any) -> str:
    event = {"name": event_name, "ph": "M", "pid": owner.process + 1, "tid": track, "args": facts}
    return json.dumps(event, separators=(",", ":"))


def _write_microseconds(ns: int) -> str:
    """Write non-negative nanoseconds as microseconds with three decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"

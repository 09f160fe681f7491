"""Chrome's trace-event JSON, which ui.perfetto.dev and chrome://tracing open.

A process is a process there, a thread a thread; times are microseconds with three decimals, from the
first event on. The format lets events of one thread only nest, so spans that overlap (collectives in
flight) go onto further threads, which are numbered, as are several threads of one name. Spans that were
open when the recording ended begin and do not end. Counters and sampled stacks are tracks, and arrows
lead from call to call of a collective, and from a request to its server and back (`flows`). What the
format has no field for is in members `tracelens`, which viewers ignore, and by which
`tracelens.readers.exported_events` reads the run back.
"""

from __future__ import annotations

import json
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.align.selection import find_begin
from tracelens.exports.flows import NO_POINTS, survey
from tracelens.exports.otlp import unix_offset_ns
from tracelens.exports.output import open_new_file
from tracelens.exports.selection import Owner, Selection, Size
from tracelens.schema.vocabulary import FACTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.exports.content import Content, Saved
    from tracelens.exports.flows import Point, Survey

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
_THREADS_GROUP, _DEVICES_GROUP, _STACKS_GROUP = range(
    3
)  # of tracks, in the order in which they are shown


def save(content: Content, target: Path, max_events: int = MOST_EVENTS) -> Saved:
    """Write the events of main processes, a process at a time; note if they are more than `max_events`.

    Raises:
        InvalidArgument: there is something at `target`, it cannot be written, or nothing is chosen.
    """
    selection, event_count = make_selection(content), 0
    with open_new_file(target) as draft, draft.open("w", encoding="utf-8") as file:
        for text in _iterate_texts(selection):
            event_count += text.lstrip(",\n").startswith(_TIMED)
            file.write(text)
        if not event_count:
            raise content.make_empty_error()
    notes = (_warn_of_size(event_count, max_events),) if event_count > max_events else ()
    return content.describe_saved(event_count, target, notes)


def make_selection(content: Content) -> Selection:
    """Return a selection of a content's main processes and all of their time."""
    main_processes = content.processes.filter("main").with_columns(pl.col("host").fill_null(""))
    names = content.trace.threads["name"]
    thread_names = [None if name is None else content.redact(name) for name in names]
    threads = content.trace.threads.with_columns(name=pl.Series(thread_names, dtype=pl.String))
    return Selection(
        run_name=content.name,
        owners=tuple(Owner(*row) for row in main_processes.select(_OWNER).iter_rows()),
        start_ns=-(1 << 62),
        end_ns=1 << 62,
        origin_ns=find_begin(content.trace),
        threads=threads.select("process", "thread", "name", "device"),
        read_process_events=content.read_events,
        read_process_samples=content.read_samples,
        notes=content.notes,
        facts=_collect_facts(content, main_processes),
    )


def _collect_facts(content: Content, main_processes: pl.DataFrame) -> dict[str, Any]:
    """Return facts of the run that are no events; processes are numbered as in the file."""
    groups = content.trace.communicators.select(pl.col("communicator").cast(pl.String), "ranks")
    rows = main_processes.select(pl.col("process") + 1, *_OF_PROCESS).iter_rows(named=True)
    return {
        "offset_ns": unix_offset_ns(content.trace) or 0,
        "window_ns": 2 * content.trace.alignment.uncertainty_ns,
        "communicators": {content.redact(name): ranks for name, ranks in groups.iter_rows()},
        "processes": [*rows],
    }


def _warn_of_size(events: int, max_events: int) -> str:
    return (
        f"Perfetto opens about {max_events:,} events well, and these are {events:,}: fewer are chosen "
        "with --keep flagged, --ranks, --steps or --time."
    )


def size(selection: Selection) -> Size:
    """Count the events of a selection; estimate its bytes from each process's first lines."""
    surveyed, event_count, sampled_lines, sampled_bytes = survey(selection), 0, 0, 0
    for owner in selection.owners:
        writer = _ProcessWriter(selection, owner, surveyed)
        for line in islice(writer.iterate_lines(), SAMPLE):
            sampled_lines, sampled_bytes = sampled_lines + 1, sampled_bytes + len(line) + 2
        event_count += writer.count_events()
    names_bytes = 300 * len(selection.owners)  # about, of events that name a process
    other_bytes = len(_write_head(selection, surveyed.origin_ns)) + names_bytes
    event_bytes = round(event_count * sampled_bytes / max(sampled_lines, 1))
    return Size(event_count, other_bytes + event_bytes)


def write(selection: Selection) -> Iterator[str]:
    """Write a selection, process by process."""
    texts = _iterate_texts(selection)
    while chunk := list(islice(texts, 1 << 10)):
        yield "".join(chunk)


def _iterate_texts(selection: Selection) -> Iterator[str]:
    """Yield the file's content as consecutive texts: the head, each event, the tail."""
    surveyed = survey(selection)
    yield _write_head(selection, surveyed.origin_ns)
    writers = (_ProcessWriter(selection, owner, surveyed) for owner in selection.owners)
    lines = chain.from_iterable(writer.iterate_lines() for writer in writers)
    yield next(lines, "")
    for line in lines:
        yield f",\n{line}"
    yield _TAIL


def _write_head(selection: Selection, origin_ns: int) -> str:
    facts: dict[str, Any] = {"written by": "TraceLens", "run": selection.run_name}
    facts["tracelens"] = {"origin_ns": origin_ns} | dict(selection.facts)
    if selection.notes:
        facts["notes"] = " ".join(selection.notes)
    return f'{{"displayTimeUnit":"ns","otherData":{json.dumps(facts)},"traceEvents":[\n'


class _ProcessWriter:
    """Writes the events of one process as lines; numbers its tracks, and names each once."""

    def __init__(self, selection: Selection, owner: Owner, surveyed: Survey) -> None:
        self._selection, self._owner = selection, owner
        self._origin_ns = surveyed.origin_ns
        self._points_by_row = surveyed.points_by_process.get(owner.process, NO_POINTS)
        self._track_count = 0
        self._count_by_label: dict[str, int] = {}

    def count_events(self) -> int:
        """Count the events that `iterate_lines` writes, without those that name processes and tracks."""
        events = self._selection.read_events(self._owner)
        spans = events.filter(pl.col("type") == "span")
        span_count = sum(rows.height for _, rows in _split_by_thread(spans))
        arrow_count = sum(map(len, self._points_by_row.values()))
        frame_count = sum(len(frames) for _, frames in self._read_stacks())
        others = (events.filter(type="instant"), _find_readings(events))
        return span_count + arrow_count + frame_count + sum(rows.height for rows in others)

    def iterate_lines(self) -> Iterator[str]:
        """Yield the events, each as a line of JSON."""
        owner, events = self._owner, self._selection.read_events(self._owner).with_row_index("row")
        yield self._write_name("process_name", name=f"{owner.name} ({owner.host})")
        yield self._write_name("process_sort_index", sort_index=self._selection.owners.index(owner))
        yield from self._write_spans(events)
        for row in _find_readings(events).iter_rows(named=True):
            yield self._write_counter(row)
        for label, frames in self._read_stacks():
            track, name_lines = self._add_track(label, group=_STACKS_GROUP)
            yield from name_lines
            for frame in frames:
                yield self._write_span(frame, track)

    def _add_track(self, label: str, group: int = _THREADS_GROUP) -> tuple[int, tuple[str, str]]:
        """Return a new track's number, and the lines that name it; tracks are ordered by group."""
        self._track_count += 1
        self._count_by_label[label] = count = self._count_by_label.get(label, 0) + 1
        track = self._owner.process * TRACKS_A_PROCESS + self._track_count
        order = self._track_count + group * TRACKS_A_PROCESS
        name = label if count == 1 else f"{label} ({count})"
        return track, (
            self._write_name("thread_name", track, name=name),
            self._write_name("thread_sort_index", track, sort_index=order),
        )

    def _write_name(self, event_name: str, track: int = 0, **arguments: Any) -> str:
        event = {"name": event_name, "ph": "M"} | self._make_position(track) | {"args": arguments}
        return json.dumps(event, separators=(",", ":"))

    def _make_position(self, track: int) -> dict[str, Any]:
        return {"pid": self._owner.process + 1, "tid": track}

    def _write_spans(self, events: pl.DataFrame) -> Iterator[str]:
        """Yield spans, arrows and instants as lines, thread by thread, in order of begin."""
        threads = self._selection.threads.filter(process=self._owner.process)
        name_by_thread = dict(threads.select("thread", "name").iter_rows())
        device_threads = set(threads.drop_nulls("device")["thread"])
        instants_by_thread = _group_instants(events)
        for thread, spans in _split_by_thread(events.filter(pl.col("type") == "span")):
            label = name_by_thread.get(thread) or f"thread {thread}"
            track_by_lane: dict[int, int] = {}
            for lane, row in _assign_lanes(spans):
                if lane not in track_by_lane:
                    group = _DEVICES_GROUP if thread in device_threads else _THREADS_GROUP
                    track_by_lane[lane], name_lines = self._add_track(label, group)
                    yield from name_lines
                yield self._write_span(row, track_by_lane[lane])
                for point in self._points_by_row.get(row["row"], ()) if row["pointed_at"] else ():
                    yield self._write_arrow(point, track_by_lane[lane])
            for row in instants_by_thread.pop(thread, ()):
                yield self._write_instant(row, track_by_lane[0])
        for thread, rows in instants_by_thread.items():
            track, name_lines = self._add_track(name_by_thread.get(thread) or f"thread {thread}")
            yield from name_lines
            for row in rows:
                yield self._write_instant(row, track)

    def _write_span(self, row: dict[str, Any], track: int) -> str:
        """Return a span's row as a line of JSON; an open span begins and does not end."""
        start_ns, end_ns = row["start_ns"], row["end_ns"]
        event = {"name": row["name"] or row["kind"], "cat": row["kind"]}
        event |= {"ph": "B" if end_ns is None else "X"} | self._make_position(track)
        event["args"] = _make_arguments(row)
        if row["kind"] != "sample":
            event["tracelens"] = self._make_own_members(row)
        return self._write_event(start_ns, event, None if end_ns is None else end_ns - start_ns)

    def _write_instant(self, row: dict[str, Any], track: int) -> str:
        event = {"name": row["name"] or row["kind"], "cat": row["kind"], "ph": "i"}
        event |= self._make_position(track) | {"s": "t", "args": _make_arguments(row)}
        event["tracelens"] = self._make_own_members(row)
        return self._write_event(row["start_ns"], event)

    def _write_counter(self, row: dict[str, Any]) -> str:
        event = {"ph": "C", "pid": self._owner.process + 1, "name": row["name"]}
        event |= {"cat": row["kind"], "args": {"value": row["value"]}}
        event["tracelens"] = {"thread": row["thread"], "step": row["step"]}
        return self._write_event(row["start_ns"], event)

    def _write_arrow(self, point: Point, track: int) -> str:
        event = {
            "name": point.name,
            "cat": point.category,
            "ph": point.phase,
            "id": point.arrow_number,
        }
        event["bp"] = "e"  # it ends in the span that is open, not in the next one
        return self._write_event(point.time_ns, event | self._make_position(track))

    def _write_event(
        self, at_ns: int, event: dict[str, Any], duration_ns: int | None = None
    ) -> str:
        duration = "" if duration_ns is None else f',"dur":{_write_microseconds(duration_ns)}'
        times = f'"ts":{_write_microseconds(at_ns - self._origin_ns)}{duration},'
        return "{" + times + json.dumps(event, separators=(",", ":"))[1:]

    def _make_own_members(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the members that TraceLens alone reads: the thread, and the times on a device.

        Of a span that is written twice, the one on its device's track is only marked as `again`.
        """
        members = {name: row[name] for name in _BESIDE if row[name] is not None}
        if row["device_start_ns"] is not None:
            members["device_start_ns"] = row["device_start_ns"] - self._origin_ns
            if row.get("pointed_at") and row["stream"] is not None and row["type"] == "span":
                return {"again": 1}
        return {"thread": row["thread"]} | members

    def _read_stacks(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield the stacks of each sampled thread, also of children, as labelled nested frames."""
        samples = self._selection.read_samples(self._owner).sort("start_ns")
        for (_, name), rows in samples.group_by("pid", "thread_name", maintain_order=True):
            stacks = rows.select("start_ns", "end_ns", "frames").iter_rows()
            yield f"stacks of {name}", sorted(_iterate_frames(stacks), key=_outermost_first)


def _split_by_thread(spans: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    """Yield thread and spans of each thread, then of each device stream with times on the device.

    `pointed_at` marks the rows at which arrows point: on the device if the span ran there.
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


def _group_instants(events: pl.DataFrame) -> dict[int, list[dict[str, Any]]]:
    """Return the instants of each thread, in order of time."""
    rows_by_thread: dict[int, list[dict[str, Any]]] = {}
    for row in events.filter(type="instant").sort("start_ns").iter_rows(named=True):
        rows_by_thread.setdefault(row["thread"], []).append(row)
    return rows_by_thread


def _assign_lanes(spans: pl.DataFrame) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (lane, row) of each span: the first lane whose open spans all contain it."""
    until_ns = pl.col("end_ns").fill_null(ENDLESS)
    ordered = spans.with_columns(until=until_ns).sort(
        "start_ns", "until", "depth", descending=[False, True, False]
    )
    lanes: list[list[int]] = []  # ends of each lane's open spans, ns, the outermost first
    for row in ordered.iter_rows(named=True):
        yield _find_lane(lanes, row["start_ns"], row["until"]), row


def _find_lane(lanes: list[list[int]], start_ns: int, end_ns: int) -> int:
    """Return the first lane for a span, and add its end there; spans come in order of begin.

    `lanes` has the ends of each lane's open spans, ns, the outermost first.
    """
    for lane, open_ends_ns in enumerate(lanes):
        while open_ends_ns and open_ends_ns[-1] <= start_ns:
            open_ends_ns.pop()
        if not open_ends_ns or end_ns <= open_ends_ns[-1]:
            open_ends_ns.append(end_ns)
            return lane
    lanes.append([end_ns])
    return len(lanes) - 1


def _find_readings(events: pl.DataFrame) -> pl.DataFrame:
    """Return the counters that read a number, in order of time."""
    is_finite = pl.col("value").is_finite().fill_null(value=False)
    return events.filter(is_finite, type="counter").sort("start_ns")


def _outermost_first(frame: dict[str, Any]) -> tuple[int, int, int]:
    return frame["start_ns"], -frame["end_ns"], frame["depth"]


def _iterate_frames(samples: Iterator[tuple[int, int, list[str]]]) -> Iterator[dict[str, Any]]:
    """Yield a span per frame for as long as consecutive samples have it at the same depth.

    Samples are (begin, end, frames) in order of begin, ns; frames from the outermost on.
    """
    open_frames: list[tuple[str, int]] = []  # names and their begin, ns, the outermost first
    until_ns = -ENDLESS

    def close_frames(depth: int, at_ns: int) -> Iterator[dict[str, Any]]:
        while len(open_frames) > depth:
            name, begin_ns = open_frames.pop()
            frame = {"depth": len(open_frames), "kind": "sample", "name": name}
            yield frame | {"start_ns": begin_ns, "end_ns": at_ns}

    for start_ns, end_ns, frames in samples:
        names = [] if start_ns > until_ns else [name for name, _ in open_frames]
        common_depth = _count_common(names, frames)
        yield from close_frames(common_depth, min(start_ns, until_ns))
        open_frames += [(name, start_ns) for name in frames[common_depth:]]
        until_ns = max(end_ns, start_ns)
    yield from close_frames(depth=0, at_ns=until_ns)


def _count_common(first: list[str], second: list[str]) -> int:
    """Count the names that two lists share at their begin."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))


def _make_arguments(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in _ARGUMENTS if row.get(name) not in _SILENT}


def _write_microseconds(ns: int) -> str:
    """Write non-negative nanoseconds as microseconds with three decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"

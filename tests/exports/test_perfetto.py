"""What Perfetto opens: valid trace-event JSON, nothing lost, nothing that overlaps on a thread."""

import json
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.runs.traces import call, span, trace_of
from support.samples import sample_trace
from support.web.stores import DEVICES, SHARDED, SLOW_RANK, traced

from tracelens.align.selection import find_begin
from tracelens.exports import perfetto
from tracelens.exports.content import select_content
from tracelens.exports.selection import Selection
from tracelens.model.choice import Choice
from tracelens.model.trace import Trace

HOSTILE = '"]}<script>alert(1)</script>\x00\u2028\ud7ff\\'
OVERLAPPING = trace_of(
    [
        span(0, "step", 1_000, None, depth=0),
        span(0, "forward", 1_000, 5_001, depth=1),
        span(0, "backprop", 5_001, None, depth=1),
        call(0, 0, 2_000, 4_000),
        call(0, 1, 3_000, 6_000),
        call(0, 2, 5_500, 7_000),
        call(0, 3, 6_000, 6_500),
    ]
)
RUNS = {"slow": SLOW_RANK, "shards": SHARDED, "devices": DEVICES}
EVERY_RUN = pytest.mark.parametrize("run", RUNS)


def select_all(trace: Trace, choice: Choice | None = None) -> Selection:
    return perfetto.make_selection(select_content(trace, choice))


def parse_written(selection: Selection) -> list[dict[str, Any]]:
    """Write a selection and parse it as strictly as JSON is."""
    text = "".join(perfetto.write(selection))
    assert text.isascii()
    content = json.loads(text, parse_constant=pytest.fail)
    assert content["displayTimeUnit"] == "ns"
    events: list[dict[str, Any]] = content["traceEvents"]
    return events


def spans_among(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the spans among the events."""
    return [event for event in events if event["ph"] in {"X", "B"}]


def count_events(events: list[dict[str, Any]]) -> int:
    """Count what is no name of a process or thread."""
    return sum(event["ph"] != "M" for event in events)


@EVERY_RUN
def test_events_are_as_the_format_says(run: str) -> None:
    """Complete events have a name, numbers for time, process and thread; both are named first."""
    named_threads: dict[str, set[Any]] = defaultdict(set)
    for event in parse_written(select_all(traced(RUNS[run]))):
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["pid"], int)
        assert event["pid"] > 0
        if event["ph"] == "C":  # a counter is a track of its process
            assert event["ts"] >= 0
            continue
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            named_threads[event["name"]].add((event["pid"], event["tid"]))
            continue
        assert event["ts"] >= 0
        if event["ph"] != "X":
            assert event["ph"] in set("stfCi")
            continue
        assert event["dur"] >= 0
        assert isinstance(event["ts"], (int, float))
        assert (event["pid"], event["tid"]) in named_threads["thread_name"]
        assert (event["pid"], 0) in named_threads["process_name"]
        assert None not in event["args"].values()
    threads = [tid for _, tid in named_threads["thread_name"]]
    assert len(threads) == len(set(threads))


def test_instants_are_points_on_their_thread() -> None:
    """Also on a thread that has no span."""
    marks = [
        span(0, "marker", 3_000, None, name, type="instant", thread=thread)
        for name, thread in (("loss", 0), ("saved", 2))
    ]
    events = parse_written(select_all(trace_of([span(0, "step", 1_000, 9_000), *marks])))
    threads = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    instants = [event for event in events if event["ph"] == "i"]
    assert [(instant["name"], threads[instant["tid"]], instant["s"]) for instant in instants] == [
        ("loss", "0", "t"),
        ("saved", "2", "t"),
    ]
    (step,) = spans_among(events)
    assert {instant["ts"] - step["ts"] for instant in instants} == {2.0}


@EVERY_RUN
def test_every_span_is_there_once(run: str) -> None:
    """As many events as spans, and once more on its stream what a device ran; sizes are as told."""
    trace = traced(RUNS[run])
    spans = trace.spans.collect()
    on_devices = spans["stream"].count()
    events = parse_written(select_all(trace))
    announced = perfetto.size(select_all(trace))
    assert len(spans_among(events)) == spans.height + on_devices
    assert count_events(events) == announced.event_count
    real = len("".join(perfetto.write(select_all(trace))))
    assert announced.size_bytes == pytest.approx(real, rel=0.15)


def test_what_overlaps_goes_onto_threads_of_its_own() -> None:
    """On each thread, of any two events one lies within the other or after it; times are exact."""
    events = spans_among(parse_written(select_all(OVERLAPPING)))
    tracks: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        tracks[event["tid"]].append((event["ts"], event["ts"] + event.get("dur", math.inf)))
    assert len(tracks) == 3
    for spans in tracks.values():
        for first, (start, end) in enumerate(spans):
            for other, until in spans[first + 1 :]:
                assert other >= end or until <= end or (other == start and until >= end)
    forward = next(event for event in events if event["name"] == "forward")
    assert (forward["ts"], forward["dur"]) == (1.0, 4.001)


def test_what_was_open_begins_and_does_not_end() -> None:
    """A span without an end is a begin only, as the format has it for what never ended."""
    events = spans_among(parse_written(select_all(OVERLAPPING)))
    opened = [event for event in events if event["ph"] == "B"]
    assert [event["name"] for event in opened] == ["step", "backprop"]
    assert {event["args"]["status"] for event in opened} == {"open"}
    assert not any("dur" in event for event in opened)


def test_only_what_was_chosen_is_written() -> None:
    """Ranks and a window narrow it; what reaches into the window is whole."""
    trace = traced(SLOW_RANK)
    begin_ns = find_begin(trace)
    start, end = trace.steps.filter(rank=2, step=30).select("start_ns", "end_ns").row(0)
    events = parse_written(
        select_all(
            trace, Choice(rank_ranges=((2, 2),), time_range_ns=(start - begin_ns, end - begin_ns))
        )
    )
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert [name.split(" (")[0] for name in names] == ["rank 2"]
    steps = {event["args"].get("step") for event in spans_among(events)} - {None}
    assert 30 in steps
    assert steps <= {29, 30, 31}


def test_names_cannot_leave_their_strings() -> None:
    """Quotes, markup, control characters and lone surrogates' neighbours stay inside of strings."""
    hostile = trace_of([span(0, "forward", 0, 5, HOSTILE)])
    hosts = hostile.processes.with_columns(host=pl.lit(HOSTILE))
    events = parse_written(select_all(replace(hostile, processes=hosts)))
    assert spans_among(events)[0]["name"] == HOSTILE
    assert HOSTILE in events[0]["args"]["name"]


def test_an_empty_selection_is_still_valid() -> None:
    """No rank, or a window without spans: a trace without events."""
    trace = traced(SLOW_RANK)
    assert spans_among(parse_written(replace(select_all(trace), owners=()))) == []
    assert spans_among(parse_written(select_all(trace, Choice(time_range_ns=(-10, -5))))) == []


def test_recorded_runs_are_written() -> None:
    """A real recording, with collectives in flight and a killed rank, is valid too."""
    trace: Trace = sample_trace("mpi-killed-rank")
    chosen = select_all(trace)
    assert count_events(parse_written(chosen)) == perfetto.size(chosen).event_count


def test_more_than_a_viewer_opens_well_is_written_and_said(tmp_path: Path) -> None:
    """The limit is the viewer's: the file is whole, and a note names what makes it smaller."""
    file = tmp_path / "much.json"
    (note,) = perfetto.save(select_content(traced(SLOW_RANK)), file, max_events=10).notes
    assert "Perfetto opens about 10 events well" in note
    assert all(option in note for option in ("--keep", "--ranks", "--steps"))
    assert len(json.loads(file.read_text())["traceEvents"]) > 10


@EVERY_RUN
def test_arrows_begin_before_they_end(run: str) -> None:
    """Each begins once, ends once, in order of time, and every point lies within a span of its track."""
    events = parse_written(select_all(traced(RUNS[run])))
    arrows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in {"s", "t", "f"}:
            arrows[event["id"]].append(event)
    assert arrows
    spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in spans_among(events):
        spans[event["tid"]].append((event["ts"], event["ts"] + event.get("dur", math.inf)))
    for points in arrows.values():
        ordered = sorted(points, key=lambda point: point["ts"])
        middle = ["t"] * (len(ordered) - 2)
        assert [point["ph"] for point in ordered] == ["s", *middle, "f"]
        for point in ordered:
            assert any(a <= point["ts"] < b for a, b in spans[point["tid"]])

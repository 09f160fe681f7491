"""All that pages show of a run but single recorded spans: small tables, and the timeline's scene.

It is made once from a trace and its report, and can be kept on disk (see `tracelens.lod.index`), so
that a run opens again without reading and explaining its trace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final, cast

import polars as pl

from tracelens.lod import calls, lanes, lateness, pyramid, tables
from tracelens.lod.lanes import Lane
from tracelens.lod.query import Scene
from tracelens.lod.times import Times
from tracelens.lod.window import Window
from tracelens.words import shown_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracelens.analyses.imbalance import Imbalance
    from tracelens.analyses.phases import Phases
    from tracelens.analyses.result import Report
    from tracelens.analyses.shards import Shards
    from tracelens.lod.lanes import Lanes
    from tracelens.lod.lateness import Lateness
    from tracelens.trace import Moved, Trace

    Streams = list[tuple[int, int, str]]


_SHARD: Final = pl.col("shard").fill_null(pl.col("rank")).alias("rank")


@dataclass(frozen=True)
class Run:
    """A run as pages see it; nothing in it changes.

    `workers` and `shards` list process, rank, host and file of the main processes, in order, and workers
    their training thread; `threads` names threads and devices' streams (process, thread, name, device);
    `windows` each step's usual window (step, start_ns, end_ns); `loads` and `traffic` are as in
    `analyses.shards`, `moved` as in `Trace`. `tables` are results of analyses, by name
    (`tracelens.lod.tables`).
    """

    name: str
    report: Report
    workers: pl.DataFrame
    shards: pl.DataFrame
    threads: pl.DataFrame
    windows: pl.DataFrame
    times: Times
    lateness: Lateness
    loads: pl.DataFrame
    traffic: pl.DataFrame
    tables: Mapping[str, pl.DataFrame]
    scene: Scene
    moved: Mapping[int, Moved]
    calls: pl.LazyFrame  # as `tracelens.lod.calls` wants them

    @classmethod
    def of(cls, trace: Trace, report: Report) -> Run:
        """Make it from a trace and what was found in it; its scene has no pyramid yet."""
        run, parts = outlined(trace, report)
        return replace(run, scene=replace(run.scene, lanes=lanes.joined(list(parts))))


def outlined(trace: Trace, report: Report) -> tuple[Run, Iterator[Lanes]]:
    """Make a run whose lanes are empty, and an iterator over their parts, from top to bottom."""
    phases = cast("Phases", report.results["phases"])
    times = Times.of(phases.times, trace.workers["rank"].to_list())
    late, windows = lateness.measure(times), lateness.boundaries(trace.steps)
    loads: Shards = cast("Imbalance", report.results["imbalance"]).shards
    workers = trace.workers.select("process", "rank").rows()
    others = _other_lanes(trace)
    run = Run(
        name=shown_name(trace.path.resolve().name) if trace.path else "run",
        report=report,
        workers=trace.workers.select("process", "rank", "host", "file", "training_thread"),
        shards=trace.shards.select("process", _SHARD, "host", "file"),
        threads=trace.threads.select("process", "thread", "name", "device"),
        windows=windows,
        times=times,
        lateness=late,
        loads=loads.loads,
        traffic=loads.traffic,
        tables=tables.of(report),
        scene=_scene(trace, late, windows, [Lane(p, "worker", r) for p, r in workers], others),
        moved=trace.moved,
        calls=calls.table(trace),
    )
    return run, chain(lanes.each_worker(phases.pieces, workers), others)


def stream_spans(trace: Trace) -> pl.DataFrame:
    """Return what ran on the workers' devices: the spans, with the device's times, and their stream."""
    workers = trace.workers.select("process").lazy()
    names = trace.threads.lazy().select("process", stream="thread", stream_name="name")
    end = pl.col("device_start_ns") + pl.col("device_duration_ns")
    return (
        trace.spans.filter(end.is_not_null())
        .join(workers, on="process", how="semi")
        .with_columns(start_ns="device_start_ns", end_ns=end)
        .join(names, on=["process", "stream"], how="inner")
        .collect()
    )


def shard_spans(trace: Trace) -> pl.DataFrame:
    """Return what parameter-server processes recorded."""
    spans = trace.spans.filter(pl.col("role").cast(pl.String) == "ps")
    return spans.filter(pl.col("kind").cast(pl.String) == "ps").collect()


def _scene(
    trace: Trace,
    late: Lateness,
    windows: pl.DataFrame,
    workers: list[Lane],
    others: list[Lanes],
) -> Scene:
    """Stack a row a worker, then those of streams and shards; only their steps have items yet."""
    more = [lateness.shard_lanes(part, windows) for part in others]
    steps = lanes.joined([lateness.step_lanes(late, trace.steps, workers), *more])
    whole = _whole(trace)
    usual = (windows["end_ns"] - windows["start_ns"]).median()
    step_ns = max(1, int(cast("float", usual))) if windows.height else whole.width_ns
    peaks = pyramid.peaks(steps, whole, step_ns)
    return Scene(lanes.hollow(steps.lanes), steps, whole, step_ns, peaks)


def _other_lanes(trace: Trace) -> list[Lanes]:
    found = []
    spans = stream_spans(trace)
    streams: Streams = (
        spans.select("process", "rank", "stream_name").unique().sort("rank", "stream_name").rows()
    )
    if streams:
        found.append(lanes.from_streams(spans, streams))
    shards = trace.shards.select("process", _SHARD).rows()
    if shards:
        found.append(lanes.from_shards(shard_spans(trace), shards))
    return found


def _whole(trace: Trace) -> Window:
    """From the first step's begin to the last one's end."""
    if trace.steps.is_empty():
        return Window(0, 1)
    begin, end = trace.steps["start_ns"].min(), trace.steps["end_ns"].max()
    return Window(cast("int", begin), cast("int", end))


def with_pyramid(run: Run) -> Run:
    """Build the levels of a run's scene in memory."""
    built = pyramid.colours(run.scene.lanes, run.scene.whole)
    return replace(run, scene=replace(run.scene, pyramid=built))

"""One open run: the trace, its report, and the arrays that pages draw from, made once."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

import polars as pl

from tracelens.analyses import analyze
from tracelens.lod import lanes, lateness
from tracelens.lod.query import Scene
from tracelens.lod.window import Window

if TYPE_CHECKING:
    from tracelens.analyses.imbalance import Imbalance
    from tracelens.analyses.phases import Phases
    from tracelens.analyses.result import Report
    from tracelens.analyses.shards import Shards
    from tracelens.lod.lateness import Lateness
    from tracelens.trace import Trace


class Store:
    """What every page asks. Nothing in it changes, so requests may share it."""

    def __init__(self, trace: Trace, report: Report) -> None:
        self.trace = trace
        self.report = report
        self.phases = cast("Phases", report.results["phases"])

    @classmethod
    def of(cls, trace: Trace) -> Store:
        """Analyze a trace and keep both."""
        return cls(trace, analyze(trace))

    def warm(self) -> None:
        """Make now what the first page would else wait for."""
        for wanted in (self.scene, self.windows, self.flagged):
            del wanted

    @cached_property
    def name(self) -> str:
        """The run's name: its folder's."""
        path = self.trace.path
        return Path(path).resolve().name if path else "run"

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """All worker ranks, in order."""
        return tuple(self.trace.workers["rank"])

    @cached_property
    def hosts(self) -> dict[int, str]:
        """The host of every worker rank."""
        return dict(self.trace.workers.select("rank", "host").iter_rows())

    @cached_property
    def windows(self) -> pl.DataFrame:
        """Each step's usual window: step, start_ns, end_ns."""
        return lateness.boundaries(self.trace.steps)

    @cached_property
    def whole(self) -> Window:
        """From the first step's begin to the last one's end."""
        steps = self.trace.steps
        if steps.is_empty():
            return Window(0, 1)
        return Window(cast("int", steps["start_ns"].min()), cast("int", steps["end_ns"].max()))

    @cached_property
    def lateness(self) -> Lateness:
        """How late every rank was in every step, by all its own work."""
        return lateness.measure(self.phases.times, self.ranks)

    def lateness_in(self, category: str) -> Lateness:
        """How late every rank was in every step, by one category of its work."""
        return lateness.measure(self.phases.times, self.ranks, [category])

    @cached_property
    def shard_spans(self) -> pl.DataFrame:
        """What parameter-server processes recorded."""
        spans = self.trace.spans.filter(pl.col("role").cast(pl.String) == "ps")
        return spans.filter(pl.col("kind").cast(pl.String) == "ps").collect()

    @cached_property
    def stream_spans(self) -> pl.DataFrame:
        """What ran on the workers' devices: the spans, with the device's times, and their stream."""
        workers = self.trace.workers.select("process").lazy()
        names = self.trace.threads.lazy().select("process", stream="thread", stream_name="name")
        end = pl.col("device_start_ns") + pl.col("device_duration_ns")
        return (
            self.trace.spans.filter(end.is_not_null())
            .join(workers, on="process", how="semi")
            .with_columns(start_ns="device_start_ns", end_ns=end)
            .join(names, on=["process", "stream"], how="inner")
            .collect()
        )

    @property
    def loads(self) -> Shards:
        """What each shard carried."""
        return cast("Imbalance", self.report.results["imbalance"]).shards

    @cached_property
    def flagged(self) -> frozenset[int]:
        """The ranks that faults name."""
        faults = [finding for finding in self.report.findings if finding.category == "fault"]
        return frozenset(rank for fault in faults for rank in fault.ranks)

    @cached_property
    def scene(self) -> Scene:
        """What the timeline draws: a row a worker, then two rows a shard."""
        workers = self.trace.workers.select("process", "rank").rows()
        detail = lanes.from_segments(self.phases.segments, workers)
        steps = lateness.step_lanes(self.lateness, self.trace.steps, detail.lanes)
        shards = self.trace.shards.select(
            "process", pl.col("shard").fill_null(pl.col("rank"))
        ).rows()
        streams = self._streams
        if streams:
            ran = lanes.from_streams(self.stream_spans, streams)
            detail = lanes.join(detail, ran)
            steps = lanes.join(steps, lateness.shard_lanes(ran, self.windows))
        if shards:
            served = lanes.from_shards(self.shard_spans, shards)
            detail = lanes.join(detail, served)
            steps = lanes.join(steps, lateness.shard_lanes(served, self.windows))
        return Scene(detail, steps, self.whole, self._usual_step_ns)

    @cached_property
    def _streams(self) -> list[tuple[int, int, str]]:
        """The streams on which something ran, rank by rank: process, rank, name."""
        used = self.stream_spans.select("process", "rank", "stream_name").unique()
        return used.sort("rank", "stream_name").rows()

    def streams_of(self, rank: int) -> list[int]:
        """Return the rows of a rank's streams in the scene."""
        rows = enumerate(self.scene.lanes.lanes)
        return [row for row, lane in rows if lane.role == "device" and lane.rank == rank]

    @cached_property
    def _usual_step_ns(self) -> int:
        lengths = (self.windows["end_ns"] - self.windows["start_ns"]).median()
        return max(1, int(cast("float", lengths))) if self.windows.height else self.whole.width_ns

    def window_of(self, first: int, last: int) -> Window | None:
        """Return the window of a range of steps; None where there are no such steps."""
        inside = self.windows.filter(pl.col("step").is_between(first, last))
        if not inside.height:
            return None
        return Window(int(inside["start_ns"][0]), int(inside["end_ns"][-1]))

    def lane_of(self, rank: int) -> int | None:
        """Return the row of a worker rank in the scene."""
        return self.ranks.index(rank) if rank in self.ranks else None

    def recorded_at(self, process: int, at_ns: int) -> pl.DataFrame:
        """Return the spans that a process had open at a moment, the outermost first."""
        inside = (pl.col("start_ns") <= at_ns) & (
            pl.col("end_ns").is_null() | (pl.col("end_ns") > at_ns)
        )
        mine = self.trace.spans.filter((pl.col("process") == process) & inside)
        return mine.collect().sort("thread", "depth", "start_ns")

    def ran_at(self, process: int, stream: str, at_ns: int) -> pl.DataFrame:
        """Return the spans that a device's stream was in at a moment, with the device's times."""
        inside = (pl.col("start_ns") <= at_ns) & (pl.col("end_ns") > at_ns)
        mine = self.stream_spans.filter(process=process, stream_name=stream).filter(inside)
        return mine.sort("depth", "start_ns")

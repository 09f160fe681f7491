"""All that pages show of a run but single recorded spans: small tables, and the timeline's scene.

It is made once from a trace and its report, and can be kept on disk (see `tracelens.lod.index`), so
that a run opens again without reading and explaining its trace. A list of runs shows its glance: a
few numbers and one sentence.

The tables are those of the analyses, each named once. One belongs here if ranks, shards, steps or a
fixed number bound its rows, never if events do: an index is opened in a moment, and pages hold
whole tables in memory.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import polars as pl

from tracelens.accounting.stages import find_stages
from tracelens.caching import cached_property
from tracelens.lod import lanes, pyramid, residuals, search
from tracelens.lod.lanes import Lane
from tracelens.lod.query import Scene
from tracelens.lod.step_times import CategoryTimes, split_evenly
from tracelens.lod.viewport import Window
from tracelens.memory import BoundedCache
from tracelens.model.fmt import shown_name
from tracelens.schema.json_text import loads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tracelens.accounting.phases import Phases
    from tracelens.analyses.servers.shards import Shards
    from tracelens.lod.lanes import Lanes
    from tracelens.lod.residuals import Residuals
    from tracelens.model.clock_map import ClockMap
    from tracelens.model.result import Report
    from tracelens.model.trace import Trace
    from tracelens.model.verdict import State


MOST_TABLE_ROWS: Final = 1 << 17  # such as steps of a long run; of pairs of ranks, the first
# Name: analysis (as in `Report.results`), then the way to the table in its result.
KEPT_TABLES: Final[dict[str, str]] = {
    "arrivals_by_step": "arrivals.by_step",
    "arrivals_last": "arrivals.last",
    "arrivals_spread": "arrivals.spread",
    "asynchrony": "asynchrony.workers",
    "attempts": "life.attempts",
    "bandwidths": "communication.bandwidths",
    "bandwidths_slowest": "communication.slowest",
    "chains": "chains.chains",
    "critical_cells": "critical_path.cells",
    "critical_longest": "critical_path.longest",
    "critical_path": "critical_path.shares",
    "critical_stays": "critical_path.stretches",
    "epochs": "membership.epochs",
    "gap_spread": "interleaving.gap_spread",
    "imbalance": "imbalance.ranks",
    "life": "life.uses",
    "links": "links.links",
    "message_costs": "communication.lines",
    "overlap": "interleaving.overlap",
    "overlap_by_bucket": "interleaving.by_bucket",
    "overlap_by_step": "interleaving.by_step",
    "placements": "shards.placements",
    "slack": "critical_path.slack",
    "tensors": "shards.tensors",
}
STREAM_COLUMNS: Final = ("type", "kind", "name", "step", "stream", *lanes.TIMED_ON_DEVICE)
_SHARD: Final = pl.col("shard").fill_null(pl.col("rank")).alias("rank")
GLANCE_FILE: Final = "glance.json"
MOST_POINTS: Final = 120


def select_tables(report: Report, max_rows: int = MOST_TABLE_ROWS) -> dict[str, pl.DataFrame]:
    """Return the first rows of a report's tables, without those of analyses that were not run."""
    tables = {}
    for name, path in KEPT_TABLES.items():
        analysis, _, attribute_path = path.partition(".")
        if analysis in report.results:
            table: pl.DataFrame = attrgetter(attribute_path)(report.results[analysis])
            tables[name] = table.head(max_rows)
    return tables


@dataclass(frozen=True, eq=False)
class Run:
    """A run as pages see it; nothing in it changes.

    `workers` and `shards` list process, rank, host and file of the main processes, in order, and workers
    their training thread and stage; `threads` names threads and devices' streams (process, thread,
    name, device); `step_windows` each step's usual window (step, start_ns, end_ns); `shard_loads` and
    `shard_traffic` are as in `analyses.shards`, `clock_maps` as in `Trace`. `tables` are results of
    analyses, by name.
    """

    name: str
    report: Report
    workers: pl.DataFrame
    shards: pl.DataFrame
    threads: pl.DataFrame
    step_windows: pl.DataFrame
    category_times: CategoryTimes
    measure_residuals: Callable[[], Residuals]
    shard_loads: pl.DataFrame
    shard_traffic: pl.DataFrame
    tables: Mapping[str, pl.DataFrame]
    scene: Scene
    clock_maps: Mapping[int, ClockMap]
    call_rows: pl.LazyFrame  # as `tracelens.lod.search` wants them

    @cached_property
    def residuals(self) -> Residuals:
        """Every rank's residual in every step, of all its compute time; made when first asked for."""
        return self.measure_residuals()

    @classmethod
    def from_trace(cls, trace: Trace, report: Report) -> Run:
        """Make the data of a run from its trace and report; the scene has no pyramid yet."""
        run, parts = make_run_and_lanes(trace, report)
        return replace(run, scene=replace(run.scene, span_lanes=lanes.join_lanes(list(parts))))


def make_run_and_lanes(trace: Trace, report: Report) -> tuple[Run, Iterator[Lanes]]:
    """Make a run whose lanes have no items yet, and an iterator over these lanes, from top to bottom."""
    phases = cast("Phases", report.results["phases"])
    times = CategoryTimes.from_partition(
        phases.spent_ns, phases.pieces.step_windows, trace.workers["rank"].to_list()
    )
    stages = find_stages(trace)
    stage = stages.stage_of_column if stages else np.zeros(trace.workers.height, np.int64)
    rank_residuals = residuals.measure(times, stage=stage)
    windows = residuals.find_step_windows(trace.steps)
    loads = cast("Shards", report.results["shards"])
    workers = trace.workers.select("process", "rank").rows()
    shard_and_stream_lanes = make_other_lanes(trace)
    run = Run(
        name=shown_name(trace.path.resolve().name) if trace.path else "run",
        report=report,
        workers=trace.workers.select(
            "process", "rank", "host", "file", "training_thread", stage=pl.Series(stage)
        ),
        shards=trace.shards.select("process", _SHARD, "host", "file"),
        threads=trace.threads.select("process", "thread", "name", "device"),
        step_windows=windows,
        category_times=times,
        measure_residuals=lambda: rank_residuals,
        shard_loads=loads.loads,
        shard_traffic=loads.traffic,
        tables=select_tables(report),
        scene=_make_scene(
            trace,
            rank_residuals,
            windows,
            [Lane(process, "worker", rank) for process, rank in workers],
            shard_and_stream_lanes,
        ),
        clock_maps=trace.clock_maps,
        call_rows=search.list_calls(trace),
    )
    return run, chain(make_worker_lanes(trace, phases), shard_and_stream_lanes)


def make_worker_lanes(trace: Trace, phases: Phases) -> Iterator[Lanes]:
    """Make the lane of each worker when it is asked for; what no chosen step holds is not selected."""
    workers = trace.workers.select("process", "rank").rows()
    has_all_steps = trace.choice.step_ranges is None and trace.choice.time_range_ns is None
    ends_ns = (
        None if has_all_steps else trace.steps.sort("process", "start_ns")["end_ns"].to_numpy()
    )
    return lanes.make_worker_lanes(phases.pieces, workers, ends_ns)


def _make_stream_lanes(trace: Trace) -> Lanes:
    """Return a lane for each stream of the workers' devices, reading one process at a time."""
    lanes_of_processes, cache = [], BoundedCache()
    for process, rank in trace.workers.select("process", "rank").iter_rows():
        if trace.outlines is None or trace.outlines[process].device_span_count:
            threads = trace.threads.filter(pl.col("process") == process)
            name_by_thread = dict(threads.select("thread", "name").iter_rows())
            columns = trace.source.read_columns(process, STREAM_COLUMNS, cache)
            lanes_of_processes.append(
                lanes.make_stream_lanes(process, rank, columns, name_by_thread)
            )
    return lanes.join_lanes(lanes_of_processes)


def select_server_requests(trace: Trace) -> pl.DataFrame:
    """Return the requests that parameter-server processes recorded."""
    of_servers = pl.col("role").cast(pl.String) == "ps"
    return trace.requests.filter(of_servers & (pl.col("kind").cast(pl.String) == "ps"))


def _make_scene(
    trace: Trace,
    rank_residuals: Residuals,
    windows: pl.DataFrame,
    workers: list[Lane],
    shard_and_stream_lanes: list[Lanes],
) -> Scene:
    """Stack lanes of workers, then of streams and shards; items are only in those of steps yet.

    `windows` has one row per step: its usual begin and end.
    """
    steps_of_others = [
        residuals.make_usage_lanes(lanes_of_source, windows)
        for lanes_of_source in shard_and_stream_lanes
    ]
    steps = lanes.join_lanes(
        [residuals.make_step_lanes(rank_residuals, trace.steps, workers), *steps_of_others]
    )
    run_window = find_run_window(trace)
    median_step_ns = (windows["end_ns"] - windows["start_ns"]).median()
    step_ns = max(1, int(cast("float", median_step_ns))) if windows.height else run_window.width_ns
    peaks = pyramid.build_peaks(steps, run_window, step_ns)
    return Scene(lanes.make_empty_lanes(steps.owners), steps, run_window, step_ns, peaks)


def make_other_lanes(trace: Trace) -> list[Lanes]:
    """Return the rows of devices' streams and of parameter servers."""
    streams = _make_stream_lanes(trace)
    lanes_by_source = [streams] if len(streams) else []
    shards = trace.shards.select("process", _SHARD).rows()
    if shards:
        lanes_by_source.append(lanes.make_shard_lanes(select_server_requests(trace), shards))
    return lanes_by_source


def find_run_window(trace: Trace) -> Window:
    """From the first step's begin to the last one's end."""
    if trace.steps.is_empty():
        return Window(start_ns=0, end_ns=1)
    begin, end = trace.steps["start_ns"].min(), trace.steps["end_ns"].max()
    return Window(cast("int", begin), cast("int", end))


def with_pyramid(run: Run) -> Run:
    """Build the levels of a run's scene in memory."""
    built = pyramid.build_colours(run.scene.span_lanes, run.scene.run_window)
    return replace(run, scene=replace(run.scene, colour_pyramid=built))


@dataclass(frozen=True)
class Glance:
    """Sizes of a run, its usual step, its efficiency and its verdict.

    `pace_ns` is how long steps took over the run: of neighbouring steps, the longest.
    """

    ranks: int
    shards: int
    steps: int
    duration_ns: int
    step_ns: int
    efficiency: float | None
    faults: int
    verdict: str
    state: State
    pace_ns: tuple[int, ...]

    @classmethod
    def from_run(cls, run: Run) -> Glance:
        """Summarize a run."""
        lengths_ns = (run.step_windows["end_ns"] - run.step_windows["start_ns"]).to_numpy()
        efficiency = run.report.efficiency
        return cls(
            ranks=run.workers.height,
            shards=run.shards.height,
            steps=len(lengths_ns),
            duration_ns=run.scene.run_window.width_ns,
            step_ns=int(np.median(lengths_ns)) if len(lengths_ns) else 0,
            efficiency=efficiency.achieved if efficiency else None,
            faults=sum(finding.category == "fault" for finding in run.report.findings),
            verdict=run.report.verdict.headline,
            state=run.report.verdict.state,
            pace_ns=tuple(
                int(lengths_ns[steps].max()) for steps in split_evenly(len(lengths_ns), MOST_POINTS)
            ),
        )


def save_glance(run: Run, folder: Path) -> None:
    """Write the glance of a run into the folder of its index."""
    (folder / GLANCE_FILE).write_text(json.dumps(asdict(Glance.from_run(run))))


def load_glance(folder: Path) -> Glance:
    """Read what `save_glance` wrote."""
    row = loads((folder / GLANCE_FILE).read_text())
    return Glance(**(row | {"pace_ns": tuple(row["pace_ns"])}))

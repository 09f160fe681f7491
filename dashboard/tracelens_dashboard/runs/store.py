"""One open run: what pages draw from, and the trace behind it, opened when spans are asked for."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.caching import cached_property
from tracelens.errors import TraceLensError
from tracelens.lod import narrowed, opening, residuals, run_data, search
from tracelens.lod.run_data import Run
from tracelens.lod.step_times import CategoryTimes, StepTimes
from tracelens.lod.tracks.group import Group, make_tracks
from tracelens.lod.tracks.names import Names
from tracelens.lod.tracks.recorded_spans import KEPT_PROCESSES, RecordedSpans
from tracelens.lod.viewport import Window
from tracelens.memory import cache_last_results

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from tracelens.arrays import Array
    from tracelens.lod.lanes import Lane
    from tracelens.lod.opening import Progress
    from tracelens.lod.query import Scene
    from tracelens.lod.residuals import Residuals
    from tracelens.lod.search import Call
    from tracelens.model.choice import Choice
    from tracelens.model.result import Report
    from tracelens.model.trace import Trace
    from tracelens.replay.whatif import Replay

_SPAN_BYTES: Final = 150  # of a span with all its columns, in a trace that has no index
KEPT_GROUPS: Final = 16  # processes whose tracks stay in memory
_CELL_BYTES: Final = 16  # of a rank in a step: its compute time, and its residual


class Store:
    """What every page asks. Nothing in it changes, so requests may share it.

    What reads spans or events raises `UnusableInput` if the run's files cannot be read any more.
    """

    def __init__(
        self,
        run: Run,
        source: Path | Trace,
        run_key: str | None = None,
        run_of_all_ranks: Run | None = None,
    ) -> None:
        self.run = run
        self.run_of_all_ranks = run_of_all_ranks or run  # of which some are shown
        self.run_key = run_key  # what addresses call it, where several runs are served
        self.span_source = source
        self.refinement_thread: Thread | None = None
        self._recorded_spans = RecordedSpans(run, source)
        self.span_names = Names.from_run(run, self._recorded_spans.read_events)
        self.open_process_tracks = cache_last_results(self._make_tracks, KEPT_GROUPS)
        self.measure_step_times = cache_last_results(self._measure_steps, KEPT_PROCESSES)

    @classmethod
    def from_trace(cls, trace: Trace, report: Report) -> Store:
        """Keep a trace and its report in memory."""
        return cls(run_data.with_pyramid(Run.from_trace(trace, report)), trace)

    @classmethod
    def open(
        cls,
        path: Path | None,
        read: Callable[[], Trace],
        progress: Progress = opening.without_progress,
        run_key: str | None = None,
    ) -> Store:
        """Open a trace by its index; without one, read and analyze it, and make one.

        `path` is None where what `read` opens is more than what lies there. A run with an index
        reads its spans from the files at `path`, another one from the trace in memory.
        """
        store = cls.from_index(path, run_key) if path else None
        if store:
            return store
        trace = read()
        analyzed_run = opening.explain_trace(trace, progress)
        has_index = analyzed_run.scene.colour_pyramid and analyzed_run.scene.colour_pyramid.folder
        return cls(analyzed_run, path if has_index and path else trace, run_key)

    @classmethod
    def from_index(cls, path: Path, run_key: str | None = None) -> Store | None:
        """Open a trace by its index; None without one."""
        run = opening.open_indexed(path)
        return cls(run, path, run_key) if run else None

    def narrow(self, choice: Choice, progress: Progress, run_key: str | None) -> Store:
        """Return the store of some ranks and steps; for some steps, the run is analyzed again.

        Raises:
            InvalidArgument: it has none of them.
        """
        run_of_all_ranks, source = self.run_of_all_ranks, self.span_source
        if choice.step_ranges is not None:
            with progress("reading"):
                source = narrowed.select_steps(self._recorded_spans.open_trace(), choice)
            run_of_all_ranks = opening.explain_trace(source, progress)
        narrowed_run = run_of_all_ranks
        if choice.rank_ranges is not None:
            narrowed_run = narrowed.select_ranks(run_of_all_ranks, choice)
        return Store(narrowed_run, source, run_key, run_of_all_ranks)

    @property
    def held_bytes(self) -> int:
        """Estimate the memory of the run in bytes, without mapped files and decoded blocks."""
        span_bytes = (
            0 if isinstance(self.span_source, Path) else self.report.summary.spans * _SPAN_BYTES
        )
        residual_bytes = (
            _CELL_BYTES * len(self.category_times.ranks) * len(self.category_times.steps)
        )
        return span_bytes + residual_bytes + _estimate_bytes(self.run)

    def refine(self) -> None:
        """Start to make the levels that the run's index lacks."""
        self.refinement_thread = Thread(target=self._refine, daemon=True)
        self.refinement_thread.start()

    def _refine(self) -> None:
        opening.refine_index(self.run)
        with suppress(TraceLensError):  # whoever searches reads it
            _ = self.span_names.name_table

    @property
    def path(self) -> Path | None:
        """Where the run was read from; None where it was not read from a path."""
        return self.span_source if isinstance(self.span_source, Path) else self.span_source.path

    @property
    def name(self) -> str:
        """The run's name: its folder's."""
        return self.run.name

    @property
    def report(self) -> Report:
        """What was found; of a run that came from an index without the analyses' results."""
        return self.run.report

    @property
    def scene(self) -> Scene:
        """What the timeline draws."""
        return self.run.scene

    @property
    def category_times(self) -> CategoryTimes:
        """Every rank's time in every step by category."""
        return self.run.category_times

    def analysis_table(self, name: str) -> pl.DataFrame:
        """Return an analysis' table (`tracelens.lod.run_data`); empty if it was not run."""
        return self.run.tables.get(name, pl.DataFrame())

    @property
    def step_windows(self) -> pl.DataFrame:
        """Each step's usual window: step, start_ns, end_ns."""
        return self.run.step_windows

    @property
    def run_window(self) -> Window:
        """From the first step's begin to the last one's end."""
        return self.run.scene.run_window

    @property
    def residuals(self) -> Residuals:
        """Every rank's residual in every step, of all its compute time."""
        return self.run.residuals

    def window_since_start(self, window: Window) -> Window:
        """Return a window of absolute times in ns since the run's start."""
        return window.shift(-self.run_window.start_ns)

    def residuals_of_category(self, category: str) -> Residuals:
        """Return every rank's residual in every step, of one category of its compute time."""
        # Where some ranks are shown, their peers are nevertheless all ranks of their stage.
        all_ranks = self.run_of_all_ranks.residuals
        measured = residuals.measure(
            self.run_of_all_ranks.category_times, [category], all_ranks.stage_numbers
        )
        if self.run_of_all_ranks is self.run:
            return measured
        return measured.select_ranks(np.searchsorted(all_ranks.ranks, self.ranks))

    def peer_ranks_of(self, rank: int, candidates: Iterable[int]) -> list[int]:
        """Return the ranks of the same stage; where it has no other, all others, as findings do."""
        others = sorted(set(candidates) - {rank})
        stages = self._stage_by_rank
        return [other for other in others if stages[other] == stages[rank]] or others

    @cached_property
    def _stage_by_rank(self) -> dict[int, int]:
        return dict(self.run.workers.select("rank", "stage").iter_rows())

    def _measure_steps(self, categories: tuple[str, ...]) -> StepTimes:
        return StepTimes.from_times(self.category_times, categories)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """All worker ranks, in order."""
        return tuple(self.run.workers["rank"])

    @cached_property
    def host_by_rank(self) -> dict[int, str]:
        """The host of every worker rank."""
        return dict(self.run.workers.select("rank", "host").iter_rows())

    @property
    def shard_count(self) -> int:
        """How many parameter-server shards there are."""
        return self.run.shards.height

    @property
    def uses_devices(self) -> bool:
        """Whether devices decide how the time of ranks is accounted for."""
        efficiency = self.report.efficiency
        return efficiency is not None and efficiency.devices is not None

    @cached_property
    def flagged_ranks(self) -> frozenset[int]:
        """The ranks that faults name."""
        faults = [finding for finding in self.report.findings if finding.category == "fault"]
        return frozenset(rank for fault in faults for rank in fault.ranks)

    def scene_rows_of_streams(self, rank: int) -> list[int]:
        """Return the rows of a rank's streams in the scene."""
        rows = enumerate(self.scene.span_lanes.owners)
        return [row for row, lane in rows if lane.role == "device" and lane.rank == rank]

    @cached_property
    def replay(self) -> Replay:
        """The run as it can be replayed; all its events are read for it, once.

        Raises:
            InvalidArgument: it has no steps.
        """
        from tracelens.verdicts.whatif import replay_with_fixes  # noqa: PLC0415 - an index opens without analyses

        return replay_with_fixes(self._recorded_spans.open_trace())

    def window_of_steps(self, first: int, last: int) -> Window | None:
        """Return the absolute window of steps `first` to `last`; None without such steps."""
        windows = self.step_windows.filter(pl.col("step").is_between(first, last))
        if not windows.height:
            return None
        return Window(int(windows["start_ns"][0]), int(windows["end_ns"][-1]))

    def scene_row_of_rank(self, rank: int) -> int | None:
        """Return the row of a worker rank in the scene."""
        return self.ranks.index(rank) if rank in self.ranks else None

    def _make_tracks(self, scene_row: int) -> Group:
        """Make the tracks of the process of a row of the scene; a shard trains on no thread."""
        lane = self.scene.span_lanes.owners[scene_row]
        thread_rows = self.run.threads.filter(process=lane.process)
        name_by_thread = dict(thread_rows.select("thread", "name").iter_rows())
        events = self._recorded_spans.read_cached_events(lane.process)
        training_thread, samples = None, None
        if lane.role != "ps":
            of_process = pl.col("process") == lane.process
            worker = self.run.workers.row(by_predicate=of_process, named=True)
            training_thread = worker["training_thread"]
            samples = self.samples_of_rank(lane.rank) if lane.rank in self.sampled_ranks else None
        return make_tracks(
            events,
            lane,
            name_by_thread,
            training_thread,
            run_window=self.run_window,
            samples=samples,
        )

    @cached_property
    def scene_row_by_key(self) -> dict[str, int]:
        """The row below which the tracks of each process are shown, by what addresses call it."""
        rows = enumerate(self.scene.span_lanes.owners)
        return {key_of(lane): row for row, lane in rows if lane.role != "device"}

    @cached_property
    def sampled_ranks(self) -> tuple[int, ...]:
        """The ranks whose stacks were sampled."""
        workers = self.run.workers.filter(
            pl.col("process").is_in(list(self._recorded_spans.sampled_processes))
        )
        return tuple(workers["rank"])

    def samples_of_rank(self, rank: int) -> pl.DataFrame:
        """Return the samples of a rank's training thread, as in `Trace.samples`, by time."""
        worker = self.run.workers.row(by_predicate=pl.col("rank") == rank, named=True)
        samples = self._recorded_spans.read_samples(worker["process"])
        return samples.filter(pl.col("thread") == worker["training_thread"])

    def find_call_at(self, rank: int, moment_ns: int) -> Call | None:
        """Return the collective that a rank was in at a moment: of several, what ends first."""
        return search.find_call_at(self.run.call_rows, rank, moment_ns)

    def events_of_process(self, process: int) -> pl.DataFrame:
        """Return all recorded events of a process, a row each."""
        return self._recorded_spans.read_cached_events(process)

    def find_event_at(
        self, scene_row: int, track_index: int, moment_ns: int
    ) -> dict[str, Any] | None:
        """Return the event of the span in a track of an opened process; None without one."""
        event_row = self.find_event_row(scene_row, track_index, moment_ns)
        if event_row < 0:
            return None
        events = self._recorded_spans.read_cached_events(
            self.scene.span_lanes.owners[scene_row].process
        )
        return events.row(event_row, named=True)

    def find_event_row(self, scene_row: int, track_index: int, moment_ns: int) -> int:
        """Return the row, among its process's events, of a track's span; -1 without an event."""
        tracks = self.open_process_tracks(scene_row)
        item = tracks.scene.span_lanes.find_item_at(track_index, moment_ns)
        return -1 if item is None else int(tracks.event_row_by_item[item])

    def find_call_of_span(self, scene_row: int, track_index: int, moment_ns: int) -> Call | None:
        """Return the collective that a span in a track of an opened process is; None for others."""
        event = self.find_event_at(scene_row, track_index, moment_ns)
        if event is None or event["communicator"] is None or event["seq"] is None:
            return None
        return search.find_call(self.run.call_rows, event["communicator"], event["seq"])

    def find_call_around(self, window: Window) -> Call | None:
        """Return the collective whose arrivals and last exit are nearest to a window (absolute)."""
        return search.find_call_around(self.run.call_rows, window.start_ns, window.end_ns)

    def spans_of_process(self, process: int) -> pl.DataFrame:
        """Return all recorded spans of a process, a row each."""
        return self._recorded_spans.read_spans(process)

    def spans_of_scene_row(self, scene_row: int, tracks: Collection[int] | None) -> pl.DataFrame:
        """Return the spans (rows) of a row of the scene: of a device's stream, or a process."""
        # `tracks` are those of its process that count, None for all.
        lane = self.scene.span_lanes.owners[scene_row]
        if lane.role == "device":
            return self._spans_on_stream(lane.process, lane.track_name)
        if tracks is None:
            return self._recorded_spans.read_spans(lane.process)
        all_tracks = self.open_process_tracks(scene_row)
        offsets = all_tracks.scene.span_lanes.item_offsets
        event_rows_by_track = [
            all_tracks.event_row_by_item[offsets[track] : offsets[track + 1]]
            for track in sorted(tracks)
            if track < len(all_tracks.scene.span_lanes)
        ]
        event_rows = np.unique(np.concatenate([np.empty(0, np.int64), *event_rows_by_track]))
        is_event = event_rows >= 0  # samples and queues are drawn, and no events
        events = self._recorded_spans.read_cached_events(lane.process)[event_rows[is_event]]
        return events.filter(type="span")

    def spans_open_at(self, process: int, moment_ns: int) -> pl.DataFrame:
        """Return the spans that a process had open at a moment, a row each, the outermost first."""
        ends_later = pl.col("end_ns").is_null() | (pl.col("end_ns") > moment_ns)
        is_open = (pl.col("start_ns") <= moment_ns) & ends_later
        open_spans = self._recorded_spans.read_spans(process).filter(is_open)
        return open_spans.sort("thread", "depth", "start_ns")

    def stream_spans_at(self, process: int, stream: str, moment_ns: int) -> pl.DataFrame:
        """Return the spans that a device's stream was in at a moment, with the device's times."""
        is_running = (pl.col("start_ns") <= moment_ns) & (pl.col("end_ns") > moment_ns)
        return self._spans_on_stream(process, stream).filter(is_running).sort("depth", "start_ns")

    def _spans_on_stream(self, process: int, stream: str) -> pl.DataFrame:
        """Return the spans of a device's stream, a row each, with the device's times."""
        stream_threads = self.run.threads.drop_nulls("device")
        stream_numbers = stream_threads.filter(process=process, name=stream)["thread"]
        device_end_ns = pl.col("device_start_ns") + pl.col("device_duration_ns")
        is_on_stream = pl.col("stream").is_in(stream_numbers.implode())
        spans = self._recorded_spans.read_spans(process).filter(is_on_stream)
        return spans.with_columns(start_ns="device_start_ns", end_ns=device_end_ns)


def key_of(lane: Lane) -> str:
    """Name the process of a row as addresses do."""
    return f"ps{lane.rank}" if lane.role == "ps" else str(lane.rank)


def subject_of(lane: Lane) -> str:
    """Name the process, or the stream, of a row as people do."""
    if lane.role == "ps":
        return f"PS shard {lane.rank}"
    return f"rank {lane.rank}" + (f", {lane.track_name}" if lane.role == "device" else "")


def _estimate_bytes(value: Any) -> int:
    """Return the memory of arrays and tables in a value; mapped files count as none."""
    if isinstance(value, np.ndarray):
        return 0 if _is_mapped(value) else value.nbytes
    if isinstance(value, pl.DataFrame):
        return int(value.estimated_size())
    if isinstance(value, dict):  # one that reads when it is asked holds little
        return sum(map(_estimate_bytes, value.values()))
    if isinstance(value, tuple | list):
        return sum(_estimate_bytes(item) for item in value)
    if is_dataclass(value):
        return sum(_estimate_bytes(getattr(value, field.name)) for field in fields(value))
    return 0


def _is_mapped(array: Array) -> bool:
    base: Any = array
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    return isinstance(base, np.memmap)

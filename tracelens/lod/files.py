"""A `Run` as files: lanes (`lane_files`), tables and matrices as Arrow, arrays, and the rest as JSON.

The report is written without the analyses' results, and read again without loss.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.caching import cached_property
from tracelens.distil.kept_report import load_report, save_report
from tracelens.lod import residuals, run_data
from tracelens.lod.block_columns import load_array
from tracelens.lod.lane_files import load_lanes, save_lanes
from tracelens.lod.lanes import Lane
from tracelens.lod.pyramid import COLOURS, PEAKS, Bins, Pyramid, choose_levels, make_level_path
from tracelens.lod.query import Scene
from tracelens.lod.run_data import Run
from tracelens.lod.step_matrices import load_matrices, save_matrices
from tracelens.lod.step_times import EVERY, CategoryTimes, Sums
from tracelens.lod.viewport import Window
from tracelens.schema.json_text import loads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tracelens.lod.lanes import Lanes
    from tracelens.model.clock_map import ClockMap

    OnProgress = Callable[[int, int], None]

# File names of the tables of a run, and the fields of `Run` that they hold.
TABLES: Final = {
    "workers": "workers", "shards": "shards", "threads": "threads",
    "windows": "step_windows", "loads": "shard_loads", "traffic": "shard_traffic",
}  # fmt: skip
_MOVED: Final = "clocks.json"
_CALLS: Final = "calls.parquet"
ROWS_OF_GROUP: Final = 1 << 15  # of which least and greatest values are known
_TIMES: Final = "times.arrow"
_PRESENT: Final = "present"  # column: whether a rank took part in a step
_SUMS: Final = "sums.npy"
_COUNTS: Final = "counts.npy"
_PEERS: Final = "peers.npy"
_FACTS: Final = "run.json"
_REPORT: Final = "report.json"


def save_run(run: Run, parts: Iterable[Lanes], folder: Path, on_progress: OnProgress) -> None:
    """Write everything but the colour levels into an empty folder.

    The spans come part by part, in the order of the run's lanes, which need not hold them.
    """
    scene, times = run.scene, run.category_times
    assert scene.peak_pyramid
    for level in scene.peak_pyramid.levels:
        np.save(
            make_level_path(folder, PEAKS, level), scene.peak_pyramid.rows_by_width[level.width_ns]
        )
    for file_name, field_name in TABLES.items():
        _write_table(getattr(run, field_name), folder / f"{file_name}.arrow")
    for name, table in run.tables.items():
        _write_table(table, _table_file(folder, name))
    save_report(run.report, folder / _REPORT)
    run_data.save_glance(run, folder)
    offsets, span_words = save_lanes(parts, folder, "spans", len(scene.span_lanes), on_progress)
    save_lanes([scene.step_lanes], folder, "steps", len(scene.span_lanes))
    colour_levels = choose_levels(offsets, scene.run_window)
    _save_times(run, folder)
    facts = {
        "name": run.name,
        "whole": [scene.run_window.start_ns, scene.run_window.end_ns],
        "step_ns": scene.median_step_ns,
        "lanes": [
            [lane.process, lane.role, lane.rank, lane.track_name]
            for lane in scene.span_lanes.owners
        ],
        "words": {"spans": span_words, "steps": scene.step_lanes.item_names},
        "ladders": {
            COLOURS: [asdict(level) for level in colour_levels],
            PEAKS: [asdict(level) for level in scene.peak_pyramid.levels],
        },
        "times": {
            "ranks": times.ranks,
            "steps": times.steps,
            "categories": times.categories,
            "usual_ns": times.median_step_ns,
            "ceiling_ns": run.residuals.ceiling_ns,
        },
    }
    _save_calls(run.call_rows, folder / _CALLS)
    (folder / _MOVED).write_text(json.dumps(_describe_clock_maps(run.clock_maps)))
    (folder / _FACTS).write_text(json.dumps(facts))


def load_run(folder: Path) -> Run:
    """Open what `save_run` wrote; what grows with a run is read when it is looked at.

    Raises:
        OSError: it lacks something, such as a table that pages have come to need since.
    """
    facts = loads((folder / _FACTS).read_text())
    lanes = tuple(Lane(*row) for row in facts["lanes"])
    scene = Scene(
        span_lanes=load_lanes(folder, "spans", lanes, facts["words"]["spans"]),
        step_lanes=load_lanes(folder, "steps", lanes, facts["words"]["steps"]),
        run_window=Window(*facts["whole"]),
        median_step_ns=facts["step_ns"],
        peak_pyramid=_load_pyramid(PEAKS, folder, facts),
        colour_pyramid=_load_pyramid(COLOURS, folder, facts),
    )
    times = _load_times(folder, facts["times"])
    peers_ns, ceiling_ns = load_array(folder / _PEERS), facts["times"]["ceiling_ns"]
    tables = {
        field_name: pl.read_ipc(folder / f"{file_name}.arrow")
        for file_name, field_name in TABLES.items()
    }
    stage = tables["workers"]["stage"].to_numpy()
    (folder / _CALLS).stat()
    return Run(
        name=facts["name"],
        report=load_report(folder / _REPORT),
        tables=_Tables(folder),
        category_times=times,
        measure_residuals=lambda: residuals.restore(times, peers_ns, ceiling_ns, stage),
        scene=scene,
        clock_maps=_ClockMaps(folder / _MOVED),
        call_rows=pl.scan_parquet(folder / _CALLS),
        **tables,
    )


class _Tables(Mapping[str, pl.DataFrame]):
    """The tables of analyses, each read on first use."""

    def __init__(self, folder: Path) -> None:
        """Check that all files exist.

        Raises:
            FileNotFoundError: one that pages need is missing.
        """
        self._files = {name: _table_file(folder, name) for name in run_data.KEPT_TABLES}
        for file in self._files.values():
            file.stat()
        self._read: dict[str, pl.DataFrame] = {}

    def __getitem__(self, name: str) -> pl.DataFrame:
        if name not in self._read:
            self._read[name] = pl.read_ipc(self._files[name])
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _write_table(table: pl.DataFrame, file: Path) -> None:
    table.write_ipc(file, compression="zstd")


def _table_file(folder: Path, name: str) -> Path:
    return folder / f"table-{name}.arrow"


def _describe_clock_maps(clock_maps: Mapping[int, ClockMap]) -> dict[str, Any]:
    """Return the distinct clock maps as plain values, and the index of each process's map."""
    map_by_id = {id(clock_map): clock_map for clock_map in clock_maps.values()}
    index_of_map = {map_id: index for index, map_id in enumerate(map_by_id)}
    rows = [clock_map.row for clock_map in map_by_id.values()]
    return {
        "clocks": rows,
        "processes": [
            [process, index_of_map[id(clock_map)]] for process, clock_map in clock_maps.items()
        ],
    }


class _ClockMaps(Mapping[int, "ClockMap"]):
    """The clock map of each process, read when the spans of a process are first shown."""

    def __init__(self, file: Path) -> None:
        """Check that the file exists.

        Raises:
            FileNotFoundError: it is missing.
        """
        file.stat()
        self._file = file

    @cached_property
    def _maps_by_process(self) -> dict[int, ClockMap]:
        """The clock map of each process, as `_describe_clock_maps` stored them."""
        from tracelens.model.clock_map import ClockMap  # noqa: PLC0415 - an index opens without it
        from tracelens.readers.native.recordings import build_vanished_error  # noqa: PLC0415 - as above

        try:
            facts = loads(self._file.read_text())
        except FileNotFoundError as missing:  # the index went with its trace
            raise build_vanished_error(self._file.parents[2]) from missing
        maps = [ClockMap.from_row(row) for row in facts["clocks"]]
        return {process: maps[clock] for process, clock in facts["processes"]}

    def __getitem__(self, process: int) -> ClockMap:
        return self._maps_by_process[process]

    def __iter__(self) -> Iterator[int]:
        return iter(self._maps_by_process)

    def __len__(self) -> int:
        return len(self._maps_by_process)


def _load_pyramid(kind: str, folder: Path, facts: dict[str, Any]) -> Pyramid:
    return Pyramid(kind, tuple(Bins(**level) for level in facts["ladders"][kind]), folder)


def _save_calls(calls: pl.LazyFrame, file: Path) -> None:
    """Write the calls, a row a rank, in small row groups, so that looking one up reads few of them."""
    calls.sink_parquet(file, compression="zstd", row_group_size=ROWS_OF_GROUP)


def _save_times(run: Run, folder: Path) -> None:
    """Write the times of ranks in steps, their sums, and the peers' compute time."""
    times = run.category_times
    matrices = dict(zip(times.categories, (ns[EVERY] for ns in times.matrices_ns), strict=True))
    save_matrices(folder / _TIMES, {_PRESENT: times.is_present[EVERY], **matrices})
    np.save(folder / _SUMS, times.sums_over_ranks.total_ns)
    np.save(folder / _COUNTS, times.sums_over_ranks.rank_counts)
    np.save(folder / _PEERS, run.residuals.peers_ns)


def _load_times(folder: Path, facts: dict[str, Any]) -> CategoryTimes:
    """Read what `_save_times` wrote; `facts` name the ranks, steps and categories."""
    ranks, steps, categories = (tuple(facts[name]) for name in ("ranks", "steps", "categories"))
    matrices = load_matrices(folder / _TIMES, len(steps), len(ranks))
    return CategoryTimes(
        ranks=ranks,
        steps=steps,
        categories=categories,
        matrices_ns=[matrices[category] for category in categories],
        is_present=matrices[_PRESENT],
        median_step_ns=facts["usual_ns"],
        stored_sums=Sums(load_array(folder / _SUMS), load_array(folder / _COUNTS)),
    )

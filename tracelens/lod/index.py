"""The level-of-detail index: a run on disk, made once, opened in a moment, with every level mapped.

It is written without levels into a folder that gets its name when it can be used, as `tracelens analyze`
does; levels are added, coarse ones first, each complete or absent. So a file that exists is complete,
also after a kill, and an index can be read while it is refined. One process writes at a time.

The folder is named after what the index was made of, so a stale one is simply not found; where it is,
`tracelens.distil.places` decides.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.distil.places import (
    compute_fingerprint,
    list_directories_to_keep,
    list_index_directories,
    list_outdated_directories,
    lock_directory,
    may_keep,
)
from tracelens.lod import files, pyramid
from tracelens.schema.ownership import is_ours

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tracelens.lod.files import OnProgress
    from tracelens.lod.lanes import Lanes
    from tracelens.lod.pyramid import Bins
    from tracelens.lod.run_data import Run


COARSE_BINS: Final = 4096  # levels up to this fineness are there when a run is shown
UNFINISHED: Final = ".unfinished"
_KINDS: Final = {pyramid.COLOURS: "levels", pyramid.PEAKS: "peaks", "spans": "columns"}


def _no_progress(_done: int, _total: int) -> None:
    """Ignore progress."""


def find(trace: Path) -> Path | None:
    """Return the index of a trace in its present state, or None."""
    trace_fingerprint = compute_fingerprint(trace)
    if trace_fingerprint is None:
        return None
    folders = (
        directory / trace_fingerprint
        for directory in list_index_directories(trace)
        if is_ours(directory)
    )
    return next((folder for folder in folders if folder.is_dir() and not folder.is_symlink()), None)


def write(
    trace: Path, run: Run, parts: Iterable[Lanes], on_progress: OnProgress = _no_progress
) -> Path | None:
    """Write the index of a trace without its levels; indexes of its earlier states are removed.

    `parts` are the run's lanes from top to bottom. None where no index can be kept: the recording goes
    on, or nothing can be written.
    """
    trace_fingerprint = compute_fingerprint(trace)
    if trace_fingerprint is None:
        return None
    for directory in list_directories_to_keep(trace):
        with suppress(OSError), lock_directory(directory):
            folder = directory / trace_fingerprint
            if not folder.is_dir():
                _clear(trace, directory, trace_fingerprint)
                _write(run, parts, directory, folder, on_progress)
            return folder
    return None


def refine(
    folder: Path, on_progress: OnProgress = _no_progress, most_bins: int | None = None
) -> None:
    """Add missing levels to an index, unless nothing may be kept.

    `most_bins` is how fine they are to be; None = all.

    Raises:
        OSError: they cannot be written.
    """
    if not may_keep() or not _list_missing_levels(files.load_run(folder), folder, most_bins):
        return
    with lock_directory(folder.parent):
        run = files.load_run(folder)
        missing_levels = _list_missing_levels(run, folder, most_bins)
        if missing_levels:
            _add_levels(run, missing_levels, folder, on_progress)


def load(folder: Path) -> Run | None:
    """Open an index; one that is damaged is removed, so that it is made anew."""
    try:
        return files.load_run(folder)
    except (OSError, ValueError, LookupError, TypeError, pl.exceptions.PolarsError):
        shutil.rmtree(folder, ignore_errors=True)
        return None


def remove(trace: Path) -> None:
    """Remove the index of a trace in its present state, so that it is made anew."""
    folder = find(trace)
    if folder:
        with lock_directory(folder.parent):
            shutil.rmtree(folder, ignore_errors=True)


def count_bytes(folder: Path) -> dict[str, int]:
    """Return the bytes of an index: levels of colours, peaks, columns of spans, and all the rest."""
    bytes_by_kind = {"levels": 0, "peaks": 0, "columns": 0, "rest": 0}
    for file in folder.iterdir():
        kind = _KINDS.get(file.stem.partition("-")[0], "rest")
        bytes_by_kind[kind] += file.stat().st_size
    return bytes_by_kind


def _write(
    run: Run, parts: Iterable[Lanes], directory: Path, folder: Path, on_progress: OnProgress
) -> None:
    unfinished = directory / UNFINISHED
    unfinished.mkdir()
    files.save_run(run, parts, unfinished, on_progress)
    unfinished.rename(folder)


def _list_missing_levels(run: Run, folder: Path, most_bins: int | None) -> list[Bins]:
    assert run.scene.colour_pyramid
    levels = run.scene.colour_pyramid.levels
    wanted_levels = [level for level in levels if most_bins is None or level.count <= most_bins]
    return [
        level for level in wanted_levels or levels[-1:] if not _level_file(folder, level).exists()
    ]


def _add_levels(run: Run, levels: list[Bins], folder: Path, on_progress: OnProgress) -> None:
    """Write some neighbouring levels; each gets its name when it is whole."""
    lanes = run.scene.span_lanes
    shapes = {_level_file(folder, level): (len(lanes), level.count) for level in levels}
    drafts = [
        np.lib.format.open_memmap(_draft_file(file), "w+", np.uint8, shape)
        for file, shape in shapes.items()
    ]
    for lane in range(len(lanes)):
        for draft, row in zip(drafts, pyramid.build_lane_rows(lanes, lane, levels), strict=True):
            draft[lane] = row
        on_progress(lane + 1, len(lanes))
    for file, draft in zip(shapes, drafts, strict=True):
        draft.flush()
        _draft_file(file).rename(file)


def _level_file(folder: Path, level: Bins) -> Path:
    return pyramid.make_level_path(folder, pyramid.COLOURS, level)


def _draft_file(file: Path) -> Path:
    return file.with_name(f".{file.name}{UNFINISHED}")


def _clear(trace: Path, directory: Path, trace_fingerprint: str) -> None:
    """Remove indexes of earlier states and older formats, and the rest of a killed process's work."""
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink() and trace_fingerprint not in entry.name:
            shutil.rmtree(entry)
    for older in filter(is_ours, list_outdated_directories(trace)):
        shutil.rmtree(older, ignore_errors=True)

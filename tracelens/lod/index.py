"""The level-of-detail index: a run on disk, made once, opened in a moment, with every level mapped.

It is written coarse levels first into a folder that gets its name when it can be used; finer levels
are added, each complete or absent. So whatever is found is complete, also after a kill, and an index can
be looked at while it is refined. One process writes at a time.

The folder is named after what the index was made of, so a stale one is simply not found: beside the
trace, as `index-v1/FINGERPRINT`, or, where that cannot be written, in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.conversion.lock import locked
from tracelens.lod import files, pyramid
from tracelens.schema.ownership import is_ours, mark
from tracelens.schema.vocabulary import ELSEWHERE_SUFFIX, SEGMENTS_SUFFIX, TRACE_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracelens.lod.files import OnProgress
    from tracelens.lod.lanes import Lanes
    from tracelens.lod.pyramid import Bins
    from tracelens.lod.run_data import Run


# Of the index format: to be raised when the files of an index change, or when the analyses come to other
# findings on the same trace; `tests/lod/test_index_layout.py` holds the files to it.
INDEX_VERSION: Final = 2
_FOLDERS: Final = "index-v"
INDEX_FOLDER: Final = f"{_FOLDERS}{INDEX_VERSION}"
_LIVE_SUFFIXES: Final = (SEGMENTS_SUFFIX, ELSEWHERE_SUFFIX)
COARSE_BINS: Final = 4096  # levels up to this fineness are there from the beginning
UNFINISHED: Final = ".unfinished"
_KINDS: Final = {pyramid.COLOURS: "levels", pyramid.PEAKS: "peaks", "spans": "columns"}
_LOCK: Final = ".lock"
_PATIENCE_S: Final = 600.0


def fingerprint(trace: Path) -> str | None:
    """Return a digest of the files of a trace folder.

    None where there is nothing to keep an index of: a recording that still goes on, or no folder.
    """
    if not trace.is_dir():
        return None
    visible = [file for file in trace.iterdir() if not file.name.startswith(".")]
    files = sorted(file for file in visible if file.name.endswith(TRACE_SUFFIX))
    converted = {file.name.removesuffix(TRACE_SUFFIX) for file in files}
    live = (file for file in visible if file.name.endswith(_LIVE_SUFFIXES))
    if not files or any(file.stem not in converted for file in live):
        return None
    return _digest(_described(files, trace))


def index_places(trace: Path) -> list[Path]:
    """Return where the indexes of a trace may be, the best place first."""
    beside = [trace / INDEX_FOLDER] if _is_utf8(trace) else []  # polars writes nowhere else
    return [*beside, _cache() / INDEX_FOLDER / _cached_name(trace)]


def _is_utf8(trace: Path) -> bool:
    try:
        str(trace).encode()
    except UnicodeEncodeError:
        return False
    return True


def outdated(trace: Path) -> list[Path]:
    """Return the places where older versions of the index format have kept indexes of a trace."""
    return [
        place
        for root, inside in ((trace, ""), (_cache(), _cached_name(trace)))
        for version in range(1, INDEX_VERSION)
        for place in [root / f"{_FOLDERS}{version}" / inside]
        if place.is_dir()
    ]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracelens"


def _cached_name(trace: Path) -> str:
    return _digest([str(trace.resolve())])


def _described(files: Iterable[Path], root: Path) -> list[str]:
    return [
        f"{file.relative_to(root)} {state.st_size} {state.st_mtime_ns}"
        for file in files
        for state in [file.stat()]
    ]


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256(os.fsencode("\n".join(lines))).hexdigest()[:32]


def _no_progress(_done: int, _total: int) -> None:
    """Ignore progress."""


def find(trace: Path) -> Path | None:
    """Return the index of a trace as it is now; None if there is none."""
    made_of = fingerprint(trace)
    if made_of is None:
        return None
    found = (place / made_of for place in index_places(trace) if is_ours(place))
    return next((folder for folder in found if folder.is_dir() and not folder.is_symlink()), None)


def write(
    trace: Path, run: Run, parts: Iterable[Lanes], on_progress: OnProgress = _no_progress
) -> Path | None:
    """Write the index of a trace without its finer levels; indexes of its earlier states are removed.

    `parts` are the run's lanes from top to bottom. None where no index can be kept: the recording goes
    on, or nothing can be written.
    """
    made_of = fingerprint(trace)
    if made_of is None:
        return None
    for place in index_places(trace):
        with suppress(OSError), alone(place):
            folder = place / made_of
            if not folder.is_dir():
                _clear(trace, place, made_of)
                _write(run, parts, place, folder, on_progress)
            return folder
    return None


def refine(folder: Path, on_progress: OnProgress = _no_progress) -> None:
    """Add the finer levels to an index; does nothing where they are there.

    Raises:
        OSError: they cannot be written.
    """
    with alone(folder.parent):
        run = files.load_run(folder)
        missing = [r for r in _ladder(run) if not _level(folder, r).exists()]
        if missing:
            _add_levels(run, missing, folder, on_progress)


def load(folder: Path) -> Run | None:
    """Open an index; one that is damaged is removed, so that it is made anew."""
    try:
        return files.load_run(folder)
    except (OSError, ValueError, LookupError, TypeError, pl.exceptions.PolarsError):
        shutil.rmtree(folder, ignore_errors=True)
        return None


def remove(trace: Path) -> None:
    """Remove the index of a trace as it is now, if there is one, so that it is made anew."""
    folder = find(trace)
    if folder:
        with alone(folder.parent):
            shutil.rmtree(folder, ignore_errors=True)


def size(folder: Path) -> dict[str, int]:
    """Return the bytes of an index: levels of colours, peaks, columns of spans, and all the rest."""
    found = {"levels": 0, "peaks": 0, "columns": 0, "rest": 0}
    for file in folder.iterdir():
        kind = _KINDS.get(file.name.split("-")[0], "rest")
        found[kind] += file.stat().st_size
    return found


def _write(
    run: Run, parts: Iterable[Lanes], place: Path, folder: Path, on_progress: OnProgress
) -> None:
    unfinished = place / UNFINISHED
    unfinished.mkdir()
    files.save_run(run, parts, unfinished, on_progress)
    written = files.load_run(unfinished)
    rungs = _ladder(written)
    coarse = [rung for rung in rungs if rung.count <= COARSE_BINS] or list(rungs[-1:])
    _add_levels(written, coarse, unfinished, on_progress)
    unfinished.rename(folder)


def _ladder(run: Run) -> tuple[Bins, ...]:
    assert run.scene.pyramid
    return run.scene.pyramid.ladder


def _add_levels(run: Run, rungs: list[Bins], folder: Path, on_progress: OnProgress) -> None:
    """Write some neighbouring levels; each gets its name when it is whole."""
    lanes = run.scene.lanes
    shapes = {_level(folder, rung): (len(lanes), rung.count) for rung in rungs}
    drafts = [
        np.lib.format.open_memmap(_draft(file), "w+", np.uint8, shape)
        for file, shape in shapes.items()
    ]
    for lane in range(len(lanes)):
        for draft, row in zip(drafts, pyramid.of_lane(lanes, lane, rungs), strict=True):
            draft[lane] = row
        on_progress(lane + 1, len(lanes))
    for file, draft in zip(shapes, drafts, strict=True):
        draft.flush()
        _draft(file).rename(file)


def _level(folder: Path, rung: Bins) -> Path:
    return pyramid.file_of(folder, pyramid.COLOURS, rung)


def _draft(file: Path) -> Path:
    return file.with_name(f".{file.name}{UNFINISHED}")


def _clear(trace: Path, place: Path, made_of: str) -> None:
    """Remove indexes of what the trace was before, of older formats, and what a killed process left."""
    for entry in place.iterdir():
        if entry.is_dir() and not entry.is_symlink() and made_of not in entry.name:
            shutil.rmtree(entry)
    for older in filter(is_ours, outdated(trace)):
        shutil.rmtree(older, ignore_errors=True)


def _make(place: Path) -> None:
    """Make a folder of indexes, with its marker, unless there is one.

    It is moved to its place when it is marked, so that it is never found without.
    """
    if is_ours(place):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    unmarked = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        mark(unmarked)
        unmarked.rename(place)
    except OSError:
        shutil.rmtree(unmarked, ignore_errors=True)
        if not is_ours(place):
            raise


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """Wait until no other process writes there.

    Raises:
        OSError: nothing can be written there, or TraceLens did not make it.
    """
    _make(place)
    lock = place / _LOCK
    lock.touch()
    with locked(lock, _PATIENCE_S):
        yield

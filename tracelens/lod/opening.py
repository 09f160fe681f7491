"""From a trace to a `Run`: by its index, or by explaining it."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.distil import kept_report
from tracelens.distil.places import compute_fingerprint
from tracelens.lod import index, run_data
from tracelens.lod.run_data import Run, make_run_and_lanes, with_pyramid
from tracelens.memory import free_unused_memory

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tracelens.lod.run_data import Glance
    from tracelens.model.result import Report
    from tracelens.model.trace import Trace

    OnProgress = Callable[[int, int], None]
    Progress = Callable[[str], AbstractContextManager[OnProgress]]

MEMORY: Final = 1 << 30  # about how much explaining takes, unless another amount is given


@contextmanager
def without_progress(_what: str) -> Iterator[OnProgress]:
    """Ignore progress."""
    yield lambda _done, _total: None


def open_indexed(path: str | os.PathLike[str]) -> Run | None:
    """Open the index of a trace in its present state, or return None."""
    folder = index.find(Path(path))
    return index.load(folder) if folder else None


def read_glance(path: str | os.PathLike[str]) -> Glance | None:
    """Return the glance in a trace's index; None without an index, or if it is damaged."""
    folder = index.find(Path(path))
    try:
        return run_data.load_glance(folder) if folder else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def explain_trace(
    trace: Trace, progress: Progress = without_progress, memory: int | None = MEMORY
) -> Run:
    """Explain a trace, and keep its report, and what pages need in an index, if there is a place for it.

    Finer levels of an index are left for later (`refine_index`); without an index, all are in memory.
    `memory` is what `analyze` may take, in bytes.
    """
    from tracelens.verdicts.report import analyze  # noqa: PLC0415 - an index opens without it

    with progress("analyzing") as on_progress:
        report = analyze(trace, on_progress, memory=memory)
    # A part of a run is not what lies at its path.
    index_directory = trace.path if trace.choice.is_whole_run else None
    if index_directory:
        kept_report.keep(index_directory, report)
    folder = write_index(index_directory, trace, report, progress) if index_directory else None
    if folder:
        index.refine(folder, most_bins=index.COARSE_BINS)
    indexed_run = index.load(folder) if folder else None
    return indexed_run or with_pyramid(Run.from_trace(trace, report))


def write_index(
    trace_path: Path, trace: Trace, report: Report, progress: Progress = without_progress
) -> Path | None:
    """Write the index of a whole trace without its levels, unless it exists, and return its folder.

    None where no index can be kept.
    """
    existing_folder = index.find(trace_path)
    if existing_folder or compute_fingerprint(trace_path) is None:
        return existing_folder
    with progress("indexing") as on_progress:
        free_unused_memory()  # what analyses left: memory is at its most where both meet
        run, parts = make_run_and_lanes(trace, report)
        free_unused_memory()
        return index.write(trace_path, run, parts, on_progress)


def refine_index(run: Run, progress: Progress = without_progress) -> None:
    """Add the levels that the index of a run still lacks; pages use each as soon as it exists."""
    pyramid = run.scene.colour_pyramid
    if pyramid and pyramid.folder and not pyramid.is_complete:
        with progress("refining the index") as on_progress:
            index.refine(pyramid.folder, on_progress, index.COARSE_BINS)
            index.refine(pyramid.folder, on_progress)

"""From a trace to a `Run`: by its index, or by explaining it."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.distil import kept_report
from tracelens.lod import index, run_data
from tracelens.lod.run_data import Run, outlined, with_pyramid

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tracelens.lod.run_data import Glance
    from tracelens.model.trace import Trace

    OnProgress = Callable[[int, int], None]
    Progress = Callable[[str], AbstractContextManager[OnProgress]]


@contextmanager
def without_progress(_what: str) -> Iterator[OnProgress]:
    """Ignore progress."""
    yield lambda _done, _total: None


def indexed(path: str | os.PathLike[str]) -> Run | None:
    """Open the index of a trace; None if there is none, or not of the trace as it is now."""
    folder = index.find(Path(path))
    return index.load(folder) if folder else None


def glanced(path: str | os.PathLike[str]) -> Glance | None:
    """Return a trace at a glance, by its index; None where there is none, or a damaged one."""
    folder = index.find(Path(path))
    try:
        return run_data.load_glance(folder) if folder else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def explained(trace: Trace, progress: Progress = without_progress) -> Run:
    """Explain a trace, and keep its report, and what pages need in an index, if there is a place for it.

    Finer levels of an index are left for later (`refined`); a run without an index has all in memory.
    """
    from tracelens.analyses import analyze  # noqa: PLC0415 - an index opens without it

    with progress("analyzing") as on_progress:
        report = analyze(trace, on_progress)
    place = trace.path if trace.choice.is_all else None  # a part is not what lies there
    if place:
        kept_report.keep(place, report)
    run, parts = outlined(trace, report)
    with progress("indexing") as on_progress:
        folder = index.write(place, run, parts, on_progress) if place else None
        kept = index.load(folder) if folder else None
        return kept or with_pyramid(Run.of(trace, report))


def refined(run: Run, progress: Progress = without_progress) -> None:
    """Add the levels that the index of a run still lacks; they show as soon as they are there."""
    pyramid = run.scene.pyramid
    if pyramid and pyramid.folder and not pyramid.complete:
        with progress("refining the index") as on_progress:
            index.refine(pyramid.folder, on_progress)

"""Where the index of a trace lives, and what it was made of.

An index stands in a folder named after what it was made of, so a stale one is simply not found: beside
the trace, as `index-v2/FINGERPRINT`, or in the user's cache, where that cannot be written or is a folder
that TraceLens did not make. Folders of indexes have the marker of `schema.ownership`: none without a
valid one is read, written to or cleared, so that an index in a stranger's trace is never believed. The
number is that of the index format; where and when TraceLens was installed changes nothing.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.schema.vocabulary import ELSEWHERE_SUFFIX, SEGMENTS_SUFFIX, TRACE_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

# Of the index format: to be raised when the files of an index change, or when the analyses come to other
# findings on the same trace; `tests/lod/test_index_layout.py` holds the files to it.
VERSION: Final = 2
_FOLDERS: Final = "index-v"
FOLDER: Final = f"{_FOLDERS}{VERSION}"
_UNFINISHED: Final = (SEGMENTS_SUFFIX, ELSEWHERE_SUFFIX)


def fingerprint(trace: Path) -> str | None:
    """Return what changes with the files of a trace folder.

    None where there is nothing to keep an index of: a recording that still goes on, or no folder.
    """
    if not trace.is_dir():
        return None
    visible = [file for file in trace.iterdir() if not file.name.startswith(".")]
    files = sorted(file for file in visible if file.name.endswith(TRACE_SUFFIX))
    converted = {file.name.removesuffix(TRACE_SUFFIX) for file in files}
    live = (file for file in visible if file.name.endswith(_UNFINISHED))
    if not files or any(file.stem not in converted for file in live):
        return None
    return _digest(_described(files, trace))


def places(trace: Path) -> list[Path]:
    """Return where the indexes of a trace may be, the best place first."""
    beside = [trace / FOLDER] if _is_utf8(trace) else []  # polars writes nowhere else
    return [*beside, _cache() / FOLDER / _cached_name(trace)]


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
        for version in range(1, VERSION)
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

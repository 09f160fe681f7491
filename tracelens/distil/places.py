"""Directories for indexes and reports of a trace, and the fingerprint of the trace's state.

In a folder named after what it was made of, so that a stale one is simply not found: in the trace
folder, as `index-v*/FINGERPRINT`, if it is the user's own and can be written, else in the user's cache.
One process writes there at a time. All verbs keep alike; with `--no-keep` none does.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.containment import list_left_out
from tracelens.conversion.lock import hold_lock
from tracelens.schema.life import JOURNALS
from tracelens.schema.ownership import is_ours, mark
from tracelens.schema.vocabulary import ELSEWHERE_SUFFIX, SEGMENTS_SUFFIX, TRACE_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Of the index format: to be raised when the files of an index change, or when the analyses come to other
# findings on the same trace; `tests/lod/test_index_layout.py` holds the files to it.
INDEX_VERSION: Final = 17
_FOLDERS: Final = "index-v"
INDEX_FOLDER: Final = f"{_FOLDERS}{INDEX_VERSION}"
_LIVE_SUFFIXES: Final = (SEGMENTS_SUFFIX, ELSEWHERE_SUFFIX)
_LOCK: Final = ".lock"
_PATIENCE_S: Final = 600.0

# In the environment, as limits are: "0" = nothing is kept, by this process and those that it starts.
_VARIABLE: Final = "TRACELENS_KEEP_RESULTS"


@contextmanager
def keeping_nothing() -> Iterator[None]:
    """Write neither reports nor indexes meanwhile; existing ones are still read."""
    value_before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "0"
    try:
        yield
    finally:
        if value_before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = value_before


def may_keep() -> bool:
    """Return True if reports and indexes may be written."""
    return os.environ.get(_VARIABLE) != "0"


def compute_fingerprint(trace: Path) -> str | None:
    """Return a digest of a trace folder's files, and of the names of those left out.

    None where there is nothing to keep an index of: a recording that still goes on, or no folder.
    """
    if not trace.is_dir():
        return None
    with os.scandir(trace) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    files = [entry for entry in visible if entry.name.endswith(TRACE_SUFFIX)]
    converted = {file.name.removesuffix(TRACE_SUFFIX) for file in files}
    live_files = (Path(entry.name) for entry in visible if entry.name.endswith(_LIVE_SUFFIXES))
    if not files or any(entry.stem not in converted for entry in live_files):
        return None
    files += [entry for entry in visible if fnmatch(entry.name, JOURNALS)]
    return _digest([*sorted(map(_describe_state, files)), *list_left_out(trace)])


def list_index_directories(trace: Path) -> list[Path]:
    """Return the directories in which indexes of a trace may lie, the best first."""
    beside = [trace / INDEX_FOLDER] if _is_utf8(trace) else []  # polars writes nowhere else
    return [*beside, cache_directory() / INDEX_FOLDER / _make_cached_name(trace)]


def list_directories_to_keep(trace: Path) -> list[Path]:
    """Return the directories for a new index of a trace, the best first: none with `--no-keep`.

    A folder of another user, or with a recording of another user, is left as it is, also by a user who
    may write there.
    """
    if not may_keep():
        return []
    places = list_index_directories(trace)
    return places if _is_own(trace) else places[-1:]


def _is_own(trace: Path) -> bool:
    if not hasattr(os, "geteuid"):
        return True
    with os.scandir(trace) as entries:
        files = [entry for entry in entries if entry.name.endswith(TRACE_SUFFIX)]
    states = (trace.stat(), *(file.stat(follow_symlinks=False) for file in files))
    return all(state.st_uid == os.geteuid() for state in states)


def _is_utf8(trace: Path) -> bool:
    try:
        str(trace).encode()
    except UnicodeEncodeError:
        return False
    return True


def list_outdated_directories(trace: Path) -> list[Path]:
    """Return the places where older versions of the index format have kept indexes of a trace."""
    return [
        directory
        for root, inside in ((trace, ""), (cache_directory(), _make_cached_name(trace)))
        for version in range(1, INDEX_VERSION)
        for directory in [root / f"{_FOLDERS}{version}" / inside]
        if directory.is_dir()
    ]


def cache_directory() -> Path:
    """Return TraceLens' folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracelens"


def _make_cached_name(trace: Path) -> str:
    return _digest([str(trace.resolve())])


def _describe_state(file: os.DirEntry[str]) -> str:
    state = file.stat()
    return f"{file.name} {state.st_size} {state.st_mtime_ns}"


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256(os.fsencode("\n".join(lines))).hexdigest()[:32]


def _make_marked(directory: Path) -> None:
    """Make a folder of indexes, with its marker, unless it exists.

    It is moved to its place when it is marked, so that it is never found without.
    """
    if is_ours(directory):
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    unmarked = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        mark(unmarked)
        unmarked.rename(directory)
    except OSError:
        shutil.rmtree(unmarked, ignore_errors=True)
        if not is_ours(directory):
            raise


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Wait until no other process writes there.

    Raises:
        OSError: nothing can be written there, or TraceLens did not make it.
    """
    _make_marked(directory)
    lock = directory / _LOCK
    lock.touch()
    with hold_lock(lock, _PATIENCE_S):
        yield

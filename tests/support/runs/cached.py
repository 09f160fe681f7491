"""Disk cache of simulated runs and reports: one run of the tests makes each of them once.

Each version of the code has a directory of its own: a change of any source file of `tracelens` starts an
empty one, so no test ever sees a result of other code. Directories older than a day are removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
import shutil
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).parents[3]
CACHE_DIRECTORY: Final = ROOT / ".pytest_cache" / "runs"
DAY_S: Final = 86_400

T = TypeVar("T")


def load_or_make(key: str, make: Callable[[], T]) -> T:
    """Return the cached value of `key`; call `make` and store its value if there is none.

    Processes that ask for the same key at the same time wait for the first one.
    """
    name = hashlib.sha256(key.encode()).hexdigest()
    directory = _version_directory()
    path = directory / f"{name}.pickle"
    with (directory / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            stored: T = pickle.loads(path.read_bytes())  # noqa: S301 - this function wrote it
            return stored
        value = make()
        draft = path.with_suffix(".draft")
        draft.write_bytes(pickle.dumps(value))
        draft.rename(path)
        return value


@cache
def _version_directory() -> Path:
    """Make the directory of this version of the code, and remove old ones."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "tracelens").rglob("*.py")):
        digest.update(path.read_bytes())
    # Reports say where the code does not: an optional C extension may be there or not.
    digest.update(os.environ.get("TRACELENS_NATIVE", "").encode())
    directory = CACHE_DIRECTORY / digest.hexdigest()[:16]
    directory.mkdir(parents=True, exist_ok=True)
    for other in CACHE_DIRECTORY.iterdir():
        if other != directory and other.stat().st_mtime < time.time() - DAY_S:
            shutil.rmtree(other, ignore_errors=True)
    return directory


def fingerprint(folder: Path) -> str:
    """Return a text that changes whenever a file of a trace folder is written."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return "\n".join(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files)

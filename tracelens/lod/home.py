"""Where the index of a trace lives, and what it was made of.

An index stands in a folder named after what it was made of, so a stale one is simply not found: beside
the trace, as `index-v1/FINGERPRINT`, or, where that cannot be written, in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.schema.vocabulary import ELSEWHERE_SUFFIX, SEGMENTS_SUFFIX, TRACE_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

VERSION: Final = 1
FOLDER: Final = f"index-v{VERSION}"
_UNFINISHED: Final = (SEGMENTS_SUFFIX, ELSEWHERE_SUFFIX)


def fingerprint(trace: Path) -> str | None:
    """Return what changes with the files of a trace folder, or with the code that explains them.

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
    return _digest([_code(), *_described(files, trace)])


def places(trace: Path) -> list[Path]:
    """Return where the indexes of a trace may be, the best place first."""
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    beside = [trace / FOLDER] if _is_utf8(trace) else []  # polars writes nowhere else
    return [*beside, cached / "tracelens" / FOLDER / _digest([str(trace.resolve())])]


def _is_utf8(trace: Path) -> bool:
    try:
        str(trace).encode()
    except UnicodeEncodeError:
        return False
    return True


@cache
def _code() -> str:
    """Say which code explained a trace: another one may come to other findings."""
    root = Path(__file__).parents[1]
    return _digest(_described(sorted(root.rglob("*.py")), root))


def _described(files: Iterable[Path], root: Path) -> list[str]:
    return [
        f"{file.relative_to(root)} {state.st_size} {state.st_mtime_ns}"
        for file in files
        for state in [file.stat()]
    ]


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256(os.fsencode("\n".join(lines))).hexdigest()[:32]

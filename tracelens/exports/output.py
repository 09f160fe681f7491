"""New files and folders that are complete or absent; existing ones are never changed.

The output gets its name when it is complete, and is removed after a failure.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from tracelens.errors import InvalidArgument
from tracelens.model.fmt import shown_name
from tracelens.schema.ownership import MARKER_FILE, mark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_UNFINISHED: Final = ".unfinished"


@contextmanager
def open_new_file(target: Path) -> Iterator[Path]:
    """Yield a file to write, which is called `target` afterwards.

    Raises:
        InvalidArgument: there is something at `target`, or it cannot be written.
    """
    if os.path.lexists(target):
        raise InvalidArgument(
            f"'{shown_name(target)}' exists, and nothing is written over: name another file with --out."
        )
    draft = target.with_name(f".{target.name}.{os.getpid()}{_UNFINISHED}")
    try:
        yield draft
        draft.rename(target)
    except OSError as error:
        raise _refuse(target, error) from error
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def make_new_folder(target: Path, option: str = "--out") -> Iterator[Path]:
    """Yield a folder to write into, whose entries are in `target` afterwards; `option` named it.

    `target` is made, with the marker of folders that TraceLens makes, or is an empty folder.

    Raises:
        InvalidArgument: there is something at `target`, or it cannot be written.
    """
    is_new = not os.path.lexists(target)
    if not is_new and not _is_empty(target):
        raise InvalidArgument(
            f"'{shown_name(target)}' exists and is no empty folder, and nothing is written over: name "
            f"another folder with {option}."
        )
    is_complete = False
    try:
        if is_new:
            target.mkdir()
            mark(target)
        draft = target / _UNFINISHED
        draft.mkdir()
        yield draft
        for entry in sorted(draft.iterdir()):
            entry.rename(target / entry.name)
        draft.rmdir()
        is_complete = True
    except OSError as error:
        raise _refuse(target, error) from error
    finally:
        if not is_complete:
            _clear(target, is_new=is_new)


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [entry for entry in path.rglob("*") if entry.is_file()]
    return sum(file.stat().st_size for file in files)


def _is_empty(folder: Path) -> bool:
    return not folder.is_symlink() and folder.is_dir() and not any(folder.iterdir())


def _clear(target: Path, *, is_new: bool) -> None:
    """Remove what was written, and the folder if it was made for that."""
    shutil.rmtree(target / _UNFINISHED, ignore_errors=True)
    if is_new:
        with suppress(OSError):
            (target / MARKER_FILE).unlink(missing_ok=True)
            target.rmdir()


def _refuse(target: Path, error: OSError) -> InvalidArgument:
    reason = os.strerror(error.errno) if error.errno else str(error).strip().rstrip(".")
    return InvalidArgument(
        f"'{shown_name(target)}' cannot be written ({reason}): nothing of it is left; choose another "
        "place with --out, or make room there."
    )

"""New files and folders that are there whole or not at all; nothing that exists is written to.

What is written is called by its name when all of it is there, and removed if that fails.
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

__all__ = ["new_file", "new_folder", "size_of"]

_UNFINISHED: Final = ".unfinished"


@contextmanager
def new_file(place: Path) -> Iterator[Path]:
    """Yield a file to write, which is called `place` afterwards.

    Raises:
        InvalidArgument: there is something at `place`, or it cannot be written.
    """
    if os.path.lexists(place):
        raise InvalidArgument(
            f"'{shown_name(place)}' exists, and nothing is written over: name another file with --out."
        )
    draft = place.with_name(f".{place.name}.{os.getpid()}{_UNFINISHED}")
    try:
        yield draft
        draft.rename(place)
    except OSError as error:
        raise _refused(place, error) from error
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def new_folder(place: Path, option: str = "--out") -> Iterator[Path]:
    """Yield a folder to write into, whose entries are in `place` afterwards; `option` named it.

    `place` is made, with the marker of folders that TraceLens makes, or is an empty folder.

    Raises:
        InvalidArgument: there is something at `place`, or it cannot be written.
    """
    made = not os.path.lexists(place)
    if not made and not _is_empty(place):
        raise InvalidArgument(
            f"'{shown_name(place)}' exists and is no empty folder, and nothing is written over: name "
            f"another folder with {option}."
        )
    done = False
    try:
        if made:
            place.mkdir()
            mark(place)
        draft = place / _UNFINISHED
        draft.mkdir()
        yield draft
        for entry in sorted(draft.iterdir()):
            entry.rename(place / entry.name)
        draft.rmdir()
        done = True
    except OSError as error:
        raise _refused(place, error) from error
    finally:
        if not done:
            _clear(place, made=made)


def size_of(place: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [place] if place.is_file() else [entry for entry in place.rglob("*") if entry.is_file()]
    return sum(file.stat().st_size for file in files)


def _is_empty(place: Path) -> bool:
    return not place.is_symlink() and place.is_dir() and not any(place.iterdir())


def _clear(place: Path, *, made: bool) -> None:
    """Remove what was written, and the folder if it was made for that."""
    shutil.rmtree(place / _UNFINISHED, ignore_errors=True)
    if made:
        with suppress(OSError):
            (place / MARKER_FILE).unlink(missing_ok=True)
            place.rmdir()


def _refused(place: Path, error: OSError) -> InvalidArgument:
    reason = os.strerror(error.errno) if error.errno else str(error).strip().rstrip(".")
    return InvalidArgument(
        f"'{shown_name(place)}' cannot be written ({reason}): nothing of it is left; choose another "
        "place with --out, or make room there."
    )

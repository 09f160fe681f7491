"""Which links in a trace are followed: those to files within it, as others may lead anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.errors import NotATrace
from tracelens.model.fmt import shown_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def select_files_inside(files: Iterable[Path], trace: Path) -> list[Path]:
    """Leave out the files of a trace that `check_inside` refuses."""
    return [file for file in files if _is_inside(file, trace)]


def _is_inside(file: Path, trace: Path) -> bool:
    try:
        check_inside(file, trace)
    except NotATrace:
        return False
    return True


def check_inside(path: Path, trace: Path) -> None:
    """Refuse a file or folder of a trace that is, or is reached through, a link to outside of it.

    Raises:
        NotATrace: it is a link, also one that leads nowhere.
    """
    if path.parent == trace and not path.is_symlink():
        return
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise NotATrace("it is a link that leads nowhere") from error
    if not real.is_relative_to(trace.resolve()):
        raise NotATrace(
            f"it is a link out of the trace, to {shown_name(real)}: put the file itself there to have "
            "it read"
        )


def check_no_links(folder: Path) -> None:
    """Refuse a segments folder that is a link or holds one, as the recorder makes none.

    Raises:
        NotATrace: it does.
    """
    if folder.is_symlink():
        raise NotATrace("it is a link, expected a folder")
    for entry in folder.glob("*"):
        if entry.is_symlink():
            raise NotATrace(f"it holds a link, '{shown_name(entry.name)}', expected only files")

"""Links in a trace folder: none is followed out of it, and none at all among segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.errors import NotATrace
from tracelens.words import shown_name

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_inside", "check_no_links"]


def check_inside(path: Path, trace: Path) -> None:
    """Refuse a file or folder of a trace that is, or lies behind, a link to outside of it.

    Raises:
        NotATrace: it is one, or a link that leads nowhere.
    """
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

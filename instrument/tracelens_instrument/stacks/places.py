"""Where code lies, in short: from the folder that it is imported from, or from that of the training."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["shortener"]


def shortener(folders: Iterable[str] | None = None) -> Callable[[str], str]:
    """Return what names files from the innermost of these folders in which they lie.

    So a frame reads ``torch/nn/modules/linear.py`` rather than where this machine keeps PyTorch, reads
    the same on all hosts, and tells no user's home.

    Args:
        folders: Default: the working directory and what modules are imported from.
    """
    inside = [str(Path.cwd()), *sys.path] if folders is None else folders
    prefixes = {f"{Path(folder).absolute()}{os.sep}" for folder in inside if folder}
    longest_first = sorted(prefixes - {2 * os.sep}, key=len, reverse=True)

    @functools.cache
    def short(file: str) -> str:
        for prefix in longest_first:
            if file.startswith(prefix):
                return file[len(prefix) :]
        return file

    return short

"""Where code lies, in short: from the folder that it is imported from, or from that of the training."""

from __future__ import annotations

import functools
import os
import sys
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
    inside = [os.getcwd(), *sys.path] if folders is None else folders
    prefixes = [os.path.join(os.path.abspath(folder), "") for folder in inside if folder]
    longest_first = sorted({prefix for prefix in prefixes if prefix != os.sep}, key=len, reverse=True)

    @functools.cache
    def short(file: str) -> str:
        for prefix in longest_first:
            if file.startswith(prefix):
                return file[len(prefix) :]
        return file

    return short

"""What every reader offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.trace import Trace

Progress = Callable[[int, int], None]  # (done, total), in processes or files


class Reader(Protocol):
    """Reads one format; never guesses what a file does not say, never runs what it holds."""

    @property
    def name(self) -> str:
        """Name the format in a few words."""

    def sniff(self, path: Path) -> bool:
        """Say whether `path` looks like this format, without reading much of it."""

    def read(self, path: Path, progress: Progress | None = None) -> Trace:
        """Read it; parts that cannot be read become notes, and the rest is read all the same.

        Raises:
            UnusableInput: nothing of it can be read.
        """

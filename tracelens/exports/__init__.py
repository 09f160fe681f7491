"""A selection of a run in the formats that other programs open: siblings with `size` and `write`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from tracelens.exports import perfetto

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.exports.selection import Selection, Size

__all__ = ["EXPORTS", "ExportFormat"]
EXPORTS: Final[dict[str, ExportFormat]] = {"perfetto": perfetto}


class ExportFormat(Protocol):
    """A module that writes a selection; `SUFFIX` ends its files' names, `MOST_EVENTS` is its limit."""

    SUFFIX: str
    MOST_EVENTS: int

    def size(self, chosen: Selection, /) -> Size:
        """Return how many events it holds and about how large it will be."""

    def write(self, chosen: Selection, /) -> Iterator[str]:
        """Write it, piece by piece."""

"""Notes of a trace, apart from it: who reads no events needs no frames, and no library of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """A problem or choice that the readers of a report should know, in one sentence.

    `kind` is one of: unreadable, truncated, running, incomplete, dropped, chosen, renumbered, restarted,
    clock, desync, unjudged, unrecorded, plugin, assumed, and table: what was made of a table's columns
    and words. Assumed is the rank of a file, chosen what the user asked to leave out. `ranks` are
    those whose fault it is, where that can be told.
    """

    file: str
    sentence: str
    kind: str = "unreadable"
    ranks: tuple[int, ...] = ()

"""What a reader made of a file that something else recorded, and what therefore cannot be concluded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["EQUAL_BYTES", "Gap", "Recognition", "join_recognitions"]

# In these every rank gives equally many bytes; elsewhere they may differ (a root, variable counts).
EQUAL_BYTES: Final = ("allreduce",)


@dataclass(frozen=True)
class Gap:
    """Something that the file does not hold, or that the reader does not know.

    `missing` is a clause on what there is not, such as "no step is marked". `unknown` completes "not
    known: ", such as "which rank is slow". `advice` is a sentence on what to record, or tell, next
    time. A run with a gap that `is_decisive` is never called healthy: its verdict is inconclusive unless
    a fault was found, and also then if the gap `voids_faults`, as what is missing looks like one.
    `hides_waits`: what waits for other ranks is in spans of something else.
    """

    missing: str
    unknown: str
    advice: str
    is_decisive: bool = True
    hides_waits: bool = False
    voids_faults: bool = False


@dataclass(frozen=True)
class Recognition:
    """What was recognised of a run that something else recorded.

    `format` names it as its users do. `facts` (name, text) are those that the trace itself does not show
    (ranks, groups, steps, collectives, phases and streams are counted from it); `left_out` says, one
    phrase a sort, what was read and is in no event, with how many there were. `gaps` are in order of
    weight. All ranks of a call give equally many bytes to `ops_of_equal_bytes`. A snapshot holds the
    last calls before it was taken: what is open stood still, and shares of time are not known.
    """

    format: str
    facts: tuple[tuple[str, str], ...] = ()
    left_out: tuple[tuple[str, int], ...] = ()
    gaps: tuple[Gap, ...] = ()
    ops_of_equal_bytes: tuple[str, ...] = EQUAL_BYTES
    is_snapshot: bool = False

    @property
    def hides_waits(self) -> bool:
        """Whether the useful time may contain hidden waits, so that it is an upper bound."""
        return any(gap.hides_waits for gap in self.gaps)


def join_recognitions(parts: list[Recognition | None]) -> Recognition | None:
    """Join the recognitions of all parts of a run; None if all are TraceLens' own recordings."""
    recognitions = [recognition for recognition in parts if recognition is not None]
    if not recognitions:
        return None
    left_out: dict[str, int] = {}
    for recognition in recognitions:
        for phrase, count in recognition.left_out:
            left_out[phrase] = left_out.get(phrase, 0) + count
    return Recognition(
        format=", ".join(dict.fromkeys(recognition.format for recognition in recognitions)),
        facts=tuple(
            dict.fromkeys(fact for recognition in recognitions for fact in recognition.facts)
        ),
        left_out=tuple(left_out.items()),
        gaps=tuple(dict.fromkeys(gap for recognition in recognitions for gap in recognition.gaps)),
        ops_of_equal_bytes=min(
            (recognition.ops_of_equal_bytes for recognition in recognitions), key=len
        ),
        is_snapshot=all(recognition.is_snapshot for recognition in recognitions),
    )

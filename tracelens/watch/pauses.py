"""Pauses that are no hang: what a training does while no step ends, and how long that may take."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens.accounting.life.pauses import pause_by_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracelens.schema.side import Definition

__all__ = [
    "BETWEEN_STEPS",
    "END",
    "PAUSES_BY_SPAN",
    "START",
    "STEP",
    "PauseLimits",
    "SeenPauses",
    "pause_of",
    "pause_of_stack",
]

S: Final = 10**9  # ns: a second [definition]
START: Final = "start"  # until the first steps are over: start-up, the first batch, compilation
STEP: Final = "step"
BETWEEN_STEPS: Final = "between steps"
END: Final = "end"  # a rank has ended its recording: the others may save, evaluate and clean up
PAUSES_BY_SPAN: Final = ("checkpoint", "evaluation", "data")
_PAUSES_BY_FRAME: Final = {  # frames of Python, as ``function (file:line)``
    re.compile(r"^_?save|checkpoint|\(torch/serialization\.py|\(safetensors/"): "checkpoint",
    re.compile(r"^_?(eval|valid|test_(loop|epoch|step))"): "evaluation",
    re.compile(r"\((torch/_(dynamo|inductor)|triton)/"): START,
}
MIN_STALL_NS: Final = 5 * S  # ns: a shorter pause is never a stall [chosen]
STEPS_PER_STALL: Final = 10  # times the usual step: a stall is longer [chosen]
# times the longest pause of the same kind so far: a stall is longer [chosen]
LONGEST_PAUSES_PER_STALL: Final = 2
# pauses: so many show how long those of a kind take [chosen]
MIN_PAUSES_TO_KNOW: Final = 8
# ns: before that a pause of a kind is a stall only if it is longer than this [chosen]
UNKNOWN_LIMITS_NS: Final[Mapping[str, int]] = {
    START: 300 * S,
    "checkpoint": 300 * S,
    "evaluation": 300 * S,
    "data": 60 * S,
    BETWEEN_STEPS: 30 * S,
    END: 300 * S,
}


def pause_of(definition: Definition) -> str | None:
    """Return the kind of pause that a span of this definition is; None if it is no pause."""
    if definition.kind in {"checkpoint", "data"}:
        return definition.kind
    return pause_by_name(definition.name) if definition.kind == "user" else None


def pause_of_stack(frames: Iterable[str]) -> str | None:
    """Return the kind of pause that a stack shows; None if it shows none.

    Args:
        frames: As ``function (file:line)``.
    """
    for frame in frames:
        for pattern, pause in _PAUSES_BY_FRAME.items():
            if pattern.search(frame):
                return pause
    return None


class SeenPauses(NamedTuple):
    """How many pauses of a kind have ended, and how long the longest took."""

    ended_count: int = 0
    longest_ns: int = 0

    def with_pauses(self, count: int, longest_ns: int) -> SeenPauses:
        """Return these and more pauses."""
        return SeenPauses(self.ended_count + count, max(self.longest_ns, longest_ns))


class PauseLimits:
    """How long each kind of pause may last before it is a stall, from those that were seen."""

    def __init__(self) -> None:
        self._seen: dict[str, SeenPauses] = {}
        self._last_end_ns: dict[str, int] = {}

    def learn(self, kind: str, begin_ns: int, end_ns: int) -> None:
        """Take note of a pause that was no stall; those of several ranks at one time count once."""
        is_another = begin_ns >= self._last_end_ns.get(kind, 0)
        ended_pauses = self._seen.get(kind, SeenPauses())
        self._seen[kind] = ended_pauses.with_pauses(int(is_another), end_ns - begin_ns)
        self._last_end_ns[kind] = max(end_ns, self._last_end_ns.get(kind, 0))

    def learn_spans(self, kind: str, spans: SeenPauses) -> None:
        """Take note of the pauses that a rank has marked by spans so far."""
        count, longest_ns = self._seen.get(kind, SeenPauses())
        self._seen[kind] = SeenPauses(
            max(count, spans.ended_count), max(longest_ns, spans.longest_ns)
        )

    def limit_ns(self, kind: str, usual_step_ns: int) -> int:
        """Return the minimum length of a stall for pauses of this kind, ns.

        Args:
            kind: One of `PAUSES_BY_SPAN`, or a constant of this module.
            usual_step_ns: The median step; 0 before the first step.
        """
        ended_pauses = self._seen.get(kind, SeenPauses())
        is_known = ended_pauses.ended_count >= MIN_PAUSES_TO_KNOW and kind != START
        return max(
            MIN_STALL_NS,
            STEPS_PER_STALL * usual_step_ns,
            LONGEST_PAUSES_PER_STALL * ended_pauses.longest_ns,
            0 if is_known else UNKNOWN_LIMITS_NS.get(kind, 0),
        )

"""What a right report says of a planted loss, and whether a report says so.

The rules follow the definition of the verdict: a loss of 10 % or more never leaves HEALTHY, and from
15 % on the verdict is of the right sort and names the place. Places are judged leniently: by the
headline and the first findings, and by any of several words for a phase.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.shapes.noise import Grid

MIN_SHARE_OF_VERDICT: Final = 0.10  # smaller losses may leave a run healthy
MIN_SHARE_OF_PLACE: Final = 0.15  # smaller losses need no right place
FIRST_FINDINGS: Final = 3  # findings of a report that are read, or two more than ranks in turns
MAX_SHARE_OF_STRETCH: Final = 0.7  # of the run; the steps of longer losses are not judged

NOT_HEALTHY: Final = frozenset({"fault", "bottleneck", "inconclusive"})
FAULT_OR_BOTTLENECK: Final = frozenset({"fault", "bottleneck"})
DASHES: Final = "\u2013-"
STATES: Final = {"faults": "fault"}  # words of earlier reports

WORDS: Final[dict[str, tuple[str, ...]]] = {
    "data": ("data", "data_stall", "input", "loader", "loading"),
    "forward": ("forward",),
    "backward": ("backprop", "backward"),
    "optimizer": ("update", "optimizer"),
    "gap": ("uninstrumented", "uncovered", "no span covers"),
    "gc": ("gc", "gc_stall", "garbage"),
    "checkpoint": ("checkpoint", "checkpoints", "checkpointing", "checkpoint_stall"),
    "communication": (
        *("communication", "exposed_communication", "transfer", "transfers", "congestion"),
        *("small_messages", "small messages", "bandwidth", "reduction", "allreduce", "all-reduce"),
        *("slow_link", "link", "links", "bucket", "buckets", "messages"),
    ),
    "imbalance": ("load_imbalance", "imbalance", "forward", "backprop", "backward", "lengths"),
    "stage": ("stage_imbalance", "stage", "forward", "backprop", "backward"),
    "device": ("backprop", "backward", "user", "other compute", "device"),
    "idle": ("idle", "device", "devices", "launch", "launches", "kernels", "host"),
    "any": (),
}


@dataclass(frozen=True)
class Place:
    """Which ranks lose time, whether all at once, in which steps, and words for the phase."""

    ranks: frozenset[int]
    world: int
    at_once: bool
    steps: tuple[int, int] | None
    words: tuple[str, ...]
    is_link: bool = False  # `ranks` are the ends of a link, of which one is enough

    @classmethod
    def from_weights(cls, weights: Grid, world: int, words: tuple[str, ...]) -> Place:
        """Read the place off the weights of a loss. One row of weights stands for all ranks."""
        is_lost = np.broadcast_to(weights, (world, weights.shape[1])) > 0
        steps = np.flatnonzero(is_lost.any(axis=0))
        ranks = frozenset(np.flatnonzero(is_lost.any(axis=1)).tolist())
        at_once = bool((is_lost.sum(axis=0)[steps] == len(ranks)).all())
        stretch = int(steps[0]), int(steps[-1])
        is_judged = stretch[1] - stretch[0] < MAX_SHARE_OF_STRETCH * weights.shape[1]
        return cls(ranks, world, at_once, stretch if is_judged else None, words)


@dataclass(frozen=True)
class Statement:
    """What a headline or a finding names; None where it does not say."""

    text: str
    ranks: frozenset[int] | None
    steps: tuple[int, int] | None

    @classmethod
    def from_finding(cls, finding: dict[str, Any]) -> Statement:
        sentence = "" if finding["kind"] == "update_gap" else finding["sentence"]
        phase = finding["phase"] or sentence
        ranks, steps = finding["ranks"], finding["steps"]
        return cls(
            f"{finding['kind']} {phase}".lower(),
            frozenset(ranks) if ranks else None,
            (steps[0], steps[1]) if steps else None,
        )

    @classmethod
    def from_summary(cls, summary: dict[str, Any]) -> Statement:
        """Read the headline, why it is so, and what to do."""
        text = f"{summary['headline']} {summary['why']} {summary['next']}".lower()
        ranks = [numbers(match) for match in re.findall(rf"ranks? (\d[\d, and{DASHES}]*)", text)]
        steps = re.search(rf"steps? (\d+)(?:[{DASHES}](\d+))?", text)
        return cls(
            text,
            frozenset().union(*ranks) if ranks else None,
            (int(steps[1]), int(steps[2] or steps[1])) if steps else None,
        )

    def names_phase(self, words: Iterable[str]) -> bool:
        words = tuple(words)
        return not words or any(re.search(rf"\b{re.escape(w)}\b", self.text) for w in words)

    def names_steps(self, steps: tuple[int, int] | None) -> bool:
        """Return True if the steps overlap and are not much more than the true ones.

        One step beside them is right, too: what lies between two calls belongs to either step.
        """
        if steps is None:
            return True
        if self.steps is None:
            return False
        overlaps = self.steps[0] <= steps[1] + 1 and steps[0] <= self.steps[1] + 1
        length, true_length = self.steps[1] - self.steps[0], steps[1] - steps[0]
        return overlaps and length <= 2 * true_length + 10


def numbers(text: str) -> frozenset[int]:
    """Read a list of ranks such as `0, 2-4 and 7`."""
    ranks: set[int] = set()
    for first, last in re.findall(rf"(\d+)(?:[{DASHES}](\d+))?", text):
        ranks |= set(range(int(first), int(last or first) + 1))
    return frozenset(ranks)


@dataclass(frozen=True)
class Answer:
    """The verdicts and the place that are right for a planted loss."""

    verdicts: frozenset[str]
    place: Place

    def find_errors(self, report: dict[str, Any], share: float) -> list[str]:
        """Return what is wrong with a report on a run that loses `share` of its time."""
        if share < MIN_SHARE_OF_VERDICT:
            return []
        if is_called_healthy(report):
            return ["healthy"]
        if share < MIN_SHARE_OF_PLACE:
            return []
        errors = []
        if read_state(report) not in self.verdicts:
            errors.append(f"verdict {read_state(report)}")
        place_error = find_place_error(self.place, report)
        if place_error:
            errors.append(place_error)
        return errors


def read_state(report: dict[str, Any]) -> str:
    """Return the verdict in today's word."""
    state = str(report["verdict"]).lower()
    return STATES.get(state, state)


def is_called_healthy(report: dict[str, Any]) -> bool:
    return read_state(report) == "healthy" or "nothing to fix" in report["summary"]["next"].lower()


def find_place_error(location: Place, report: dict[str, Any]) -> str:
    """Return what of the place no statement names, or nothing."""
    count = FIRST_FINDINGS if location.at_once else len(location.ranks) + 2
    statements = [Statement.from_summary(report["summary"])]
    statements += [Statement.from_finding(finding) for finding in report["findings"][:count]]
    in_phase = [statement for statement in statements if statement.names_phase(location.words)]
    if not in_phase:
        return "phase"
    in_steps = [statement for statement in in_phase if statement.names_steps(location.steps)]
    if not in_steps and all(statement.steps is None for statement in in_phase):
        in_steps = in_phase
    if not in_steps:
        return "steps"
    return "" if names_ranks(location, in_steps) else "ranks"


def names_ranks(location: Place, statements: list[Statement]) -> bool:
    """Return True if statements name most of the ranks that lose time, and fewer others.

    Where all ranks lose time, a statement that names no rank is about all of them.
    """
    if location.is_link:
        return any(s.ranks is not None and s.ranks <= location.ranks for s in statements)
    if len(location.ranks) == location.world and any(s.ranks is None for s in statements):
        return True
    if location.at_once and len(location.ranks) < location.world:  # one statement has to be right
        return any(are_most(location.ranks, s.ranks) for s in statements if s.ranks is not None)
    named = frozenset().union(*(s.ranks for s in statements if s.ranks is not None))
    return are_most(location.ranks, named)


def are_most(ranks: frozenset[int], named: frozenset[int]) -> bool:
    right = len(ranks & named)
    return right > len(named - ranks) and (2 * right > len(ranks) or right == len(ranks))

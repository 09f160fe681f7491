"""A late rank in one sentence: who, where, when, by how much, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from tracelens import words

if TYPE_CHECKING:
    from tracelens.analyses._counterfactual import Price
    from tracelens.analyses._late import Late
    from tracelens.analyses._parts import Parts
    from tracelens.analyses._stacks import Culprit

LAYERED: Final = ("forward", "backprop", "update")
FEWEST_PARTS: Final = 3
WORTH_SAYING: Final = 0.1  # of the delay, absorbed


@dataclass(frozen=True)
class Verdict:
    """What the sentence tells; `ranks` and `steps` are those of the run, `hosts` only if whole."""

    late: Late
    cost: Price
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    steps: tuple[int, int]
    extra_ns: float
    share: float
    majority: bool


def sentence(verdict: Verdict) -> str:
    """Say it plainly."""
    named = verdict.hosts or verdict.ranks
    who = words.listing("host" if verdict.hosts else "rank", named)
    several = len(named) > 1
    text = (
        f"{words.capital(who)} {_course(verdict.late, several=several)}, "
        f"{words.steps(*verdict.steps)}: +{words.duration(verdict.extra_ns)} a step "
        f"({words.percent(verdict.share)} of a step); {_waiting(verdict, several=several)}. "
        f"Without {'them' if several else 'it'} the job would be "
        f"{words.percent(verdict.cost.saving)} shorter{_absorbed(verdict.cost)}."
    )
    if verdict.majority:
        text += " So many ranks are late that the median rank is no reliable reference."
    return text


def in_parts(phase: str, parts: Parts | None) -> list[str]:
    """Say which layers it is in, or that all are slower alike, where there are layers to tell."""
    if parts is None or phase not in LAYERED or len(parts.rows) < FEWEST_PARTS:
        return []
    where, share = parts.most
    if where:
        return [f"{words.percent(share)} of the delay is in {words.series(list(where))}."]
    alike = f"All {len(parts.rows)} parts of {words.phase(phase)} are slower alike."
    return [alike] if parts.alike else []


def in_code(seen: Culprit | None) -> list[str]:
    """Say where in the code a rank was seen for longer than its peers."""
    if seen is None:
        return []
    function, _, place = seen.frame.removesuffix(")").rpartition(" (")
    file, _, line = place.rpartition(":")
    name = f"{function} ({PurePath(file).name}:{line})"
    return [f"Samples of its stack show where: {name}."]


def _absorbed(cost: Price) -> str:
    if cost.in_flight < WORTH_SAYING:
        return ""
    return f": reductions under way absorb {words.percent(cost.in_flight)} of the delay"


def _course(late: Late, *, several: bool) -> str:
    verb, phase = "are" if several else "is", words.phase(late.phase)
    if late.pattern == "sparse":
        often = f"every {late.period} steps" if late.period else f"in {len(late.touched)} steps"
        stalling = words.series([words.phase(name) for name in (late.phase, *late.also)])
        return f"{'stall' if several else 'stalls'} in {stalling} {often}"
    if late.pattern == "rotating":
        return f"{verb} late in {phase}, one after the other"
    if late.pattern == "drifting":
        return f"{verb} later and later in {phase}"
    return f"{verb} late in {phase}"


def _waiting(verdict: Verdict, *, several: bool) -> str:
    whom, count = "them" if several else "it", verdict.cost.waiting
    if not count:
        return f"no rank was seen waiting for {whom}"
    return f"1 rank waits for {whom}" if count == 1 else f"{count} ranks wait for {whom}"

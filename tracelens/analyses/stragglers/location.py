"""Where in a phase a straggler's delay is: in which layers, in which code, and between what.

Layers, or other recorded parts of the phase, hold it if a few of them take most of it, or all alike.
Samples of the stack tell which share of a phase each stack had, and the recorded spans how long the
phase was; down the tree of calls, the residual against the peers is followed for as long as one call
holds most of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES, NOTHING, TRANSFER, UNINSTRUMENTED
from tracelens.accounting.pieces import spent_before

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats, Ints
    from tracelens.model.trace import Trace

__all__ = [
    "Culprit",
    "Parts",
    "Place",
    "Stack",
    "by_stack",
    "culprit",
    "parts_of",
    "place_of",
    "stack_residuals",
    "tree",
]


MOST_OF_DELAY: Final = 0.6  # of the lateness, for one part to stand for it
NEARLY_ALL: Final = 0.8  # of it, for a few to
FEW: Final = 3
OF_THE_TIME: Final = 0.5  # that a few parts usually take at most, or they are no place
ALIKE: Final = 0.2  # of the lateness lies elsewhere than if all parts were slower by the same share
SHOWN_PARTS: Final = 8


@dataclass(frozen=True)
class Parts:
    """Spans within a phase: `name`, `extra` over the peers and `usual` time, ns a step and late rank.

    `rows` are sorted by `extra`, the greatest first.
    """

    rows: pl.DataFrame

    @property
    def slowest(self) -> str | None:
        """The one part in which most of the lateness is."""
        name, share = self.rows["name"][0], self._shares[0]
        return str(name) if name is not None and share >= MOST_OF_DELAY else None

    @property
    def most(self) -> tuple[tuple[str, ...], float]:
        """The few parts that hold nearly all of it, though little of the usual time, and their share."""
        for count in range(1, FEW + 1):
            first = self.rows.head(count)
            share, usual = float(self._shares[:count].sum()), float(first["usual"].sum())
            if share >= NEARLY_ALL and usual <= OF_THE_TIME * float(self.rows["usual"].sum()):
                named = first["name"].drop_nulls().cast(pl.String).to_list()
                return (tuple(named), min(share, 1.0)) if len(named) == count else ((), 0.0)
        return (), 0.0

    @property
    def alike(self) -> bool:
        """Whether all parts are slower by about the same share, as on a slow device."""
        expected = self.rows["usual"] / self.rows["usual"].sum()
        return float((self._shares - expected).abs().sum()) / 2 <= ALIKE

    @cached_property
    def _shares(self) -> pl.Series:
        return self.rows["extra"] / self.rows["extra"].sum()

    def evidence(self) -> list[dict[str, Any]]:
        """The parts with the greatest extra time, for a finding."""
        top = self.rows.head(SHOWN_PARTS).with_columns(share=self._shares.head(SHOWN_PARTS))
        return top.select(
            pl.col("name").cast(pl.String),
            "share",
            extra_ns=pl.col("extra").round().cast(pl.Int64),
            usual_ns=pl.col("usual").round().cast(pl.Int64),
        ).to_dicts()


def parts_of(phases: Phases, ranks: tuple[int, ...], phase: str, steps: Ints) -> Parts | None:
    """Hold the late ranks' spans within a phase against their peers'; None if they are not longer."""
    inside = phases.pieces.by_name(phase, steps)
    late = pl.col("rank").is_in(list(ranks))
    here, everywhere = inside.select(
        late=pl.col("rank").filter(late).n_unique(), all=pl.col("rank").n_unique()
    ).row(0)
    if not here or here == everywhere:
        return None
    usual = pl.col("ns").filter(~late).sum() / (everywhere - here) / len(steps)
    taken = pl.col("ns").filter(late).sum() / here / len(steps)
    rows = inside.group_by("name").agg(extra=taken - usual, usual=usual)
    if rows["extra"].sum() <= 0:
        return None
    return Parts(rows.sort("extra", descending=True))


@dataclass(frozen=True)
class Place:
    """Between what time that no span covers lies, as categories; `share` of the delay is there."""

    before: str
    after: str
    share: float


def place_of(phases: Phases, ranks: tuple[int, ...], steps: Ints) -> Place | None:
    """Find between what ranks spend more time than their peers that no span covers; None if nowhere."""
    late, peers = (
        np.mean([around for rank, around in found if (rank in ranks) == is_late], axis=0)
        for found in [list(_around_uninstrumented(phases, steps))]
        for is_late in (True, False)
    )
    extra = late - peers
    if not extra.ndim or extra.max() <= 0:
        return None
    before, after = np.unravel_index(extra.argmax(), extra.shape)
    share = float(extra.max() / np.maximum(extra, 0).sum())
    return Place(CATEGORIES[before], CATEGORIES[after], share)


def _around_uninstrumented(phases: Phases, steps: Ints) -> Iterator[tuple[int, Floats]]:
    """Yield each rank, and how long it was in code that no span covers, [before, after] by category."""
    count, wanted = len(CATEGORIES), np.isin(phases.pieces.steps["step"].to_numpy(), steps)
    for rank, pieces in zip(phases.pieces.ranks, phases.pieces, strict=True):
        category = np.where(_IS_COMMUNICATION[pieces.category], TRANSFER, pieces.category)
        kept = np.flatnonzero(np.diff(category, prepend=NOTHING))  # one piece of what goes on
        begins = pieces.bounds[kept]
        rows = np.flatnonzero(category[kept] == UNINSTRUMENTED)
        rows = rows[(rows > 0) & (rows < len(kept) - 1)]
        rows = rows[wanted[pieces.step[kept[rows]] + pieces.offset]]
        cells = category[kept[rows - 1]].astype(np.intp) * count + category[kept[rows + 1]]
        lasted = np.bincount(cells, begins[rows + 1] - begins[rows], minlength=count**2)
        yield rank, np.asarray(lasted.reshape(count, count), np.float64)


_IS_COMMUNICATION: Final = np.isin(CATEGORIES, ("wait", "ps_queue", "transfer"))


MOST_OF_IT: Final = 0.6  # of a call's excess is in one that it makes: go down to that
LEAST_SHARE: Final = 0.5  # of the lateness must be seen in the samples
LEAST_SEEN_NS: Final = 10**8  # of a phase, on a rank, or its shares say nothing
SHOWN_CALLS: Final = 8  # calls above the culprit

Stack: TypeAlias = "tuple[str, ...]"


@dataclass(frozen=True)
class Culprit:
    """The innermost call that holds most of the excess, with those that led to it, outermost first."""

    stack: Stack
    extra_ns: float  # a step, over the median peer

    @property
    def frame(self) -> str:
        """The call itself, as ``function (file:line)``."""
        return self.stack[-1]

    def evidence(self) -> dict[str, object]:
        """The numbers behind it, for a finding."""
        return {"stack": list(self.stack[-SHOWN_CALLS:]), "extra_ns": round(self.extra_ns)}


def culprit(
    trace: Trace,
    phases: Phases,
    ranks: tuple[int, ...],
    phase: str,
    *,
    steps: Ints,
    extra_ns: float,
) -> Culprit | None:
    """Look for what the late ranks do longer than the others.

    Args:
        trace: With samples, or there is nothing to find.
        phases: The partition of its time.
        ranks: The late ones.
        phase: The phase that they are late in.
        steps: The steps in which they are.
        extra_ns: How late a step, as own time tells.
    """
    if trace.samples.is_empty() or not len(steps):
        return None
    sampled = _sampled(trace, phases, phase, steps)
    spent = {rank: by_stack(rows, inside) for rank, rows, inside in sampled}
    late = [spent[rank] for rank in ranks if any(spent.get(rank, ()))]
    peers = [found for rank, found in spent.items() if rank not in ranks]
    if not late or not peers:
        return None
    worst = _descend(stack_residuals(tree(late), tree(peers)))
    if worst is None or worst.extra_ns < LEAST_SHARE * extra_ns * len(steps):
        return None
    return Culprit(worst.stack, worst.extra_ns / len(steps))


def _sampled(
    trace: Trace, phases: Phases, phase: str, steps: Ints
) -> Iterable[tuple[int, pl.DataFrame, pl.DataFrame]]:
    """Yield each rank's samples of its training thread, and its pieces of the phase, by time."""
    mine = trace.workers.select("process", "rank", thread="training_thread")
    samples = trace.samples.join(mine, on=["process", "thread"]).sort("start_ns")
    pieces = phases.pieces.of(phase, steps, set(samples["rank"])).sort("start_ns")
    for (rank,), rows in samples.group_by("rank", maintain_order=True):
        assert isinstance(rank, int)
        yield rank, rows, pieces.filter(rank=rank)


def by_stack(samples: pl.DataFrame, inside: pl.DataFrame) -> dict[Stack, float]:
    """Return how much of the pieces' time each stack took, ns; that of none if few were seen."""
    seen = spent_before(inside, samples["end_ns"].to_numpy()) - spent_before(
        inside, samples["start_ns"].to_numpy()
    )
    total = float((inside["end_ns"] - inside["start_ns"]).sum())
    if seen.sum() < LEAST_SEEN_NS:
        return {(): total}
    scale = total / seen.sum()
    summed = samples.select("frames", time=pl.Series(seen * scale)).filter(pl.col("time") > 0)
    rows = summed.group_by("frames").agg(pl.col("time").sum()).iter_rows()
    return {tuple(frames): time for frames, time in rows}


def tree(ranks: list[dict[Stack, float]]) -> list[dict[Stack, float]]:
    """Return for each rank how long was spent below every call, by the calls that led to it."""
    trees = []
    for spent in ranks:
        below: dict[Stack, float] = {}
        for stack, time in spent.items():
            for depth in range(len(stack) + 1):
                below[stack[:depth]] = below.get(stack[:depth], 0.0) + time
        trees.append(below)
    return trees


def stack_residuals(
    late: list[dict[Stack, float]], peers: list[dict[Stack, float]]
) -> dict[Stack, float]:
    """Return what late ranks spent on average below each call, over the median peer."""
    calls = {call for below in late for call in below}
    return {
        call: float(
            np.mean([below.get(call, 0.0) for below in late])
            - np.median([below.get(call, 0.0) for below in peers])
        )
        for call in calls
    }


def _descend(excess: dict[Stack, float]) -> Culprit | None:
    """Go down from the whole, to the call with the most excess, while that is most of it."""
    below: dict[Stack, list[Stack]] = {}
    for call in excess:
        if call:
            below.setdefault(call[:-1], []).append(call)
    here: Stack = ()
    while below.get(here):
        worst = max(below[here], key=excess.__getitem__)
        if excess[worst] < MOST_OF_IT * excess[here]:
            break
        here = worst
    return Culprit(here, excess[here]) if here and excess[here] > 0 else None

"""Where a straggler's delay is: in which layers, and between what.

Layers, or other recorded parts of the phase, hold it if a few of them take most of it, or all alike. In
which code it is, samples of the stack tell (`tracelens/accounting/sampled_code.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES, NOTHING, TRANSFER, UNINSTRUMENTED
from tracelens.caching import cached_property
from tracelens.model import fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.phases import Phases
    from tracelens.accounting.sampled_code import Culprit
    from tracelens.arrays import Floats, Ints

__all__ = ["Parts", "Place", "parts_of", "place_of", "place_sentences"]


# share of a delay: the part with the most is not named if it has less [policy]
MIN_SHARE_OF_SLOWEST_PART: Final = 0.5
MAX_PARTS_NAMED: Final = 3  # parts: no more are named as where the delay is [policy]
# share of a delay: parts that have less together are not named [policy]
MIN_SHARE_OF_DELAY_IN_PARTS: Final = 0.75
# share of a phase's usual time: parts that take more are no few ones, and not named [policy]
MAX_SHARE_OF_USUAL_TIME_IN_PARTS: Final = 0.5
# share of a delay: all parts are slower alike if no more would have to be moved [policy]
MAX_SHARE_ELSEWHERE_IF_ALIKE: Final = 0.25
# share of a delay: if less is between the same neighbours, they are not named [policy]
MIN_SHARE_OF_DELAY_AT_PLACE: Final = 0.5
MAX_PARTS_LISTED: Final = 16  # parts: the evidence of a finding lists no more [policy]


@dataclass(frozen=True, eq=False)
class Parts:
    """Spans within a phase: `name`, `extra` over the peers and `usual` time, ns a step and late rank.

    `rows` are sorted by `extra`, the greatest first.
    """

    rows: pl.DataFrame

    @property
    def slowest(self) -> str | None:
        """The one part in which most of the delay is."""
        name, share = self.rows["name"][0], self._shares[0]
        return str(name) if name is not None and share >= MIN_SHARE_OF_SLOWEST_PART else None

    @property
    def most(self) -> tuple[tuple[str, ...], float]:
        """The few parts that hold nearly all of it, though little of the usual time, and their share."""
        for count in range(1, MAX_PARTS_NAMED + 1):
            first = self.rows.head(count)
            share, usual = float(self._shares[:count].sum()), float(first["usual"].sum())
            most_usual = MAX_SHARE_OF_USUAL_TIME_IN_PARTS * float(self.rows["usual"].sum())
            if share >= MIN_SHARE_OF_DELAY_IN_PARTS and usual <= most_usual:
                named = first["name"].drop_nulls().cast(pl.String).to_list()
                return (tuple(named), min(share, 1.0)) if len(named) == count else ((), 0.0)
        return (), 0.0

    @property
    def alike(self) -> bool:
        """Whether all parts are slower by about the same share, as on a slow device."""
        expected = self.rows["usual"] / self.rows["usual"].sum()
        return float((self._shares - expected).abs().sum()) / 2 <= MAX_SHARE_ELSEWHERE_IF_ALIKE

    @cached_property
    def _shares(self) -> pl.Series:
        return self.rows["extra"] / self.rows["extra"].sum()

    def evidence(self) -> list[dict[str, Any]]:
        """The parts with the greatest extra time, for a finding."""
        top = self.rows.head(MAX_PARTS_LISTED).with_columns(
            share=self._shares.head(MAX_PARTS_LISTED)
        )
        return top.select(
            pl.col("name").cast(pl.String),
            "share",
            extra_ns=pl.col("extra").round().cast(pl.Int64),
            usual_ns=pl.col("usual").round().cast(pl.Int64),
        ).to_dicts()


def parts_of(
    phases: Phases, ranks: tuple[int, ...], peers: tuple[int, ...], phase: str, steps: Ints
) -> Parts | None:
    """Hold the late ranks' spans within a phase against their peers'; None if they are not longer."""
    inside = phases.pieces.by_name(phase, steps).filter(pl.col("rank").is_in([*ranks, *peers]))
    late = pl.col("rank").is_in(list(ranks))
    slow, everywhere = inside.select(
        late=pl.col("rank").filter(late).n_unique(), all=pl.col("rank").n_unique()
    ).row(0)
    if not slow or slow == everywhere:
        return None
    usual = pl.col("ns").filter(~late).sum() / (everywhere - slow) / len(steps)
    taken = pl.col("ns").filter(late).sum() / slow / len(steps)
    rows = inside.group_by("name").agg(extra=taken - usual, usual=usual)
    if rows["extra"].sum() <= 0:
        return None
    by_name = pl.col("name").cast(pl.String)
    return Parts(rows.sort("extra", by_name, descending=[True, False]))


@dataclass(frozen=True)
class Place:
    """Between what time that no span covers lies, as categories; `share` of the delay is there."""

    before: str
    after: str
    share: float

    @property
    def text(self) -> str:
        """It in words."""
        before, after = (
            "communication" if name == "transfer" else fmt.phase(name)
            for name in (self.before, self.after)
        )
        if before == after == "communication":
            return "between calls of communication"
        return f"between {before} and {after}"


def place_sentences(place: Place | None, seen: Culprit | None) -> list[str]:
    """Return that no span covers it, between what it is, and how to learn more of it."""
    where = f", {place.text}" if place and place.share >= MIN_SHARE_OF_DELAY_AT_PLACE else ""
    how = "" if seen else ": wrap it in a span (tl.span), or record with --sample to see the code"
    return [f"No span covers it{where}{how}."]


def place_of(
    phases: Phases, ranks: tuple[int, ...], peers: tuple[int, ...], steps: Ints
) -> Place | None:
    """Find between what ranks spend more time than their peers that no span covers; None if nowhere.

    Without peers it is where most of that time lies.
    """
    found = list(_around_uninstrumented(phases, steps))
    late, usual = (
        np.mean([around for rank, around in found if rank in some] or [np.zeros(())], axis=0)
        for some in (ranks, peers)
    )
    extra = np.asarray(late - usual)
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
        before, ended = category[kept[rows - 1]], category[kept[np.maximum(rows - 2, 0)]]
        waited = (before == TRANSFER) & (ended != UNINSTRUMENTED)  # for what was in flight already
        cells = np.where(waited, ended, before).astype(np.intp) * count + category[kept[rows + 1]]
        lasted = np.bincount(cells, begins[rows + 1] - begins[rows], minlength=count**2)
        yield rank, np.asarray(lasted.reshape(count, count), np.float64)


_IS_COMMUNICATION: Final = np.isin(CATEGORIES, ("wait", "ps_queue", "transfer"))

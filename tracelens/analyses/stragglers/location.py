"""Where a straggler's delay is, or that of who is only waited for: in which layers, and between what.

Layers, or other recorded parts of the phase, hold it if a few of them take most of it, or all alike. In
which code it is, samples of the stack tell (`tracelens/analyses/stacks.py`). Where no finding says why
ranks wait, all there is to say is for whom they do so most, and where that one is later than its peers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES, NOTHING, TRANSFER, UNINSTRUMENTED
from tracelens.analyses import stacks
from tracelens.analyses.jitter import in_few_steps
from tracelens.caching import cached_property
from tracelens.model import fmt
from tracelens.stats.constants import CONSISTENT, ENOUGH, FEW, MAJORITY, MANY
from tracelens.stats.robust import medians

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.facts import Facts
    from tracelens.model.verdict import Ledger

__all__ = ["MAJORITY", "Parts", "Place", "awaited_text", "parts_of", "place_of"]


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
        return str(name) if name is not None and share >= MAJORITY else None

    @property
    def most(self) -> tuple[tuple[str, ...], float]:
        """The few parts that hold nearly all of it, though little of the usual time, and their share."""
        for count in range(1, FEW + 1):
            first = self.rows.head(count)
            share, usual = float(self._shares[:count].sum()), float(first["usual"].sum())
            if share >= CONSISTENT and usual <= MAJORITY * float(self.rows["usual"].sum()):
                named = first["name"].drop_nulls().cast(pl.String).to_list()
                return (tuple(named), min(share, 1.0)) if len(named) == count else ((), 0.0)
        return (), 0.0

    @property
    def alike(self) -> bool:
        """Whether all parts are slower by about the same share, as on a slow device."""
        expected = self.rows["usual"] / self.rows["usual"].sum()
        return float((self._shares - expected).abs().sum()) / 2 <= ENOUGH

    @cached_property
    def _shares(self) -> pl.Series:
        return self.rows["extra"] / self.rows["extra"].sum()

    def evidence(self) -> list[dict[str, Any]]:
        """The parts with the greatest extra time, for a finding."""
        top = self.rows.head(MANY).with_columns(share=self._shares.head(MANY))
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


def place_of(
    phases: Phases, ranks: tuple[int, ...], peers: tuple[int, ...], steps: Ints
) -> Place | None:
    """Find between what ranks spend more time than their peers that no span covers; None if nowhere."""
    found = list(_around_uninstrumented(phases, steps))
    late, usual = (
        np.mean([around for rank, around in found if rank in some], axis=0)
        for some in (ranks, peers)
    )
    extra = late - usual
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


def awaited_text(facts: Facts, ledger: Ledger) -> str:
    """Return for whom all others wait most, and where it is later than its peers; may be empty."""
    rank, share = ledger.awaited_rank, ledger.awaited_share
    if rank is None or share is None:
        return ""
    most = "most of it" if share > MAJORITY else fmt.percent(share)
    return f"{most} for rank {rank}{_where(facts, rank)}"


def _where(facts: Facts, rank: int) -> str:
    trace, phases, own = facts.trace, facts.phases, facts.compute_time.levelled
    column = own.ranks.index(rank)
    beyond = [np.nan_to_num(by[:, column] - medians(by, axis=1), nan=0.0) for by in own.own]
    if not beyond:
        return ""
    longer = [np.maximum(by, 0.0) for by in beyond]
    most = int(np.argmax([float(by.sum()) for by in longer]))
    phase, extra = own.phases[most], longer[most]
    if extra.sum() < len(own.steps):  # not a nanosecond per step
        return ", whose own time is no longer than that of the others"
    few = in_few_steps(extra) & (extra > extra.max() / MANY)  # not what hardly matters beside
    if not few.any() or extra[few].sum() < MAJORITY * extra.sum():
        per_step = fmt.duration(float(extra.sum()) / len(own.steps))
        return f" ({fmt.phase(phase)}: {per_step} per step beyond the others)"
    steps, peers = own.steps[few], tuple(one for one in own.ranks if one != rank)
    parts = [fmt.phase(phase)]
    if phase == CATEGORIES[UNINSTRUMENTED]:
        place = place_of(phases, (rank,), peers, steps)
        parts += [place.text] if place and place.share >= MAJORITY else []
    usual = float(extra[few].mean())
    seen = stacks.of_ranks(trace, phases, (rank,), peers, phase, steps=steps, extra_ns=usual)
    code = f", in {stacks.path_text(seen.path)}" if seen else ""
    return f" ({', '.join(parts)}: {_in_steps(extra, few, own.steps)}{code})"


def _in_steps(extra: Floats, few: Flags, steps: Ints) -> str:
    """Return by how much it is later in which few steps."""
    lasted, named = fmt.duration(float(extra[few].mean())), steps[few].tolist()
    each = "each of " if len(named) > 1 else ""
    return f"{lasted} beyond the others in {each}{fmt.listing('step', named)}"

"""Which recorded parts of a phase, layers of a model say, a lateness is in: a few, or all alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import polars as pl

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tracelens.analyses.phases import Phases

__all__ = ["Parts", "parts_of"]

MOST_OF_IT: Final = 0.6  # of the lateness, for one part to stand for it
NEARLY_ALL: Final = 0.8  # of it, for a few to
FEW: Final = 3
OF_THE_TIME: Final = 0.5  # that a few parts usually take at most, or they are no place
ALIKE: Final = 0.2  # of the lateness lies elsewhere than if all parts were slower by the same share
SHOWN: Final = 8


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
        return str(name) if name is not None and share >= MOST_OF_IT else None

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
        top = self.rows.head(SHOWN).with_columns(share=self._shares.head(SHOWN))
        return top.select(
            pl.col("name").cast(pl.String),
            "share",
            extra_ns=pl.col("extra").round().cast(pl.Int64),
            usual_ns=pl.col("usual").round().cast(pl.Int64),
        ).to_dicts()


def parts_of(
    phases: Phases, ranks: tuple[int, ...], phase: str, steps: npt.NDArray[np.int64]
) -> Parts | None:
    """Hold the late ranks' spans within a phase against their peers'; None if they are not longer."""
    inside = phases.pieces.of(phase, steps)
    late = pl.col("rank").is_in(list(ranks))
    here, everywhere = inside.select(
        late=pl.col("rank").filter(late).n_unique(), all=pl.col("rank").n_unique()
    ).row(0)
    if not here or here == everywhere:
        return None
    length = pl.col("end_ns") - pl.col("start_ns")
    usual = length.filter(~late).sum() / (everywhere - here) / len(steps)
    taken = length.filter(late).sum() / here / len(steps)
    rows = inside.group_by("name").agg(extra=taken - usual, usual=usual)
    if rows["extra"].sum() <= 0:
        return None
    return Parts(rows.sort("extra", descending=True))

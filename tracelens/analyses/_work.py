"""How much work ranks were given, as steps tell: whether who takes longer simply has more to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens import words

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens.analyses._own_time import Floats, OwnTime
    from tracelens.trace import Trace

    Rows = npt.NDArray[np.intp]

__all__ = ["Explanation", "Work", "explaining", "ratios", "said_of", "work"]

AMOUNTS: Final = ("tokens", "samples")
COMPUTING: Final = ("forward", "backprop")
MORE: Final = 0.05  # than the peers have: worth a sentence
MOST_OF_IT: Final = 0.5  # of the variance of own time
HARDLY: Final = 0.1

Work = dict[str, "Floats"]  # by name, [step, rank]; nan where a step did not tell


@dataclass(frozen=True)
class Explanation:
    """Which amount varies most alike with own time, and what share of its variance that explains."""

    amount: str
    share: float


def work(trace: Trace, own: OwnTime) -> Work:
    """Return the samples and tokens of every step and rank, as far as they were recorded."""
    told = (
        trace.events.filter(
            pl.col("type") == "counter",
            pl.col("kind") == "step",
            pl.col("name").cast(pl.String).is_in(AMOUNTS),
            pl.col("step").is_in(own.steps.tolist()),
            pl.col("value").is_finite(),
        )
        .join(trace.workers.lazy().select("process"), on="process", how="semi")
        .group_by("step", "rank", name=pl.col("name").cast(pl.String))
        .agg(pl.col("value").sum())
        .collect()
    )
    found = {}
    for name in AMOUNTS:
        mine = told.filter(name=name)
        matrix = np.full((len(own.steps), len(own.ranks)), np.nan)
        rows = np.searchsorted(own.steps, mine["step"].to_numpy())
        columns = np.searchsorted(own.ranks, mine["rank"].to_numpy())
        matrix[rows, columns] = mine["value"].to_numpy()
        if not np.isnan(matrix).all():
            found[name] = matrix
    return found


def ratios(given: Work, ranks: tuple[int, ...], rows: Rows) -> dict[str, float]:
    """Return how many times the others' amounts some ranks (columns) have, in some steps (rows)."""
    found = {}
    for name, values in given.items():
        mine, others = values[rows][:, ranks], np.delete(values[rows], ranks, axis=1)
        if np.isnan(mine).any() or np.isnan(others).any() or not others.size:
            continue
        usual = float(np.median(others.mean(axis=0)))
        if usual > 0:
            found[name] = float(mine.mean()) / usual
    return found


def said_of(more: dict[str, float], *, several: bool) -> list[str]:
    """Say that late ranks have more to do, if they have."""
    name = max(more, key=lambda amount: more[amount], default=None)
    if name is None or more[name] < 1 + MORE:
        return []
    who = "They have" if several else "It has"
    return [f"{who} {words.percent(more[name] - 1)} more {name} than the others."]


def explaining(given: Work, own: OwnTime) -> Explanation | None:
    """Look for the amount with which computing varies over ranks and steps; None where all are alike.

    The share is the squared correlation of both, each relative to its step's median.
    """
    computing = own.own[[name in COMPUTING for name in own.phases]].sum(axis=0)[own.settled]
    found = []
    for name, values in given.items():
        amount = values[own.settled]
        whole = ~(np.isnan(amount) | np.isnan(computing)).any(axis=1)
        if np.count_nonzero(whole) > 1:
            x, y = _apart(amount[whole]), _apart(computing[whole])
            if x.std() > 0 and y.std() > 0:
                found.append(Explanation(name, float(np.corrcoef(x, y)[0, 1]) ** 2))
    return max(found, key=lambda one: one.share, default=None)


def _apart(values: Floats) -> Floats:
    """Return how far ranks are from their step's median, as a share of it."""
    middle = np.median(values, axis=1, keepdims=True)
    return np.asarray((values / np.where(middle > 0, middle, np.nan) - 1)[middle[:, 0] > 0].ravel())

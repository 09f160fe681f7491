"""Own time: what every worker spent working by itself, by phase, step and rank, as matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses.phases import OWN_CATEGORIES

if TYPE_CHECKING:
    from tracelens.analyses.phases import Phases
    from tracelens.trace import Trace

Floats = npt.NDArray[np.float64]

WARM_UP: Final = 5  # steps: caches, allocators and bucket layouts settle
AFTER: Final = ("update", "checkpoint")  # what follows the meeting of a step
WAITING: Final = ("wait", "ps_queue")


@dataclass(frozen=True)
class OwnTime:
    """Matrices in nanoseconds, [step, rank] or [phase, step, rank]; nan where a rank lacks a step.

    `settled` says which rows (steps) statistics may use: not those of the warm-up, nor those that
    were extraordinarily long on every rank.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    steps: npt.NDArray[np.int64]
    phases: tuple[str, ...]
    own: Floats
    length: Floats
    wait: Floats
    settled: npt.NDArray[np.bool_]

    @property
    def total(self) -> Floats:
        """Own time of all phases together."""
        return np.asarray(self.own.sum(axis=0))

    @property
    def between_meetings(self) -> Floats:
        """Own time from where the ranks meet in a step to where they do in the next one."""
        after = np.isin(self.phases, AFTER)
        before = self.own[~after].sum(axis=0)
        following = np.concatenate([before[1:], np.zeros_like(before[:1])])
        return np.asarray(self.own[after].sum(axis=0) + following)

    @property
    def step_ns(self) -> float:
        """The length of a typical step."""
        rows = self.length[self.settled] if self.settled.any() else self.length
        return float(np.nanmedian(rows)) if rows.size else 0.0


def measure(trace: Trace, phases: Phases) -> OwnTime:
    """Build the matrices of all main workers; phases that never occur are left out."""
    workers = trace.workers
    steps = trace.steps.join(workers.select("process"), on="process", how="semi")
    numbers = steps["step"].unique().sort().to_numpy().astype(np.int64)
    ranks = workers["rank"].to_list()
    times = phases.times.join(workers.select("process"), on="process", how="semi")
    grid = _Grid(numbers, np.array(ranks, np.int64))
    present = grid.fill(steps.with_columns(ns=pl.col("end_ns") - pl.col("start_ns")))
    missing = np.isnan(present) | grid.cut_short(steps, workers)
    names = [name for name in OWN_CATEGORIES if (times["category"] == name).any()]
    own = np.stack(
        [
            np.where(missing, np.nan, grid.sum(times.filter(pl.col("category") == name)))
            for name in names
        ]
        or [np.zeros((0, *present.shape))],
    ).reshape(len(names), *present.shape)
    wait = grid.sum(times.filter(pl.col("category").is_in(WAITING)))
    return OwnTime(
        ranks=tuple(ranks),
        hosts=tuple(workers["host"].fill_null("").to_list()),
        steps=numbers,
        phases=tuple(names),
        own=own,
        length=np.where(missing, np.nan, present),
        wait=np.where(missing, 0.0, wait),
        settled=_settled(own.sum(axis=0)),
    )


@dataclass(frozen=True)
class _Grid:
    """Puts rows of (rank, step, ns) into a [step, rank] matrix."""

    steps: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]

    def cells(self, frame: pl.DataFrame) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        rows = np.searchsorted(self.steps, frame["step"].to_numpy())
        return rows, np.searchsorted(self.ranks, frame["rank"].to_numpy())

    def sum(self, frame: pl.DataFrame) -> Floats:
        matrix = np.zeros((len(self.steps), len(self.ranks)))
        np.add.at(matrix, self.cells(frame), frame["ns"].to_numpy())
        return matrix

    def fill(self, frame: pl.DataFrame) -> Floats:
        matrix = np.full((len(self.steps), len(self.ranks)), np.nan)
        matrix[self.cells(frame)] = frame["ns"].to_numpy()
        return matrix

    def cut_short(self, steps: pl.DataFrame, workers: pl.DataFrame) -> npt.NDArray[np.bool_]:
        """Say which cells are the last step of a process that did not end by itself."""
        broken = workers.filter(~pl.col("complete")).select("process")
        last = (
            steps.join(broken, on="process", how="semi").group_by("rank").agg(pl.col("step").max())
        )
        matrix = np.zeros((len(self.steps), len(self.ranks)), np.bool_)
        matrix[self.cells(last)] = True
        return matrix


def _settled(total: Floats) -> npt.NDArray[np.bool_]:
    """Say which steps compare: half of the ranks there, after the warm-up, not extraordinary."""
    ranks = total.shape[1]
    settled = np.count_nonzero(~np.isnan(total), axis=1) * 2 >= max(ranks, 1)
    settled[:WARM_UP] = False
    if settled.any():
        middle = np.sort(total, axis=1)[:, (ranks - 1) // 2]  # a late rank never stands for all
        settled &= ~(middle > 3 * np.nanmedian(middle[settled]))
    return np.asarray(settled)

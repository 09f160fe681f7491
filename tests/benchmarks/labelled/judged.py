"""The border to what is measured: tables of own time in, verdicts of the analyses out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.compute_time import WARM_UP, ComputeTime
from tracelens.analyses.stragglers import episodes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.labelled.setting import Floats

MS: Final = 1e6


@dataclass(frozen=True)
class Verdict:
    """A late rank, as judged from own time alone."""

    ranks: tuple[int, ...]
    phase: str
    steps: tuple[int, int]
    saving: float
    interval: tuple[float, float]


def verdicts(phases: Mapping[str, Floats], per_host: int) -> list[Verdict]:
    """Judge durations of phases in milliseconds, [step, rank], of ranks that meet in every step."""
    own_ns = np.stack(list(phases.values())) * MS
    total = own_ns.sum(axis=0)
    length = np.broadcast_to(total.max(axis=1, keepdims=True), total.shape)
    steps, ranks = total.shape
    table = ComputeTime(
        ranks=tuple(range(ranks)),
        host_of_column=tuple(f"node{rank // per_host}" for rank in range(ranks)),
        step_numbers=np.arange(steps),
        phase_names=tuple(phases),
        compute_ns=own_ns,
        step_length_ns=length,
        wait_ns=length - total,
        is_comparable_row=np.arange(steps) >= WARM_UP,
    )
    return [
        Verdict(
            late.rank_columns,
            late.phase,
            (int(late.late_step_rows[0]), int(late.late_step_rows[-1])),
            cost.saving_share,
            cost.saving_interval,
        )
        for late, cost in episodes.price_episodes(table, float(total.max(axis=1).sum()))
    ]

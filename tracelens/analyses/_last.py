"""What speaks for a late rank beside its own time: it arrives last, and one function of it grew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tracelens.analyses.phases import Phases
    from tracelens.trace import Trace

_MOST_OF_IT: Final = 0.6  # of the phase's lateness, to be named as its place


def last_share(trace: Trace, ranks: tuple[int, ...], steps: npt.NDArray[np.int64]) -> float | None:
    """Return in what share of the collectives of these steps one of `ranks` came last."""
    calls = trace.arrivals.filter(
        pl.col("step").is_in(steps.tolist()), pl.col("last_arrival_ns").is_not_null()
    ).unique(["communicator", "seq"])
    if calls.is_empty():
        return None
    return calls.filter(pl.col("last_rank").is_in(list(ranks))).height / calls.height


def slowest_function(
    phases: Phases, ranks: tuple[int, ...], phase: str, steps: npt.NDArray[np.int64]
) -> str | None:
    """Return the recorded span in which the ranks lost most of what they lost to their peers."""
    late = pl.col("rank").is_in(list(ranks))
    inside = phases.segments.filter(
        pl.col("category") == phase, pl.col("step").is_in(steps.tolist())
    )
    counts = inside.select(
        late=pl.col("rank").filter(late).n_unique(), all=pl.col("rank").n_unique()
    )
    here, everywhere = counts.row(0)
    if not here or here == everywhere:
        return None
    length = pl.col("end_ns") - pl.col("start_ns")
    grown = inside.group_by("name").agg(
        extra=length.filter(late).sum() / here - length.filter(~late).sum() / (everywhere - here)
    )
    worst = grown.sort("extra", descending=True).row(0, named=True)
    total = float(grown["extra"].sum())
    named = worst["name"] is not None and worst["extra"] >= _MOST_OF_IT * total > 0
    return str(worst["name"]) if named else None

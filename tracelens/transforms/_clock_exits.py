"""Aligns the clocks whose hosts took part in the same full collectives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.schema.vocabulary import FULL_COLLECTIVES
from tracelens.transforms._clock_map import ClockMap
from tracelens.transforms._fit import fit
from tracelens.transforms.device import carried_out

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens.trace import Trace

SMALLEST_NS: Final = 1_000.0  # nobody should believe a fit more than this
_CALL: Final = ("communicator", "seq")


def from_exits(trace: Trace, clocks: pl.DataFrame) -> dict[int, ClockMap]:
    """Fit the clocks of the communicator that spans most of them; empty where none can be fitted.

    `clocks` says for each process which clock it has. The first clock is the common one.
    """
    found = _exits(trace, clocks)
    if found is None:
        return {}
    members, bases, exits = found
    corrections = fit(exits)
    if corrections is None:
        return {}
    maps = {members[0]: ClockMap(int(bases[0]), int(bases[0]))}
    for member, base, correction in list(zip(members, bases, corrections, strict=True))[1:]:
        # Exits cannot tell a lasting lag of one host from an offset; their scatter bounds it.
        sure = round(max(correction.sigma, correction.spread, SMALLEST_NS))
        maps[member] = ClockMap(int(base), int(bases[0]), correction, sure)
    return maps


def spread_of(found: ClockMap) -> float:
    """Return how far single exits scatter around the fit."""
    return found.correction.spread if found.correction else 0.0


def shifted(found: ClockMap, by: float, uncertainty: float) -> ClockMap:
    """Move a clock by a bias that a sharper measurement found."""
    if found.correction is None:
        return found
    correction = replace(found.correction, knots=found.correction.knots + by)
    return replace(found, correction=correction, uncertainty_ns=round(uncertainty))


def _exits(
    trace: Trace, clocks: pl.DataFrame
) -> tuple[list[int], npt.NDArray[np.int64], npt.NDArray[np.float64]] | None:
    """Return the clocks, where each begins to count, and its exits, [collective, clock]."""
    ends = _ends(trace, clocks, "closed")
    if ends.is_empty():  # calls matched by their order still tell, by how little they scatter
        ends = _ends(trace, clocks, "estimated")
    widest = ends.group_by("communicator", "seq").agg(
        members=pl.col("clock").sort(), width=pl.len()
    )
    if widest.filter(pl.col("width") > 1).is_empty():
        return None
    chosen = widest.sort("width", "communicator", "seq", descending=[True, False, False])
    members = chosen["members"][0].to_list()
    whole = widest.filter(
        pl.col("members").list.set_intersection(members).list.len() == len(members)
    )
    table = (
        ends.join(whole.select(_CALL), on=_CALL, how="semi")
        .filter(pl.col("clock").is_in(members))
        .sort("communicator", "seq", "clock")
    )
    times = table["end_ns"].to_numpy().reshape(-1, len(members))
    fraction = table["fraction"].to_numpy().reshape(-1, len(members))
    order = np.argsort(times[:, 0])
    bases = times.min(axis=0)
    return members, bases, ((times - bases) + fraction)[order]


def _ends(trace: Trace, clocks: pl.DataFrame, status: str) -> pl.DataFrame:
    """Return for each full collective of a status and each clock the median exit of its ranks."""
    main = trace.workers.select("process")
    calls = (
        trace.spans.filter(
            pl.col("kind") == "reduction",
            pl.col("op").cast(pl.String).is_in(FULL_COLLECTIVES),
            pl.col("status") == status,
            pl.col("end_ns").is_not_null(),
            pl.col("communicator").is_not_null(),
            pl.col("seq").is_not_null(),
        )
        .join(main.lazy(), on="process", how="semi")
        .join(clocks.lazy(), on="process")
        .select("clock", *_CALL, end_ns=carried_out()["end_ns"])
    )
    first = pl.col("end_ns").min()
    # Differences from the first exit are small, so that their median is exact.
    return (
        calls.group_by("clock", *_CALL)
        .agg(first=first, later=(pl.col("end_ns") - first).median())
        .select(
            "clock",
            *_CALL,
            end_ns=pl.col("first") + pl.col("later").floor().cast(pl.Int64),
            fraction=pl.col("later") - pl.col("later").floor(),
        )
        .collect()
    )

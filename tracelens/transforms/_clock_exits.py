"""Aligns the clocks whose hosts took part in the same full collectives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.schema.vocabulary import FULL_COLLECTIVES
from tracelens.transforms._clock_lags import lags
from tracelens.transforms._clock_map import ClockMap
from tracelens.transforms._fit import Correction, fit
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
    corrections = fit(found.exits)
    if corrections is None:
        return {}
    members, bases = found.members, found.bases
    unsure = lags(found.lasted, found.sizes).unsure() if len(members) > 1 else np.zeros(1)
    jumps = Correction(np.zeros(1), np.zeros(1), jumps=corrections[0].jumps)
    maps = {members[0]: ClockMap(int(bases[0]), int(bases[0]), jumps if jumps.jumps else None)}
    fitted = list(zip(members, bases, corrections, unsure, strict=True))
    for member, base, correction, lag in fitted[1:]:
        # Exits take a lasting lag of a host for an offset: what is known of it bounds the error.
        sure = round(max(correction.sigma, correction.spread, lag, SMALLEST_NS))
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


@dataclass(frozen=True)
class _Exits:
    """Clocks, where each begins to count, exits and time since the last entry, [collective, clock]."""

    members: list[int]
    bases: npt.NDArray[np.int64]
    exits: npt.NDArray[np.float64]
    lasted: npt.NDArray[np.float64]
    sizes: npt.NDArray[np.int64]


def _exits(trace: Trace, clocks: pl.DataFrame) -> _Exits | None:
    """Return when which clock says that each common collective was left."""
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
    times, entered, sizes, fraction = (
        table[name].to_numpy().reshape(-1, len(members))
        for name in ("end_ns", "entered", "bytes", "fraction")
    )
    order = np.argsort(times[:, 0])
    bases = times.min(axis=0)
    exits = ((times - bases) + fraction)[order]
    return _Exits(members, bases, exits, (times - entered)[order].astype(float), sizes[order, 0])


def _ends(trace: Trace, clocks: pl.DataFrame, status: str) -> pl.DataFrame:
    """Return for each full collective of a status and each clock its last entry and median exit."""
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
        .select("clock", *_CALL, "bytes", **carried_out())
    )
    first = pl.col("end_ns").min()
    # Differences from the first exit are small, so that their median is exact.
    return (
        calls.group_by("clock", *_CALL)
        .agg(
            first=first,
            later=(pl.col("end_ns") - first).median(),
            entered=pl.col("start_ns").max(),
            bytes=pl.col("bytes").max().fill_null(0),
        )
        .select(
            "clock",
            *_CALL,
            "entered",
            "bytes",
            end_ns=pl.col("first") + pl.col("later").floor().cast(pl.Int64),
            fraction=pl.col("later") - pl.col("later").floor(),
        )
        .collect()
    )

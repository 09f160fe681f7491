"""What a collective costs: latency + bytes / bandwidth, by operation, number of ranks and algorithm.

The model is Hockney's (1994, "The communication challenge for MPP"). It is fitted to the median time of
each size, by least absolute *relative* errors (iteratively reweighted least squares), since times vary
by a share of themselves: small messages then decide the latency, large ones the bandwidth, and a few
disturbed sizes decide nothing. The interval resamples the calls of every size.

Equal sizes do not separate latency from bandwidth. There, latency is bounded: it is what a call takes
beyond what its bytes need on the best link seen, at most, and at half of that bandwidth, at least. Where
no link was seen, on the slowest network that one trains over. If that leaves nothing, it is not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.analyses.collectives import transfers
from tracelens.stats.constants import (
    MAJORITY,
    MANY,
    MOST_OF_A_KIND,
    MOST_PARTS,
    MOST_ROUNDS,
    NEARLY_ALL,
    NEGLIGIBLE,
    SAMPLES,
    SLOWEST_NETWORK,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracelens.arrays import Floats, Ints
    from tracelens.model.trace import Trace

__all__ = [
    "BY",
    "CHOICE_COLUMNS",
    "CostModel",
    "bounds",
    "choices",
    "fit_cost_model",
    "fits",
    "latency_share",
]

Key = tuple[str, int, str | None]  # operation, ranks, and algorithm where it was recorded
Costs = dict[Key, "CostModel"]
BY: Final = ("op", "ranks", "algorithm")


def _parts(calls: pl.DataFrame) -> Iterator[tuple[Key, pl.DataFrame]]:
    for (op, ranks, algorithm), part in calls.partition_by(*BY, as_dict=True).items():
        yield (str(op), int(ranks), algorithm), part


def fits(calls: pl.DataFrame) -> Costs:
    """Fit the model to calls with bytes, `BY` what makes them alike, where sizes differ."""
    fitted = (
        (key, fit_cost_model(part["bytes"].to_numpy(), part["wire_ns"].to_numpy()))
        for key, part in _parts(calls)
    )
    return {key: line for key, line in fitted if line}


def bounds(trace: Trace, calls: pl.DataFrame, lines: Mapping[Key, CostModel]) -> Costs:
    """Bound the latency of calls that no line was fitted to, where anything is known of it."""
    left = {key: part for key, part in _parts(calls) if key not in lines}
    seen = [
        transfers.bus_factor(op, ranks) / line.ns_per_byte
        for (op, ranks, _), line in lines.items()
        if line.ns_per_byte > 0
    ]
    best, found = max([_best_link(trace) if left else 0.0, *seen]), {}
    for key, part in left.items():
        carried = part["bytes"].to_numpy() * transfers.bus_factor(*key[:2])
        model = bounded(carried, part["wire_ns"].to_numpy(), best)
        if model:
            found[key] = model
    return found


def _best_link(trace: Trace) -> float:
    """Return the best bandwidth of messages between ranks, bytes / ns; 0 without any."""
    hops = transfers.point_to_point_messages(trace).filter(pl.col("ns") > 0)
    best = (hops["bytes"] / hops["ns"]).quantile(NEARLY_ALL)
    return best or 0.0


def bounded(carried: Floats, ns: Ints, best: float) -> CostModel | None:
    """Bound the latency of calls that take `ns` and carry so many bytes over each link.

    Args:
        carried: Bytes that the slowest link must carry.
        ns: What each call took.
        best: The best bandwidth of a link that was seen, bytes / ns; 0 = none was.
    """
    if len(ns) < MANY:
        return None
    size, usual = float(np.median(carried)), float(np.median(ns))
    least = float(np.quantile(ns, 1 - NEARLY_ALL)) - size / max(MAJORITY * best, SLOWEST_NETWORK)
    if least <= 0:
        return None
    most = usual - (size / best if best else 0.0)
    return CostModel(
        latency_ns=(least + most) / 2,
        ns_per_byte=0.0,
        latency_interval=(least, most),
        ns_per_byte_interval=(0.0, 0.0),
        deviation=0.0,
        smallest=int(carried.min()),
        largest=int(carried.max()),
    )


def latency_share(trace: Trace) -> float | None:
    """Return what share of all transfer is latency; null where it is not known of most."""
    calls = transfers.collective_calls(trace).filter(pl.col("wire_ns") > 0, pl.col("ranks") > 1)
    sized = transfers.with_algorithms(trace, calls.filter(pl.col("bytes") > 0))
    lines = fits(sized)
    costs = lines | bounds(trace, sized, lines)
    known = latency = 0.0
    for key, part in _parts(sized):
        if key in costs:
            wire = part["wire_ns"].to_numpy()
            known += float(wire.sum())
            latency += float(np.minimum(wire, costs[key].latency_ns).sum())
    return latency / known if known > MAJORITY * float(calls["wire_ns"].sum()) else None


CHOICE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "op": pl.String(),
    "ranks": pl.Int32(),
    "from_bytes": pl.Float64(),  # from here on, until the next row of the same calls, it is fastest
    "algorithm": pl.String(),  # null: not recorded, the library's own choice
    "latency_ns": pl.Float64(),
    "ns_per_byte": pl.Float64(),
}


def choices(lines: Mapping[Key, CostModel]) -> pl.DataFrame:
    """Return which algorithm is fastest from which size on, by the lines, where there are several.

    Calls whose algorithm was not recorded count as one: the library's own choice. Only sizes that all
    of them were measured with are compared.
    """
    several: dict[tuple[str, int], dict[str | None, CostModel]] = {}
    for (op, ranks, algorithm), line in lines.items():
        several.setdefault((op, ranks), {})[algorithm] = line
    rows = [
        (op, ranks, size, name, models[name].latency_ns, models[name].ns_per_byte)
        for (op, ranks), models in sorted(several.items())
        if len(models) > 1
        for size, name in _fastest(models)
    ]
    return pl.DataFrame(rows, schema=CHOICE_COLUMNS, orient="row")


def _fastest(models: Mapping[str | None, CostModel]) -> Iterator[tuple[float, str | None]]:
    """Yield from which size on which line is lowest."""
    low = max(line.smallest for line in models.values())
    high = min(line.largest for line in models.values())
    crossings = {
        (two.latency_ns - one.latency_ns) / (one.ns_per_byte - two.ns_per_byte)
        for one in models.values()
        for two in models.values()
        if one.ns_per_byte != two.ns_per_byte
    }
    edges = [low, *sorted(size for size in crossings if low < size < high), high]
    if low >= high:
        return
    fastest = [
        (float(begin), min(models, key=lambda name: models[name].predicted((begin + end) / 2)))
        for begin, end in pairwise(edges)
    ]
    yield from (next(group) for _, group in groupby(fastest, key=itemgetter(1)))


@dataclass(frozen=True)
class CostModel:
    """`latency_ns` + bytes x `ns_per_byte`, each with its 95 % interval.

    `misfit` is the median relative error of a size; `smallest` and `largest` bound what was seen.
    """

    latency_ns: float
    ns_per_byte: float
    latency_interval: tuple[float, float]
    ns_per_byte_interval: tuple[float, float]
    deviation: float
    smallest: int
    largest: int

    def predicted(self, nbytes: float) -> float:
        """Return what a call of so many bytes takes, nanoseconds."""
        return self.latency_ns + nbytes * self.ns_per_byte

    @property
    def half_bandwidth_bytes(self) -> float:
        """The size at which latency takes as long as the bytes: smaller messages are latency-bound."""
        return self.latency_ns / self.ns_per_byte if self.ns_per_byte > 0 else np.inf


def fit_cost_model(nbytes: Ints, ns: Ints) -> CostModel | None:
    """Fit the line; None where too few calls, or too little difference in size, tell it.

    Args:
        nbytes: Payload of each call, positive.
        ns: What each took.
    """
    if len(nbytes) < MANY or nbytes.max() < 2 * nbytes.min():
        return None
    sizes, groups = _by_size(nbytes, ns)
    middles = np.array([np.median(group) for group in groups])
    latency, slope = (float(part[0]) for part in _lines(sizes, middles[None]))
    latencies, slopes = _lines(sizes, _bootstrap_medians(groups))
    errors = np.abs(latency + slope * sizes - middles) / np.maximum(middles, 1)
    return CostModel(
        latency_ns=latency,
        ns_per_byte=slope,
        latency_interval=_quantile_interval(latency, latencies),
        ns_per_byte_interval=_quantile_interval(slope, slopes),
        deviation=float(np.median(errors)),
        smallest=int(nbytes.min()),
        largest=int(nbytes.max()),
    )


def _by_size(nbytes: Ints, ns: Ints) -> tuple[Floats, list[Floats]]:
    """Put calls of one size together; of very many sizes, those within a sixteenth of a doubling."""
    keys = nbytes
    if len(np.unique(nbytes)) > MOST_PARTS:
        keys = np.round(np.log2(nbytes) * MOST_PARTS / 4).astype(np.int64)
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    groups = np.split(ns[order].astype(np.float64), cuts)
    sizes = np.array([part.mean() for part in np.split(nbytes[order], cuts)])
    return sizes, groups


def _bootstrap_medians(groups: list[Floats]) -> Floats:
    """Return medians of resampled calls, [sample, size]."""
    random = np.random.default_rng(0)
    thinned = [group[:: -(-len(group) // MOST_OF_A_KIND)] for group in groups]
    drawn = [
        np.median(group[random.integers(0, len(group), (SAMPLES, len(group)))], axis=1)
        for group in thinned
    ]
    return np.stack(drawn, axis=1)


def _lines(sizes: Floats, times: Floats) -> tuple[Floats, Floats]:
    """Fit a line with no negative part to each row of times: latencies, and ns per byte."""
    scale = np.maximum(times, 1.0)
    weight = 1 / scale**2
    latency = slope = np.zeros(len(times))
    for _ in range(MOST_ROUNDS):
        latency, slope = _weighted(sizes, times, weight)
        error = np.abs(latency[:, None] + slope[:, None] * sizes - times) / scale
        weight = 1 / scale**2 / np.maximum(error, NEGLIGIBLE)
    return latency, slope


def _weighted(sizes: Floats, times: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Return the weighted least-squares line of each row, with neither part below zero."""
    total = weight.sum(axis=1)
    x, y = (weight * sizes).sum(axis=1) / total, (weight * times).sum(axis=1) / total
    away = sizes - x[:, None]
    slope = (weight * away * times).sum(axis=1) / (weight * away**2).sum(axis=1)
    latency = y - slope * x
    through_zero = (weight * sizes * times).sum(axis=1) / (weight * sizes**2).sum(axis=1)
    slope = np.where(latency < 0, through_zero, slope)
    flat = slope < 0
    return np.where(flat, y, np.maximum(latency, 0)), np.maximum(slope, 0)


def _quantile_interval(value: float, drawn: Floats) -> tuple[float, float]:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return min(float(low), value), max(float(high), value)

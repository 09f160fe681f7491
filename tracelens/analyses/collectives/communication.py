"""Communication: what bandwidth collectives reach, what a message costs by itself, whether fewer pay.

Algorithm bandwidth is payload / time; bus bandwidth multiplies it by what the slowest link must carry
(nccl-tests, PERFORMANCE.md), so that operations and numbers of ranks compare. Messages are **small** if
joining them saves time when the steps are replayed (`replay/collectives.py`).

The cost model latency + bytes / bandwidth is Hockney's (1994, "The communication challenge for MPP"),
by operation and number of ranks. It is fitted to the median time of each size, by least absolute
*relative* errors (iteratively reweighted least squares), since times vary by a share of themselves:
small messages then decide the latency, large ones the bandwidth, and a few disturbed sizes decide
nothing. The interval resamples the calls of every size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.phases import exposed_transfer, job_ns
from tracelens.analyses.collectives import transfers
from tracelens.model import fmt
from tracelens.model.findings import Finding
from tracelens.replay import collectives
from tracelens.stats.robust import bootstrap_interval

if TYPE_CHECKING:
    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats, Ints
    from tracelens.model.trace import Trace
    from tracelens.replay.collectives import Fused

__all__ = [
    "BANDWIDTH_COLUMNS",
    "LINE_COLUMNS",
    "Communication",
    "CostModel",
    "fit_cost_model",
    "run",
]


WORTH_REPORTING: Final = 0.03  # of the job
FEWEST_CALLS: Final = 8  # of a size class, to speak of its best
_BEST: Final = 0.9  # quantile: a single lucky call is no best
_BY: Final = ("op", "ranks", "from_bytes")
_CLASS: Final = 4  # a size class reaches from one power of 4 to the next

BANDWIDTH_COLUMNS: Final[dict[str, pl.DataType]] = {
    "op": pl.String(),
    "ranks": pl.Int32(),
    "from_bytes": pl.Int64(),  # the size class: up to four times that
    "calls": pl.Int64(),
    "bytes": pl.Float64(),  # median
    "wire_ns": pl.Float64(),  # median
    "algorithm_bandwidth": pl.Float64(),  # bytes / ns, that is GB/s
    "bus_bandwidth": pl.Float64(),
    "of_best": pl.Float64(),  # share of the best bus bandwidth seen among as many ranks
}
LINE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "op": pl.String(),
    "ranks": pl.Int32(),
    "latency_ns": pl.Float64(),
    "latency_low_ns": pl.Float64(),
    "latency_high_ns": pl.Float64(),
    "bus_bandwidth": pl.Float64(),  # bytes / ns once a message is large
    "bus_bandwidth_low": pl.Float64(),
    "bus_bandwidth_high": pl.Float64(),
    "half_bandwidth_bytes": pl.Float64(),  # below, a message is latency for the most part
    "latency_share": pl.Float64(),  # of the wire's time
    "misfit": pl.Float64(),  # median relative error of a size
}


@dataclass(frozen=True)
class Communication:
    """`calls` is one row a collective, `bandwidths` by size class, `lines` the fits.

    `slowest` is, of every row of `bandwidths`, the call that took longest for its bytes.
    """

    calls: pl.DataFrame
    bandwidths: pl.DataFrame
    slowest: pl.DataFrame
    lines: pl.DataFrame
    findings: tuple[Finding, ...]

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """What a report shows."""
        return {"bandwidths": self.bandwidths, "message_costs": self.lines}


def run(trace: Trace, phases: Phases) -> Communication:
    """Measure the collectives of all communicators."""
    calls = transfers.collective_calls(trace)
    sized = calls.filter(pl.col("bytes") > 0, pl.col("wire_ns") > 0, pl.col("ranks") > 1)
    lines = _fits(sized)
    job = job_ns(trace)
    small = _small(sized, lines, phases, job) if job else []
    each = _classed(sized)
    return Communication(
        calls, _bandwidths(each), _slowest(each), _table(sized, lines), tuple(small)
    )


def _classed(calls: pl.DataFrame) -> pl.DataFrame:
    """Add size class and bandwidths to calls."""
    factors = [
        transfers.bus_factor(op, ranks) for op, ranks in calls.select("op", "ranks").iter_rows()
    ]
    power = (pl.col("bytes").log(_CLASS) + 1e-9).floor()
    bus = pl.col("algorithm_bandwidth") * pl.col("factor")
    return calls.with_columns(
        from_bytes=(_CLASS**power).round().cast(pl.Int64),
        algorithm_bandwidth=pl.col("bytes") / pl.col("wire_ns"),
        factor=pl.Series(factors, dtype=pl.Float64),
    ).with_columns(bus_bandwidth=bus)


def _bandwidths(each: pl.DataFrame) -> pl.DataFrame:
    """Summarise calls by operation, number of ranks and size."""
    table = each.group_by(_BY).agg(
        pl.col("bytes", "wire_ns", "algorithm_bandwidth", "bus_bandwidth").median(),
        calls=pl.len().cast(pl.Int64),
        best=pl.when(pl.len() >= FEWEST_CALLS).then(pl.col("bus_bandwidth").quantile(_BEST)),
    )
    best = pl.col("best").max().over("ranks")
    return (
        table.with_columns(of_best=(pl.col("bus_bandwidth") / best).clip(upper_bound=1.0))
        .select(pl.col(name).cast(kind) for name, kind in BANDWIDTH_COLUMNS.items())
        .sort("ranks", "op", "from_bytes")
    )


def _slowest(each: pl.DataFrame) -> pl.DataFrame:
    slowest = pl.col("algorithm_bandwidth").arg_min()
    return (
        each.group_by(_BY)
        .agg(pl.col("ready_ns", "wire_ns").get(slowest))
        .sort("ranks", "op", "from_bytes")
    )


def _fits(calls: pl.DataFrame) -> dict[tuple[str, int], CostModel]:
    found = {}
    for (op, ranks), part in calls.partition_by("op", "ranks", as_dict=True).items():
        line = fit_cost_model(part["bytes"].to_numpy(), part["wire_ns"].to_numpy())
        if line:
            found[str(op), int(ranks)] = line
    return found


def _table(calls: pl.DataFrame, lines: dict[tuple[str, int], CostModel]) -> pl.DataFrame:
    rows = []
    for (op, ranks), line in sorted(lines.items()):
        factor = transfers.bus_factor(op, ranks)
        slow, fast = line.ns_per_byte_interval[::-1]
        bandwidths = [factor / ns if ns > 0 else None for ns in (line.ns_per_byte, slow, fast)]
        wire = calls.filter(pl.col("op") == op, pl.col("ranks") == ranks)["wire_ns"]
        half = line.half_bandwidth_bytes
        latency = (line.latency_ns, *line.latency_interval)
        share = min(line.latency_ns * len(wire) / max(int(wire.sum()), 1), 1.0)
        known = half if np.isfinite(half) else None
        rows.append((op, ranks, *latency, *bandwidths, known, share, line.deviation))
    return pl.DataFrame(rows, schema=LINE_COLUMNS, orient="row")


def _small(
    calls: pl.DataFrame, lines: dict[tuple[str, int], CostModel], phases: Phases, job: int
) -> list[Finding]:
    """Report each communicator whose messages are worth joining."""
    found = []
    for part in calls.partition_by("communicator", "op", maintain_order=True):
        line = lines.get((part["op"][0], part["ranks"][0]))
        if line is None or line.latency_interval[0] <= 0 or part["step"].min() == -1:
            continue
        fused = [_fused(same, line.latency_ns, phases) for same in collectives.StepCalls.of(part)]
        saving = sum(float(one.saved.sum()) for one in fused) / job
        if saving >= WORTH_REPORTING:
            found.append(_finding(part, line, fused, saving, job))
    return found


def _fused(calls: collectives.StepCalls, latency_ns: float, phases: Phases) -> Fused:
    return collectives.best_fusion(calls, latency_ns, exposed_transfer(phases, calls.steps))


def _interval(fused: list[Fused], line: CostModel, job: int) -> tuple[float, float]:
    """Join the doubt about single steps with that about the latency."""
    saved = np.concatenate([one.saved for one in fused])
    saving = float(saved.sum()) / job
    below, above = (
        np.hypot(drawn - saving, (latency / line.latency_ns - 1) * saving)
        for drawn, latency in zip(
            bootstrap_interval(saved, job), line.latency_interval, strict=True
        )
    )
    return max(saving - float(below), 0.0), min(saving + float(above), 1.0)


def _finding(
    part: pl.DataFrame, line: CostModel, fused: list[Fused], saving: float, job: int
) -> Finding:
    typical = max(fused, key=lambda one: len(one.steps))
    wire = int(part["wire_ns"].sum())
    share = min(line.latency_ns * part.height / max(wire, 1), 1.0)
    interval = _interval(fused, line, job)
    size = float(part["bytes"].to_numpy().mean())
    op = str(part["op"][0])
    return Finding.of(
        "small_messages",
        {
            "calls": fmt.count(typical.calls, op),
            "size": fmt.size(size),
            "latency": fmt.duration(line.latency_ns),
            "share": fmt.percent(share),
            "messages": fmt.count(typical.messages, "message"),
        },
        phase="reduction",
        pattern="persistent",
        saving=saving,
        interval=interval,
        evidence={
            "op": op,
            "calls_per_step": typical.calls,
            "messages_per_step": typical.messages,
            "mean_bytes": size,
            "latency_ns": line.latency_ns,
            "latency_share": share,
            "half_bandwidth_bytes": line.half_bandwidth_bytes,
        },
    )


FEWEST_TO_FIT: Final = 16  # calls
LEAST_SIZE_RATIO: Final = 2.0  # times the smallest size is the largest, at least
_MOST_SIZES: Final = 64
_MOST_CALLS: Final = 256  # of a size, for the interval
_SAMPLES: Final = 200
_ROUNDS: Final = 40
_TINY: Final = 1e-3  # relative error below which a point weighs no more


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
    if len(nbytes) < FEWEST_TO_FIT or nbytes.max() < LEAST_SIZE_RATIO * nbytes.min():
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
    if len(np.unique(nbytes)) > _MOST_SIZES:
        keys = np.round(np.log2(nbytes) * _MOST_SIZES / 4).astype(np.int64)
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    groups = np.split(ns[order].astype(np.float64), cuts)
    sizes = np.array([part.mean() for part in np.split(nbytes[order], cuts)])
    return sizes, groups


def _bootstrap_medians(groups: list[Floats]) -> Floats:
    """Return medians of resampled calls, [sample, size]."""
    random = np.random.default_rng(0)
    thinned = [group[:: -(-len(group) // _MOST_CALLS)] for group in groups]
    drawn = [
        np.median(group[random.integers(0, len(group), (_SAMPLES, len(group)))], axis=1)
        for group in thinned
    ]
    return np.stack(drawn, axis=1)


def _lines(sizes: Floats, times: Floats) -> tuple[Floats, Floats]:
    """Fit a line with no negative part to each row of times: latencies, and ns per byte."""
    scale = np.maximum(times, 1.0)
    weight = 1 / scale**2
    latency = slope = np.zeros(len(times))
    for _ in range(_ROUNDS):
        latency, slope = _weighted(sizes, times, weight)
        error = np.abs(latency[:, None] + slope[:, None] * sizes - times) / scale
        weight = 1 / scale**2 / np.maximum(error, _TINY)
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

"""Communication: what bandwidth collectives reach, what a message costs by itself, whether fewer pay.

Algorithm bandwidth is payload / time; bus bandwidth multiplies it by what the slowest link must carry
(nccl-tests, PERFORMANCE.md), so that operations and numbers of ranks compare. A line latency + bytes
/ bandwidth is fitted by operation and number of ranks (`_alpha_beta.py`). Messages are **small** if
joining them saves time when the steps are played again (`_fusion.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens import words
from tracelens.analyses import _alpha_beta, _calls, _fusion
from tracelens.analyses._counterfactual import resampled
from tracelens.analyses._exposed import exposed_transfer
from tracelens.analyses._job import job_ns
from tracelens.analyses.result import Finding

if TYPE_CHECKING:
    from tracelens.analyses._alpha_beta import Line
    from tracelens.analyses._fusion import Fused
    from tracelens.analyses.phases import Phases
    from tracelens.trace import Trace

__all__ = ["BANDWIDTH_COLUMNS", "LINE_COLUMNS", "Communication", "run"]

WORTH_SAYING: Final = 0.03  # of the job
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
    calls = _calls.measure(trace)
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
        _calls.bus_factor(op, ranks) for op, ranks in calls.select("op", "ranks").iter_rows()
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


def _fits(calls: pl.DataFrame) -> dict[tuple[str, int], Line]:
    found = {}
    for (op, ranks), part in calls.partition_by("op", "ranks", as_dict=True).items():
        line = _alpha_beta.fit(part["bytes"].to_numpy(), part["wire_ns"].to_numpy())
        if line:
            found[str(op), int(ranks)] = line
    return found


def _table(calls: pl.DataFrame, lines: dict[tuple[str, int], Line]) -> pl.DataFrame:
    rows = []
    for (op, ranks), line in sorted(lines.items()):
        factor = _calls.bus_factor(op, ranks)
        slow, fast = line.ns_per_byte_interval[::-1]
        bandwidths = [factor / ns if ns > 0 else None for ns in (line.ns_per_byte, slow, fast)]
        wire = calls.filter(pl.col("op") == op, pl.col("ranks") == ranks)["wire_ns"]
        half = line.half_bandwidth_bytes
        latency = (line.latency_ns, *line.latency_interval)
        share = min(line.latency_ns * len(wire) / max(int(wire.sum()), 1), 1.0)
        known = half if np.isfinite(half) else None
        rows.append((op, ranks, *latency, *bandwidths, known, share, line.misfit))
    return pl.DataFrame(rows, schema=LINE_COLUMNS, orient="row")


def _small(
    calls: pl.DataFrame, lines: dict[tuple[str, int], Line], phases: Phases, job: int
) -> list[Finding]:
    """Report each communicator whose messages are worth joining."""
    found = []
    for part in calls.partition_by("communicator", "op", maintain_order=True):
        line = lines.get((part["op"][0], part["ranks"][0]))
        if line is None or line.latency_interval[0] <= 0 or part["step"].min() == -1:
            continue
        fused = [_fused(same, line.latency_ns, phases) for same in _fusion.Calls.of(part)]
        saving = sum(float(one.saved.sum()) for one in fused) / job
        if saving >= WORTH_SAYING:
            found.append(_finding(part, line, fused, saving, job))
    return found


def _fused(calls: _fusion.Calls, latency_ns: float, phases: Phases) -> Fused:
    return _fusion.best(calls, latency_ns, exposed_transfer(phases, calls.steps))


def _interval(fused: list[Fused], line: Line, job: int) -> tuple[float, float]:
    """Join the doubt about single steps with that about the latency."""
    saved = np.concatenate([one.saved for one in fused])
    saving = float(saved.sum()) / job
    below, above = (
        np.hypot(drawn - saving, (latency / line.latency_ns - 1) * saving)
        for drawn, latency in zip(resampled(saved, job), line.latency_interval, strict=True)
    )
    return max(saving - float(below), 0.0), min(saving + float(above), 1.0)


def _finding(
    part: pl.DataFrame, line: Line, fused: list[Fused], saving: float, job: int
) -> Finding:
    typical = max(fused, key=lambda one: len(one.steps))
    wire = int(part["wire_ns"].sum())
    share = min(line.latency_ns * part.height / max(wire, 1), 1.0)
    interval = _interval(fused, line, job)
    size = float(part["bytes"].to_numpy().mean())
    op = str(part["op"][0])
    messages = words.count(typical.messages, "message")
    return Finding(
        kind="small_messages",
        category="opportunity",
        phase="reduction",
        pattern="persistent",
        saving=saving,
        interval=interval,
        sentence=(
            f"A step sends {words.count(typical.calls, op)} of {words.size(size)} on average, and "
            f"each takes {words.duration(line.latency_ns)} however few its bytes: "
            f"{words.percent(share)} of the transfer is latency. Joined into {messages} a step, they "
            f"would make the job up to {words.percent(saving)} shorter."
        ),
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

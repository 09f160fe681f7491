"""Communication: what bandwidth collectives reach, what a message costs by itself, whether fewer pay.

Messages are **small** if joining them saves time when the run is replayed. What one costs is fitted
where sizes differ, and bounded where they do not (docs/analyses/collectives-and-links.md).
"""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.communication import call_costs, transfers
from tracelens.accounting.communication.pickled_calls import find_pickled_calls
from tracelens.accounting.phases import job_ns
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding
from tracelens.replay.pricing import price_joined_calls
from tracelens.stats.robust import bootstrap_interval

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.accounting.communication.call_costs import CallKind, Costs
    from tracelens.facts import Facts
    from tracelens.replay.pricing import JoinedCalls
    from tracelens.stats.cost_line import CostModel

RATIO_OF_SIZE_CLASSES: Final = 4  # times: a size class reaches to as many its smallest [policy]
# classes: a size so close below the next class is in it, since logarithms are rounded [policy]
ROUNDING_OF_SIZE_CLASSES: Final = 1e-9
# calls: fewer of a size class do not show the best bandwidth [policy]
MIN_CALLS_FOR_BEST_BANDWIDTH: Final = 16
# share of calls: the best bandwidth is this quantile [policy]
QUANTILE_OF_BEST_BANDWIDTH: Final = 0.9
# of the job: joining messages that saves less is not reported [policy]
MIN_SAVING_TO_REPORT_SMALL_MESSAGES: Final = 0.03

_BY: Final = (*call_costs.CALL_KIND, "from_bytes")
BANDWIDTH_COLUMNS: Final[dict[str, pl.DataType]] = {
    "op": pl.String(),
    "ranks": pl.Int32(),
    "algorithm": pl.String(),  # how it was carried out; null where that was not recorded
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
    "algorithm": pl.String(),
    "latency_ns": pl.Float64(),
    "latency_low_ns": pl.Float64(),
    "latency_high_ns": pl.Float64(),
    "bus_bandwidth": pl.Float64(),  # bytes / ns once a message is large
    "bus_bandwidth_low": pl.Float64(),
    "bus_bandwidth_high": pl.Float64(),
    "half_bandwidth_bytes": pl.Float64(),  # below, a message is latency for the most part
    "latency_share": pl.Float64(),  # of the wire's time in fast calls
    "misfit": pl.Float64(),  # median relative error of a size
}


@dataclass(frozen=True, eq=False)
class Communication(DisplayMixin):
    """`calls` has a row a collective, `bandwidths` by size class, `lines` the fits.

    `choices` says which algorithm is fastest from which size on; `slowest` has the call of each row of
    `bandwidths` that took longest for its bytes.
    """

    calls: pl.DataFrame
    bandwidths: pl.DataFrame
    slowest: pl.DataFrame
    lines: pl.DataFrame
    choices: pl.DataFrame
    findings: tuple[Finding, ...]

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """What a report shows."""
        return {
            "bandwidths": self.bandwidths,
            "message_costs": self.lines,
            "algorithms": self.choices,
        }


def run(facts: Facts) -> Communication:
    """Measure the collectives of all communicators."""
    costs = facts.call_costs
    size_classes = _summarise_size_classes(_add_bandwidths(costs.sized_calls))
    return Communication(
        calls=facts.call_table,
        bandwidths=size_classes.select(
            pl.col(name).cast(kind) for name, kind in BANDWIDTH_COLUMNS.items()
        ),
        slowest=size_classes.select(*_BY, ready_ns="slowest_ready_ns", wire_ns="slowest_wire_ns"),
        lines=_list_lines(costs.fitted_cost_by_kind, costs.latency_share_by_kind),
        choices=call_costs.find_fastest(costs.fitted_cost_by_kind),
        findings=tuple(_find_small_messages(facts)),
    )


def _add_bandwidths(calls: pl.DataFrame) -> pl.DataFrame:
    """Add the size class, `from_bytes`, and bandwidths, bytes / ns, to calls, a row each."""
    ops_and_ranks = calls.select("op", "ranks").iter_rows()
    bus_factors = pl.Series(
        [transfers.bus_factor(op, ranks) for op, ranks in ops_and_ranks], dtype=pl.Float64
    )
    power = (pl.col("bytes").log(RATIO_OF_SIZE_CLASSES) + ROUNDING_OF_SIZE_CLASSES).floor()
    bandwidth = pl.col("bytes") / pl.col("wire_ns")
    return calls.with_columns(
        from_bytes=(RATIO_OF_SIZE_CLASSES**power).round().cast(pl.Int64),
        algorithm_bandwidth=bandwidth,
        bus_bandwidth=bandwidth * bus_factors,
    )


def _summarise_size_classes(calls: pl.DataFrame) -> pl.DataFrame:
    """Summarise calls, a row each, by operation, ranks and size class, each with its slowest call."""
    best_bandwidth = pl.col("bus_bandwidth").quantile(QUANTILE_OF_BEST_BANDWIDTH)
    slowest = pl.col("algorithm_bandwidth").arg_min()
    best_of_ranks = pl.col("best_bandwidth").max().over("ranks")
    share_of_best = (pl.col("bus_bandwidth") / best_of_ranks).clip(upper_bound=1.0)
    return (
        calls.group_by(_BY)
        .agg(
            pl.col("bytes", "wire_ns", "algorithm_bandwidth", "bus_bandwidth").median(),
            pl.col("ready_ns", "wire_ns").get(slowest).name.prefix("slowest_"),
            calls=pl.len().cast(pl.Int64),
            best_bandwidth=pl.when(pl.len() >= MIN_CALLS_FOR_BEST_BANDWIDTH).then(best_bandwidth),
        )
        .with_columns(of_best=share_of_best)
        .sort("ranks", "op", "algorithm", "from_bytes")
    )


def _list_lines(lines: Costs, latency_shares: Mapping[CallKind, float]) -> pl.DataFrame:
    """Return a row for each fitted line of costs, in `LINE_COLUMNS`; both are by kind of call."""
    rows = []
    for (op, ranks, algorithm), line in lines.items():
        bus_factor = transfers.bus_factor(op, ranks)
        low_ns_per_byte, high_ns_per_byte = line.ns_per_byte_interval
        bandwidths = [  # bytes / ns: the fit, and its least and largest value
            bus_factor / ns_per_byte if ns_per_byte > 0 else None
            for ns_per_byte in (line.ns_per_byte, high_ns_per_byte, low_ns_per_byte)
        ]
        half_bytes = line.half_bandwidth_bytes if np.isfinite(line.half_bandwidth_bytes) else None
        latencies_ns = (line.latency_ns, *line.latency_interval_ns)
        line_numbers = half_bytes, latency_shares[op, ranks, algorithm], line.relative_error
        rows.append((op, ranks, algorithm, *latencies_ns, *bandwidths, *line_numbers))
    return pl.DataFrame(rows, schema=LINE_COLUMNS, orient="row").sort("op", "ranks", "algorithm")


def _find_small_messages(facts: Facts) -> list[Finding]:
    """Report each communicator whose messages are worth joining."""
    run_ns = job_ns(facts.trace)
    if not run_ns:
        return []
    findings, costs = [], facts.call_costs
    min_saving_ns = MIN_SAVING_TO_REPORT_SMALL_MESSAGES * run_ns
    for calls in costs.sized_calls.partition_by(
        "communicator", "op", "algorithm", maintain_order=True
    ):
        communicator, op = calls["communicator"][0], str(calls["op"][0])
        cost_line = costs.cost_by_kind.get((op, calls["ranks"][0], calls["algorithm"][0]))
        if cost_line is None or cost_line.latency_interval_ns[0] <= 0 or calls["step"].min() == -1:
            continue
        # Joined, all calls of a step but one cost less by a latency.
        if cost_line.latency_ns * (calls.height - calls["step"].n_unique()) < min_saving_ns:
            continue
        all_calls = costs.sized_calls.filter(communicator=communicator, op=op)
        has_one_algorithm = all_calls["algorithm"].n_unique() == 1
        joined_calls = price_joined_calls(
            facts.replay,
            str(communicator),
            op,
            _adjust_to_usual_call(cost_line, calls),
            min_saving_ns=min_saving_ns,
            step_numbers=None if has_one_algorithm else calls["step"].unique().sort().to_numpy(),
        )
        if joined_calls:
            findings.append(_report(facts, calls, cost_line, joined_calls))
    return findings


def _adjust_to_usual_call(line: CostModel, calls: pl.DataFrame) -> CostModel:
    """Return a cost line whose bytes take what the median call takes beyond the latency.

    A fitted line is kept: only where latency is bounded does it say nothing of bytes. `calls` has a row
    each.
    """
    if line.ns_per_byte > 0:
        return line
    wire_ns, nbytes = (float(np.median(calls[name].to_numpy())) for name in ("wire_ns", "bytes"))
    return dataclasses.replace(
        line, ns_per_byte=max(wire_ns - line.latency_ns, 0.0) / max(nbytes, 1.0)
    )


def _measure_interval(
    joined: JoinedCalls, line: CostModel, saving: float, run_ns: int
) -> tuple[float, float]:
    """Return the 95 % interval of a saving by joined calls, both shares of the job of `run_ns`.

    It joins the doubt about single steps with that about the latency of the cost `line`.
    """
    bounds = bootstrap_interval(joined.saved_ns_by_step, run_ns)
    lower_error, upper_error = (
        np.hypot(bound - saving, (latency_ns / line.latency_ns - 1) * saving)
        for bound, latency_ns in zip(bounds, line.latency_interval_ns, strict=True)
    )
    low, high = joined.replay.identity.widen_interval(
        (saving - float(lower_error), saving + float(upper_error))
    )
    return max(low, 0.0), min(high, 1.0)


def _report(facts: Facts, calls: pl.DataFrame, line: CostModel, joined: JoinedCalls) -> Finding:
    """Report that some calls of one kind, a row each, are worth joining; `line` is what they cost."""
    run_ns, pickled_calls = job_ns(facts.trace), find_pickled_calls(facts.call_table)
    op, saving = str(calls["op"][0]), float(joined.saved_ns_by_step.sum()) / run_ns
    latency_share = facts.call_costs.latency_share_by_kind[
        op, calls["ranks"][0], calls["algorithm"][0]
    ]
    mean_bytes = float(calls["bytes"].to_numpy().mean())
    return Finding.of(
        "small_messages",
        {
            "calls": fmt.count(joined.calls_per_step, op),
            "size": fmt.size(mean_bytes),
            "latency": fmt.duration(line.latency_ns),
            "share": fmt.percent(latency_share),
            "messages": fmt.count(joined.messages_per_step, "message"),
        },
        phase="reduction",
        pattern="persistent",
        saving=saving,
        interval=_measure_interval(joined, line, saving, run_ns),
        fix=joined.fix,
        more=[pickled_calls.sentence] if pickled_calls else [],
        evidence={
            "op": op,
            "calls_per_step": joined.calls_per_step,
            "messages_per_step": joined.messages_per_step,
            "bucket_bytes": joined.fix.max_bytes,
            "mean_bytes": mean_bytes,
            "latency_ns": line.latency_ns,
            "latency_share": latency_share,
            "half_bandwidth_bytes": line.half_bandwidth_bytes,
            "pickled": asdict(pickled_calls) if pickled_calls else None,
        },
    )

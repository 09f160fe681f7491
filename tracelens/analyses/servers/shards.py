"""Parameter-server shards: who holds the bytes, who serves longest, where requests are queued.

Worker and shard records of one request are joined by the request id that its message carried, which
also gives the shard where a worker does not. Where some request's shard or bytes are not known, no
shard's bytes are. Load is judged by bytes: a synchronous step's PS part lasts as long as its busiest
shard. What another placement would save is what its edit of the replay saves (`replay/edits`). The
effective number of shards is total / max (Mathuriya et al. 2017). What else may block servers is
reported by `bottleneck.py`, where variables should lie by `variable_placement.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import polars as pl

from tracelens.accounting import sampled_code
from tracelens.accounting.phases import job_ns
from tracelens.accounting.service import PROCESSOR_OPS, SERVICE_OPS
from tracelens.analyses.servers import (
    small_messages,
    utilisation,
    variable_placement,
)
from tracelens.analyses.servers.bottleneck import classify, findings
from tracelens.analyses.servers.exchange import Exchange
from tracelens.analyses.servers.queues import (
    NO_QUEUES,
    Queues,
    held_requests,
    measure_queues,
)
from tracelens.analyses.servers.variable_placement import PLACEMENT_COLUMNS, TENSOR_COLUMNS
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding

if TYPE_CHECKING:
    from tracelens.analyses.servers.bottleneck import Bound
    from tracelens.analyses.servers.variable_placement import Advice
    from tracelens.facts import Facts
    from tracelens.model.trace import Trace
    from tracelens.replay.pricing import EditPrice

__all__ = ["SHARD_COLUMNS", "Shards", "run"]

# share of the mean bytes: a hot shard has as many more;
# bytes are exact, only a gain is in doubt [calibrate]
MIN_MORE_BYTES_OF_HOT_SHARD: Final = 0.25
# of the job: a hot shard that costs less is not reported
# [policy; one decision in _may_hold_up, _hot_shard]
MIN_SAVING_TO_REPORT_HOT_SHARD: Final = 0.03
# share of the push/pull window: a shard that is at work
# for less keeps hardly any request waiting [calibrate]
MIN_BUSY_SHARE_IF_REQUESTS_QUEUED: Final = 0.25
# times the others' service time: a hot shard of unknown cost is a fault if it serves as long [chosen]
MIN_RATIO_OF_SERVICE_TIMES_IF_FAULT: Final = 1.5
# share of the workers' time: servers are hidden, and
# not judged, if more goes on without them [calibrate]
MAX_SHARE_OF_TIME_WITHOUT_SERVERS: Final = 0.9

NOT_RECORDED: Final = "not recorded"  # whether links or incast bind a shard
SHARD_COLUMNS: Final[dict[str, pl.DataType]] = {
    "shard": pl.Int32(),
    "rank": pl.Int32(),
    "host": pl.String(),
    "bytes": pl.Int64(),  # pushed to and pulled from it by all workers
    "requests": pl.Int64(),
    "service_ns": pl.Int64(),  # aggregate + apply + reply
    "queue_ns": pl.Int64(),  # from received to the begin of service, over all requests
    "queue_depth": pl.Float64(),  # mean on arrival
    "busy_share": pl.Float64(),  # of the time in which workers had requests with it
    "bytes_share": pl.Float64(),
    "cpu_share": pl.Float64(),  # of its push windows: any thread is aggregating or applying
    "wire_share": pl.Float64(),  # of its push and pull windows: receiving or replying
    "goodput": pl.Float64(),  # bytes / ns that its link received while pushes were on it
    "best_goodput": pl.Float64(),  # the same with the number of pushes at once that is best
    "bound": pl.String(),  # cpu, network, incast, "not recorded", or null where none is clear
}
TRAFFIC_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "shard": pl.Int32(),
    "op": pl.String(),
    "bytes": pl.Int64(),
    "requests": pl.Int64(),
    "ns": pl.Int64(),
    "longest_start_ns": pl.Int64(),  # of the request that took longest
    "longest_end_ns": pl.Int64(),
}


@dataclass(frozen=True, eq=False)
class Shards(DisplayMixin):
    """Load per shard, per worker and shard, by placement and by tensor; empty where a run has no PS.

    `queues` says why workers are queued, `statement` what binds shards and is not known.
    """

    loads: pl.DataFrame
    traffic: pl.DataFrame
    placements: pl.DataFrame
    tensors: pl.DataFrame
    findings: tuple[Finding, ...]
    queues: Queues = NO_QUEUES
    statement: str | None = None

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """What a report shows."""
        return {"shards": self.loads, "placements": self.placements}


NOTHING: Final = Shards(
    loads=pl.DataFrame(schema=SHARD_COLUMNS),
    traffic=pl.DataFrame(schema=TRAFFIC_COLUMNS),
    placements=pl.DataFrame(schema=PLACEMENT_COLUMNS),
    tensors=pl.DataFrame(schema=TENSOR_COLUMNS),
    findings=(),
)


def run(facts: Facts) -> Shards:
    """Measure the shards' load, and look for a hot one and for what else holds servers up."""
    trace, phases = facts.trace, facts.phases
    served = utilisation.served_requests(trace)
    every = _asked(trace, served)
    asked = every.filter(pl.col("shard").is_not_null())
    sized = _sized(every)
    if every.is_empty() or trace.shards.is_empty():
        return NOTHING
    traffic = _traffic(asked)
    loads = _loads(trace.shards, traffic, asked, served)
    unknown = ([] if asked.height == every.height else ["requests"]) + (
        [] if sized else ["bytes", "bytes_share"]
    )
    loads = loads.with_columns(pl.lit(None, SHARD_COLUMNS[name]).alias(name) for name in unknown)
    queues = measure_queues(trace, phases, asked, served)
    exchange = Exchange.from_sums(
        utilisation.utilisation_by_step(served, asked, is_aligned=not trace.alignment.unaligned),
        phases,
        loads,
        job_ns=float(job_ns(trace)),
        goodput=utilisation.measure_goodput(served, None if trace.alignment.unaligned else asked),
        replay=facts.replay,
    )
    messages = small_messages.Messages.of(asked, served)
    bound = classify(exchange, messages.share)
    advice = variable_placement.advise(facts.replay, asked, loads) if sized else None
    found: list[Finding] = []
    unseen: list[int] = []
    least_exposed_ns = (1 - MAX_SHARE_OF_TIME_WITHOUT_SERVERS) * exchange.job_ns
    if exchange.exposed.sum() >= least_exposed_ns:
        hot = [] if advice is None else _hot_shard(loads, exchange, advice)
        named = frozenset(shard for finding in hot for shard in finding.shards)
        found = [*hot, *findings(exchange, bound, messages, named)]
        found += held_requests(exchange, queues.held_ns, trace.workers.height)
        unseen = [
            row for row in np.flatnonzero(~exchange.sees_receives).tolist() if row not in bound
        ]
    found = [
        sampled_code.with_code(_with_work(one, served), sampled_code.of_shards(trace, one.shards))
        for one in found
    ]
    return Shards(
        _with_bounds(loads, exchange, bound),
        traffic,
        NOTHING.placements if advice is None else advice.table,
        variable_placement.largest_tensors(asked),
        tuple(found),
        queues,
        _describe_unseen(exchange, unseen),
    )


def _describe_unseen(exchange: Exchange, columns: list[int]) -> str | None:
    """Return which shards may be bound by links or by incast, which was not recorded."""
    if not columns:
        return None
    shards = fmt.listing("PS shard", [exchange.shards[column] for column in columns])
    return (
        f"What binds {shards} is not recorded: no 'receive' span shows how long links are busy, and "
        "processors are not busy all the time, so it may be slow links, incast or long latency."
    )


def _traffic(asked: pl.DataFrame) -> pl.DataFrame:
    """Return what workers asked of shards, by operation, and the longest request of each."""
    return (
        asked.group_by("rank", "shard", "op")
        .agg(
            _known_sum("bytes"),
            pl.col("start_ns", "end_ns").get(pl.col("ns").arg_max()).name.prefix("longest_"),
            requests=pl.len().cast(pl.Int64),
            ns=pl.col("ns").sum(),
        )
        .select(*TRAFFIC_COLUMNS)
        .sort("rank", "shard", "op")
    )


def _with_work(finding: Finding, served: pl.DataFrame) -> Finding:
    """Add what the processors of shards that they bind are at work with."""
    if finding.kind != "ps_cpu_bound":
        return finding
    mine = served.filter(pl.col("shard").is_in(finding.shards), pl.col("op").is_in(PROCESSOR_OPS))
    spent = dict(mine.group_by("op").agg(pl.col("ns").sum()).iter_rows())
    share = spent.get("apply", 0) / max(sum(spent.values()), 1)
    applies = share > 1 / 2
    what = "applying updates" if applies else "adding up gradients"
    more = f"{fmt.percent(share if applies else 1 - share)} of that work is {what}."
    return replace(
        finding,
        sentence=f"{finding.sentence} {more}",
        evidence={**finding.evidence, "apply_share": share},
    )


def _sized(every: pl.DataFrame) -> bool:
    """Return whether all shards are known, and the bytes of all pushes, of all pulls, or of both."""
    missing = every.group_by("op").agg(null=pl.col("bytes").null_count(), all=pl.len())
    known = (missing["null"] == 0).any() and (
        (missing["null"] == 0) | (missing["null"] == missing["all"])
    ).all()
    return bool(known) and not every["shard"].null_count()


def _known_sum(name: str) -> pl.Expr:
    """Sum up a column; null where a value was not measured."""
    column = pl.col(name)
    return pl.when(column.null_count() == 0).then(column.sum()).alias(name)


def _asked(trace: Trace, served: pl.DataFrame) -> pl.DataFrame:
    """Return the requests as the workers recorded them; their shard also as shards did."""
    by = served.lazy().filter(pl.col("request").is_not_null()).select("request", by="shard")
    return (
        trace.requests_of(trace.workers)
        .filter((pl.col("kind") == "ps") & pl.col("end_ns").is_not_null())
        .join(by.unique("request"), on="request", how="left", maintain_order="left")
        .with_columns(pl.coalesce("shard", "by").alias("shard"))
        .drop("by")
        .with_columns(ns=pl.col("end_ns") - pl.col("start_ns"), op=pl.col("op").cast(pl.String))
        .collect()
        .pipe(variable_placement.label_tensors)
    )


def _with_bounds(loads: pl.DataFrame, exchange: Exchange, bound: dict[int, Bound]) -> pl.DataFrame:
    links = exchange.links
    best = [max(link.best, link.usual) if link else None for link in links]
    cpu_share, wire_share = map(pl.Series, exchange.busy_shares())
    bounds = [
        bound.get(row) or (None if is_seen else NOT_RECORDED)
        for row, is_seen in enumerate(exchange.sees_receives)
    ]
    return loads.with_columns(
        cpu_share=cpu_share.fill_nan(None),
        wire_share=wire_share.fill_nan(None),
        goodput=pl.Series([link.usual if link else None for link in links], dtype=pl.Float64),
        best_goodput=pl.Series(best, dtype=pl.Float64),
        bound=pl.Series(bounds, dtype=pl.String),
    ).select(*SHARD_COLUMNS)


def _loads(
    processes: pl.DataFrame, traffic: pl.DataFrame, asked: pl.DataFrame, served: pl.DataFrame
) -> pl.DataFrame:
    is_service = pl.col("op").is_in(SERVICE_OPS)
    requests = (
        served.filter(pl.col("request").is_not_null())
        .group_by("shard", "request")
        .agg(
            begun=pl.col("start_ns").filter(is_service).min(),
            received=pl.col("end_ns").filter(pl.col("op") == "receive").min(),
        )
        .with_columns(queued=(pl.col("begun") - pl.col("received")).clip(lower_bound=0))
    )
    windows = asked.group_by("shard", "step", "op").agg(
        window=pl.col("end_ns").max() - pl.col("start_ns").min()
    )
    joined = processes.select(pl.coalesce("shard", "rank").alias("shard"), "rank", "host")
    for part in (
        traffic.group_by("shard").agg(pl.col("bytes", "requests").sum()),
        served.group_by("shard").agg(
            service_ns=pl.col("ns").filter(is_service).sum(),
            queue_depth=pl.col("queue_depth").mean(),
        ),
        requests.group_by("shard").agg(queue_ns=pl.col("queued").sum()),
        windows.group_by("shard").agg(pl.col("window").sum()),
    ):
        joined = joined.join(part, on="shard", how="left")
    return (
        joined.with_columns(pl.col("bytes", "requests", "service_ns", "queue_ns").fill_null(0))
        .with_columns(
            busy_share=(pl.col("service_ns") / pl.col("window")).clip(0, 1),
            bytes_share=pl.col("bytes") / pl.col("bytes").sum().clip(lower_bound=1),
        )
        .sort("shard")
    )


def _may_hold_up(hottest: dict[str, Any], ratio: float, exchange: Exchange) -> bool:
    """Return whether a shard with `ratio` times the mean bytes may cost a share of the job that matters.

    It must be at work for so long that requests are queued for it, and no more can be saved than what it
    works for its surplus of bytes, if it recorded when it received them.
    """
    if (hottest["busy_share"] or 0.0) < MIN_BUSY_SHARE_IF_REQUESTS_QUEUED:
        return False
    column = exchange.shards.index(hottest["shard"])
    work_ns = float((exchange.cpu + exchange.wire)[:, column].sum())
    saved_at_most = work_ns * (1 - 1 / ratio) / exchange.job_ns
    records_receives = exchange.received[:, column].any()
    return not records_receives or saved_at_most >= MIN_SAVING_TO_REPORT_HOT_SHARD


def _category(
    loads: pl.DataFrame, hottest: dict[str, Any], price: EditPrice
) -> Literal["fault", "opportunity"]:
    """Return "opportunity" if it is not known whether the job would be shorter without a hot shard.

    It is a fault all the same if that shard is at work for clearly longer than the others.
    """
    usual_ns = loads.filter(pl.col("shard") != hottest["shard"])["service_ns"].median()
    least_ns = MIN_RATIO_OF_SERVICE_TIMES_IF_FAULT * (
        usual_ns if isinstance(usual_ns, float) else 0.0
    )
    is_fault = price.saving is not None or hottest["service_ns"] >= least_ns
    return "fault" if is_fault else "opportunity"


def _hot_shard(loads: pl.DataFrame, exchange: Exchange, advice: Advice) -> list[Finding]:
    """Look for a shard with far more bytes than the mean that the job would be shorter without.

    Where that cannot be replayed, it must be at work for so long that requests are queued for it.
    """
    mean = loads["bytes"].mean()
    if loads.height < 2 or not isinstance(mean, float) or mean <= 0:
        return []
    hottest = loads.sort("bytes", descending=True).row(0, named=True)
    ratio = hottest["bytes"] / mean
    if ratio < 1 + MIN_MORE_BYTES_OF_HOT_SHARD and hottest["bytes_share"] <= 2 / loads.height:
        return []
    price = advice.price
    if price.saving is None and not _may_hold_up(hottest, ratio, exchange):
        return []
    if price.saving is not None and price.saving < MIN_SAVING_TO_REPORT_HOT_SHARD:
        return []
    exposed = float(exchange.exposed.sum()) / exchange.job_ns
    return [
        Finding.of(
            "ps_hot_shard",
            {
                "shard": str(hottest["shard"]),
                "ratio": f"{ratio:.1f}",
                "share": f"{100 * hottest['bytes_share']:.0f} %",
                "shards": str(loads.height),
                "effective": f"{loads.height / ratio:.1f}",
                "exposed": f"{100 * exposed:.0f} %",
            },
            more=[advice.sentence],
            category=_category(loads, hottest, price),
            shards=(hottest["shard"],),
            hosts=(hottest["host"],),
            phase="ps",
            pattern="persistent",
            saving=price.saving,
            interval=price.interval,
            fix=price.fix,
            slowdown=ratio,
            tensor=advice.variable,
            evidence={
                "bytes_share": hottest["bytes_share"],
                "max_over_mean_bytes": ratio,
                "effective_shards": loads.height / ratio,
                "busy_share": hottest["busy_share"],
                "exposed": exposed,
                "largest_variable_bytes": advice.variable_bytes,
                "placements": advice.table.to_dicts(),
                "edits": price.edits,
            },
        )
    ]

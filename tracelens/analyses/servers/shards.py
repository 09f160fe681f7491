"""Parameter-server shards: which one holds the bytes, serves longest, and keeps requests queued.

Worker and shard records of one request are joined by the request id that its message carried, which also
gives the shard where a worker does not. Where some request's shard or bytes are not known, no shard's
bytes are. Load is judged by bytes: a synchronous step's PS part lasts as long as its busiest shard.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.accounting import sampled_code
from tracelens.accounting.phases import job_ns
from tracelens.accounting.service import PROCESSOR_OPS, SERVICE_OPS
from tracelens.analyses.servers import utilisation, variable_placement
from tracelens.analyses.servers.bottleneck import classify_shards, find_bottlenecks
from tracelens.analyses.servers.queues import (
    NO_QUEUES,
    Queues,
    find_held_requests,
    measure_queues,
)
from tracelens.analyses.servers.small_messages import Messages
from tracelens.analyses.servers.variable_placement import PLACEMENT_COLUMNS, TENSOR_COLUMNS
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding

if TYPE_CHECKING:
    from tracelens.analyses.servers.bottleneck import Bound
    from tracelens.analyses.servers.utilisation import Exchange
    from tracelens.analyses.servers.variable_placement import Advice
    from tracelens.facts import Facts
    from tracelens.model.trace import Trace

# share of the mean bytes: a hot shard has as many more [calibrate]
MIN_MORE_BYTES_OF_HOT_SHARD: Final = 0.25
# of the job: a hot shard that costs less is not reported [policy; one decision in _may_hold_up,
# _find_hot_shard]
MIN_SAVING_TO_REPORT_HOT_SHARD: Final = 0.03
# share of the push/pull window: a shard that works for less hardly keeps requests waiting [calibrate]
MIN_BUSY_SHARE_IF_REQUESTS_QUEUED: Final = 0.25
# times the others' service time: a hot shard of unknown cost is a fault if it serves as long [chosen]
MIN_RATIO_OF_SERVICE_TIMES_IF_FAULT: Final = 1.5
# share of the workers' time: servers are hidden, and not judged, if more
# goes on without them [calibrate]
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
    """Measure the shards' load; find a hot one, and what else holds servers up."""
    trace, phases = facts.trace, facts.phases
    services = utilisation.list_services(trace)
    requests = _read_requests(trace, services)
    located_requests = requests.filter(pl.col("shard").is_not_null())
    if requests.is_empty() or trace.shards.is_empty():
        return NOTHING
    is_sized = _is_sized(requests)
    unknown_columns = [] if located_requests.height == requests.height else ["requests"]
    unknown_columns += [] if is_sized else ["bytes", "bytes_share"]
    traffic = _sum_traffic(located_requests)
    loads = _measure_loads(trace.shards, traffic, located_requests, services).with_columns(
        pl.lit(None, SHARD_COLUMNS[name]).alias(name) for name in unknown_columns
    )
    queues = measure_queues(trace, phases, located_requests, services)
    is_aligned = not trace.alignment.untied_clock_domains
    exchange = utilisation.Exchange.from_sums(
        utilisation.measure_utilisation(services, located_requests, is_aligned=is_aligned),
        phases,
        loads,
        job_ns=float(job_ns(trace)),
        goodput_by_shard=utilisation.measure_goodput(
            services, located_requests if is_aligned else None
        ),
        replay=facts.replay,
    )
    messages = Messages.from_requests(located_requests, services)
    bounds = classify_shards(exchange, messages.cost_share)
    advice = variable_placement.advise(facts.replay, located_requests, loads) if is_sized else None
    findings: list[Finding] = []
    unseen_columns: list[int] = []
    if exchange.exposed_wait_ns.sum() >= (1 - MAX_SHARE_OF_TIME_WITHOUT_SERVERS) * exchange.job_ns:
        findings = [] if advice is None else _find_hot_shard(loads, exchange, advice)
        hot_shards = frozenset(shard for finding in findings for shard in finding.shards)
        findings += find_bottlenecks(exchange, bounds, messages, hot_shards)
        findings += find_held_requests(exchange, queues.held_ns_by_shard, trace.workers.height)
        unseen_columns = [
            c for c in np.flatnonzero(~exchange.has_receives).tolist() if c not in bounds
        ]
    return Shards(
        loads=_add_bounds(loads, exchange, bounds),
        traffic=traffic,
        placements=NOTHING.placements if advice is None else advice.placements,
        tensors=variable_placement.list_largest_tensors(located_requests),
        findings=tuple(_add_clues(finding, trace, services) for finding in findings),
        queues=queues,
        statement=_describe_unseen([exchange.shard_ranks[column] for column in unseen_columns]),
    )


def _describe_unseen(shards: list[int]) -> str | None:
    """Describe which shards may be bound by links or by incast, which was not recorded."""
    if not shards:
        return None
    return (
        f"What binds {fmt.listing('PS shard', shards)} is not recorded: no 'receive' span shows how "
        "long links are busy, and processors are not busy all the time, so it may be slow links, "
        "incast or long latency."
    )


def _sum_traffic(requests: pl.DataFrame) -> pl.DataFrame:
    """Sum requests, a row each, by rank, shard and operation, with the longest request of each.

    Bytes are null where some request does not say how many it moved.
    """
    nbytes = pl.col("bytes")
    return (
        requests.group_by("rank", "shard", "op")
        .agg(
            pl.when(nbytes.null_count() == 0).then(nbytes.sum()).alias("bytes"),
            pl.col("start_ns", "end_ns").get(pl.col("ns").arg_max()).name.prefix("longest_"),
            requests=pl.len().cast(pl.Int64),
            ns=pl.col("ns").sum(),
        )
        .select(*TRAFFIC_COLUMNS)
        .sort("rank", "shard", "op")
    )


def _add_clues(finding: Finding, trace: Trace, services: pl.DataFrame) -> Finding:
    """Add to a finding what busy processors are at work with, and the sampled code of the shards.

    `services` has one row per operation of a shard.
    """
    culprit = sampled_code.find_in_shards(trace, finding.shards)
    if finding.kind != "ps_cpu_bound":
        return sampled_code.add_code(finding, culprit)
    is_work = pl.col("shard").is_in(finding.shards) & pl.col("op").is_in(PROCESSOR_OPS)
    sums = services.filter(is_work).group_by("op").agg(pl.col("ns").sum())
    ns_by_op = dict(sums.iter_rows())
    apply_share = ns_by_op.get("apply", 0) / max(sum(ns_by_op.values()), 1)
    main_share, main_work = apply_share, "applying updates"
    if apply_share <= 1 / 2:
        main_share, main_work = 1 - apply_share, "adding up gradients"
    detailed = replace(
        finding,
        sentence=f"{finding.sentence} {fmt.percent(main_share)} of that work is {main_work}.",
        evidence={**finding.evidence, "apply_share": apply_share},
    )
    return sampled_code.add_code(detailed, culprit)


def _is_sized(requests: pl.DataFrame) -> bool:
    """Return True if each request (a row) has its shard, and all pushes or all pulls their bytes."""
    counts = requests.group_by("op").agg(unsized=pl.col("bytes").null_count(), all=pl.len())
    is_known, is_unknown = counts["unsized"] == 0, counts["unsized"] == counts["all"]
    is_consistent = is_known.any() and (is_known | is_unknown).all()
    return bool(is_consistent) and not requests["shard"].null_count()


def _read_requests(trace: Trace, services: pl.DataFrame) -> pl.DataFrame:
    """Return the requests as the workers recorded them, a row each; their shard also as shards did.

    `services` has a row per operation of a shard.
    """
    shard_of_request = (
        services.lazy().filter(pl.col("request").is_not_null()).select("request", served_by="shard")
    )
    return (
        trace.select_requests(trace.workers)
        .filter((pl.col("kind") == "ps") & pl.col("end_ns").is_not_null())
        .join(shard_of_request.unique("request"), on="request", how="left", maintain_order="left")
        .with_columns(pl.coalesce("shard", "served_by").alias("shard"))
        .drop("served_by")
        .with_columns(ns=pl.col("end_ns") - pl.col("start_ns"), op=pl.col("op").cast(pl.String))
        .collect()
        .pipe(variable_placement.label_tensors)
    )


def _add_bounds(loads: pl.DataFrame, exchange: Exchange, bounds: dict[int, Bound]) -> pl.DataFrame:
    """Add to loads, a row a shard, goodputs, how busy shards are, and what binds them (by row)."""
    goodputs = exchange.goodput_of_shard
    mean_rates = [goodput.mean_bytes_per_ns if goodput else None for goodput in goodputs]
    best_rates = [
        max(goodput.best_bytes_per_ns, goodput.mean_bytes_per_ns) if goodput else None
        for goodput in goodputs
    ]
    cpu_share, link_share = map(pl.Series, exchange.measure_busy_shares())
    bound_names = [
        bounds.get(column) or (None if is_seen else NOT_RECORDED)
        for column, is_seen in enumerate(exchange.has_receives)
    ]
    return loads.with_columns(
        cpu_share=cpu_share.fill_nan(None),
        wire_share=link_share.fill_nan(None),
        goodput=pl.Series(mean_rates, dtype=pl.Float64),
        best_goodput=pl.Series(best_rates, dtype=pl.Float64),
        bound=pl.Series(bound_names, dtype=pl.String),
    ).select(*SHARD_COLUMNS)


def _measure_loads(
    shard_processes: pl.DataFrame,
    traffic: pl.DataFrame,
    requests: pl.DataFrame,
    services: pl.DataFrame,
) -> pl.DataFrame:
    """Return a row a shard, the columns of `SHARD_COLUMNS` that say nothing of bounds.

    `shard_processes` has a row a shard, `traffic` sums of requests by rank, shard and operation,
    `requests` a row per request of a worker, `services` one per operation of a shard.
    """
    is_service = pl.col("op").is_in(SERVICE_OPS)
    queue_times = (
        services.filter(pl.col("request").is_not_null())
        .group_by("shard", "request")
        .agg(
            begun_ns=pl.col("start_ns").filter(is_service).min(),
            received_ns=pl.col("end_ns").filter(pl.col("op") == "receive").min(),
        )
        .with_columns(queue_ns=(pl.col("begun_ns") - pl.col("received_ns")).clip(lower_bound=0))
    )
    request_times = requests.group_by("shard", "step", "op").agg(
        window_ns=pl.col("end_ns").max() - pl.col("start_ns").min()
    )
    loads = shard_processes.select(pl.coalesce("shard", "rank").alias("shard"), "rank", "host")
    for sums in (
        traffic.group_by("shard").agg(pl.col("bytes", "requests").sum()),
        services.group_by("shard").agg(
            service_ns=pl.col("ns").filter(is_service).sum(),
            queue_depth=pl.col("queue_depth").mean(),
        ),
        queue_times.group_by("shard").agg(pl.col("queue_ns").sum()),
        request_times.group_by("shard").agg(pl.col("window_ns").sum()),
    ):
        loads = loads.join(sums, on="shard", how="left")
    return (
        loads.with_columns(pl.col("bytes", "requests", "service_ns", "queue_ns").fill_null(0))
        .with_columns(
            busy_share=(pl.col("service_ns") / pl.col("window_ns")).clip(0, 1),
            bytes_share=pl.col("bytes") / pl.col("bytes").sum().clip(lower_bound=1),
        )
        .sort("shard")
    )


def _may_hold_up(hottest: dict[str, Any], ratio: float, exchange: Exchange) -> bool:
    """Return True if the hottest shard, with `ratio` times the mean bytes, may cost enough of the job.

    Requests must be queued for it, and its work for its surplus of bytes must be worth a finding, if it
    recorded when it received them. `hottest` is its row of the loads.
    """
    if (hottest["busy_share"] or 0.0) < MIN_BUSY_SHARE_IF_REQUESTS_QUEUED:
        return False
    column = exchange.shard_ranks.index(hottest["shard"])
    work_ns = float((exchange.cpu_ns + exchange.link_ns)[:, column].sum())
    max_saving = work_ns * (1 - 1 / ratio) / exchange.job_ns
    return not exchange.has_receives[column] or max_saving >= MIN_SAVING_TO_REPORT_HOT_SHARD


def _find_hot_shard(loads: pl.DataFrame, exchange: Exchange, advice: Advice) -> list[Finding]:
    """Find a shard with far more bytes than the mean that the job would be shorter without.

    If that cannot be replayed, requests must be queued for it; it is a fault if it serves longer.
    """
    mean_bytes = loads["bytes"].mean()
    if loads.height < 2 or not isinstance(mean_bytes, float) or mean_bytes <= 0:
        return []
    hottest = loads.sort("bytes", descending=True).row(0, named=True)
    ratio, price = hottest["bytes"] / mean_bytes, advice.price
    if ratio < 1 + MIN_MORE_BYTES_OF_HOT_SHARD and hottest["bytes_share"] <= 2 / loads.height:
        return []
    if price.saving_share is None and not _may_hold_up(hottest, ratio, exchange):
        return []
    if price.saving_share is not None and price.saving_share < MIN_SAVING_TO_REPORT_HOT_SHARD:
        return []
    others_ns = loads.filter(pl.col("shard") != hottest["shard"])["service_ns"].median()
    usual_ns = others_ns if isinstance(others_ns, float) else 0.0
    serves_longer = hottest["service_ns"] >= MIN_RATIO_OF_SERVICE_TIMES_IF_FAULT * usual_ns
    exposed_share = float(exchange.exposed_wait_ns.sum()) / exchange.job_ns
    return [
        Finding.of(
            "ps_hot_shard",
            {
                "shard": str(hottest["shard"]),
                "ratio": f"{ratio:.1f}",
                "share": f"{100 * hottest['bytes_share']:.0f} %",
                "shards": str(loads.height),
                "effective": f"{loads.height / ratio:.1f}",
                "exposed": f"{100 * exposed_share:.0f} %",
            },
            more=[advice.sentence],
            category="fault" if price.saving_share is not None or serves_longer else "opportunity",
            shards=(hottest["shard"],),
            hosts=(hottest["host"],),
            phase="ps",
            pattern="persistent",
            saving=price.saving_share,
            interval=price.saving_interval,
            fix=price.fix,
            slowdown=ratio,
            tensor=advice.largest_variable,
            evidence={
                "bytes_share": hottest["bytes_share"],
                "max_over_mean_bytes": ratio,
                "effective_shards": loads.height / ratio,
                "busy_share": hottest["busy_share"],
                "exposed": exposed_share,
                "largest_variable_bytes": advice.largest_variable_bytes,
                "placements": advice.placements.to_dicts(),
                "edits": price.edits,
            },
        )
    ]

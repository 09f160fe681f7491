"""Messages to servers that cost their links more than their bytes do.

A push, and a reply, costs a link latency + bytes x pace, fitted to each message's part of the link's
time. Where all sizes are much alike the two cannot be separated: all counts as for bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import polars as pl

from tracelens.accounting.service import measure_link_time
from tracelens.model import fmt
from tracelens.model.findings import Finding
from tracelens.replay.pricing import price_edits
from tracelens.stats.cost_line import fit_cost_model

if TYPE_CHECKING:
    from tracelens.analyses.servers.utilisation import Exchange

# share of the links' work: messages are small if as much is for them,
# however few their bytes [calibrate]
MIN_SHARE_OF_LINK_TIME_FOR_MESSAGES: Final = 0.5
MIN_STEPS_TO_JUDGE_MESSAGES: Final = 20  # steps: messages are not judged by fewer [calibrate]
# of the job: fewer messages that save less are not reported [policy]
MIN_SAVING_TO_REPORT_MESSAGES: Final = 0.03


@dataclass(frozen=True)
class Messages:
    """How many a worker exchanges with servers in a step, with how many shards, and their mean bytes.

    `cost_ns_per_message` is what one takes of a link however few its bytes, the mean of a push and a
    reply, `cost_share` the share of that in the links' work; 0 where sizes do not show it, or it may be
    none.
    """

    count_per_step: float
    shard_count: int
    mean_bytes: float
    cost_ns_per_message: float
    cost_share: float

    @classmethod
    def from_requests(cls, requests: pl.DataFrame, services: pl.DataFrame) -> Self:
        """Count workers' requests that move bytes, and measure what they cost the shards' links.

        `requests` has one row per request, `services` one per operation of a shard.
        """
        with_bytes = requests.filter(pl.col("bytes") > 0)
        rank_step_count = max(with_bytes.select("rank", "step").n_unique(), 1)
        mean_bytes = with_bytes["bytes"].mean()
        cost_ns, cost_share = _measure_costs(services)
        return cls(
            count_per_step=with_bytes.height / rank_step_count,
            shard_count=with_bytes["shard"].n_unique(),
            mean_bytes=float(mean_bytes) if isinstance(mean_bytes, float) else 0.0,
            cost_ns_per_message=cost_ns,
            cost_share=cost_share,
        )

    @property
    def message_ratio_if_fused(self) -> float:
        """How many times as many if each shard got one each way; if it does, every other step."""
        needed_count = 2 * self.shard_count
        if self.count_per_step <= needed_count:
            return 0.5
        return min(needed_count / max(self.count_per_step, 1.0), 1.0)


def _measure_costs(services: pl.DataFrame) -> tuple[float, float]:
    """Return the cost of a message however few its bytes, ns, and its share of all costs, 0 to 1.

    `services` has one row per operation of a shard.
    """
    latencies_ns, sum_of_latencies_ns, total_ns = [], 0.0, 0.0
    for op in ("receive", "reply"):
        messages = services.filter(pl.col("op") == op, pl.col("bytes") > 0)
        intervals = (
            of_shard.select("start_ns", "end_ns").to_numpy().T
            for of_shard in messages.partition_by("shard", maintain_order=True)
        )
        link_ns = np.concatenate(
            [np.zeros(0), *(measure_link_time(*interval) for interval in intervals)]
        )
        cost_model = fit_cost_model(messages["bytes"].to_numpy(), link_ns)
        latency_ns = (
            cost_model.latency_ns if cost_model and cost_model.latency_interval_ns[0] > 0 else 0.0
        )
        latencies_ns.append(latency_ns)
        sum_of_latencies_ns += float(np.minimum(link_ns, latency_ns).sum())
        total_ns += float(link_ns.sum())
    return float(np.mean(latencies_ns)), sum_of_latencies_ns / max(total_ns, 1.0)


def find_small_messages(exchange: Exchange, messages: Messages) -> list[Finding]:
    """Report messages that cost the links more than their bytes do."""
    is_costly = messages.cost_share >= MIN_SHARE_OF_LINK_TIME_FOR_MESSAGES  # of the links' work
    if not is_costly or len(exchange.exposed_wait_ns) < MIN_STEPS_TO_JUDGE_MESSAGES:
        return []
    price = price_edits(exchange.replay, f"messages/{1 / messages.message_ratio_if_fused:g}")
    if price.saving_share is None or price.saving_share < MIN_SAVING_TO_REPORT_MESSAGES:
        return []
    fewer_per_step = messages.count_per_step * messages.message_ratio_if_fused
    return [
        Finding.of(
            "small_messages",
            {
                "calls": fmt.count(
                    round(messages.count_per_step), "push or pull", "pushes and pulls"
                ),
                "size": fmt.size(messages.mean_bytes),
                "latency": fmt.duration(messages.cost_ns_per_message),
                "share": fmt.percent(messages.cost_share),
                "messages": fmt.count(max(round(fewer_per_step), 1), "message"),
            },
            shards=exchange.shard_ranks,
            hosts=exchange.list_hosts([*range(len(exchange.shard_ranks))]),
            phase="ps",
            pattern="persistent",
            saving=price.saving_share,
            interval=price.saving_interval,
            fix=price.fix,
            evidence={
                "calls_per_step": messages.count_per_step,
                "messages_per_step": fewer_per_step,
                "mean_bytes": messages.mean_bytes,
                "latency_ns": messages.cost_ns_per_message,
                "latency_share": messages.cost_share,
                "edits": price.edits,
            },
        )
    ]

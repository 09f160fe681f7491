"""Utilisation of shards: how long processor and link were at work in each step, and the goodput.

Windows of pushes and pulls, and the equations that goodputs solve, are defined in
docs/analyses/parameter-servers.md. All times of a shard are on its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.accounting.service import PROCESSOR_OPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.model.trace import Trace
    from tracelens.replay.windows import WindowedReplay

# share of steps: pushes interleave if those of more begin before an earlier step is added up [calibrate]
MIN_SHARE_OF_STEPS_IF_PUSHES_INTERLEAVE: Final = 0.5
MIN_MESSAGES_FOR_GOODPUT: Final = 64  # messages: fewer do not show how fast a link is [calibrate]
# parts: the best goodputs of as many show the error of that of the run [chosen]
PARTS_OF_RUN_FOR_ERROR: Final = 8
# messages: parts of a run with fewer do not show that error [chosen]
MIN_MESSAGES_OF_PART: Final = 64
# share of the link's time: a number of messages that shared it as long has a goodput [calibrate]
MIN_SHARE_OF_LINK_TIME_OF_COUNT: Final = 0.02
ROUNDS_OF_GOODPUT_FIT: Final = 500  # rounds: goodputs are fitted as often [policy]

_GROUP: Final = ("shard", "step")
_SPAN: Final = ("shard", "start_ns", "end_ns")
_IS_REPLY: Final = pl.col("op") == "reply"
_IS_RECEIVED: Final = (pl.col("op") == "receive") & (pl.col("bytes").fill_null(0) > 0)
# What a shard's processor, its link, and its link for pushes alone, are at work with.
_WORK: Final = {
    "cpu_ns": pl.col("op").is_in(PROCESSOR_OPS),
    "link_ns": _IS_RECEIVED | _IS_REPLY,
    "receiving_ns": _IS_RECEIVED,
}
_TIMES: Final = (*_WORK, "push_window_ns", "pull_window_ns")


@dataclass(frozen=True, eq=False)
class Exchange:
    """How long shards worked, [step, shard], and for how long the mean worker waited for them, [step].

    Processors work for `cpu_ns`, links for `link_ns`, of these `receiving_ns` for pushes; windows last
    from the first to the last of such work. Workers waited `exposed_wait_ns`. `moved_bytes`, [shard],
    are those of all workers, None where requests do not say. A goodput is None where the link received
    too little. The `replay` of the run prices changes of shards.
    """

    shard_ranks: tuple[int, ...]
    host_of_shard: tuple[str, ...]
    step_numbers: Ints
    cpu_ns: Floats
    link_ns: Floats
    receiving_ns: Floats
    push_window_ns: Floats
    pull_window_ns: Floats
    exposed_wait_ns: Floats
    moved_bytes: Floats | None
    job_ns: float
    goodput_of_shard: tuple[Goodput | None, ...]
    replay: WindowedReplay

    @classmethod
    def from_sums(
        cls,
        sums: pl.DataFrame,
        phases: Phases,
        loads: pl.DataFrame,
        *,
        job_ns: float,
        goodput_by_shard: Mapping[int, Goodput],
        replay: WindowedReplay,
    ) -> Exchange:
        """Put sums, a row per shard and step, into matrices; `loads` has a row a shard."""
        worker_counts = phases.sum_by_step(phases.window_has_time)  # [step]
        has_workers = worker_counts > 0
        step_numbers, shards, nbytes = (
            phases.step_numbers[has_workers],
            loads["shard"],
            loads["bytes"],
        )
        known_sums = sums.filter(pl.col("step").is_in(step_numbers))
        row = np.searchsorted(step_numbers, known_sums["step"])
        column = shards.search_sorted(known_sums["shard"])
        matrices = np.zeros((len(_TIMES), len(step_numbers), len(shards)))
        matrices[:, row, column] = known_sums.select(_TIMES).to_numpy().T
        times: dict[str, Any] = dict(zip(_TIMES, matrices, strict=True))
        exposed_ns = phases.sum_by_step(phases.sum_ns_by_window("ps_queue", "transfer"))
        return cls(
            shard_ranks=tuple(shards.to_list()),
            host_of_shard=tuple(loads["host"].fill_null("").to_list()),
            step_numbers=step_numbers,
            exposed_wait_ns=exposed_ns[has_workers] / worker_counts[has_workers],
            moved_bytes=None if nbytes.null_count() else nbytes.to_numpy().astype(np.float64),
            job_ns=job_ns or 1.0,
            goodput_of_shard=tuple(map(goodput_by_shard.get, shards)),
            replay=replay,
            **times,
        )

    def list_hosts(self, shard_columns: list[int]) -> tuple[str, ...]:
        """Return the machines of some shards, by their columns, each once."""
        return tuple(dict.fromkeys(self.host_of_shard[column] for column in shard_columns))

    @property
    def has_receives(self) -> Flags:
        """Which shards recorded when they received pushes, [shard]."""
        return np.asarray(self.receiving_ns.any(axis=0))

    def measure_busy_shares(self) -> tuple[Floats, Floats]:
        """Return the share of windows in which processors, and links, work, [shard]; nan if unknown.

        Those of processors are the push windows, of links also the pull windows.
        """
        push_ns, pull_ns = self.push_window_ns.sum(axis=0), self.pull_window_ns.sum(axis=0)
        cpu_share = self.cpu_ns.sum(axis=0) / np.maximum(push_ns, 1)
        link_share = self.link_ns.sum(axis=0) / np.maximum(push_ns + pull_ns, 1)
        return (
            np.where(push_ns > 0, cpu_share, np.nan),
            np.where(self.has_receives, link_share, np.nan),
        )


def list_services(trace: Trace) -> pl.DataFrame:
    """Return the work of shards for requests, a row per operation, by shard, step and begin.

    Where a shard does not know steps, a request has that of the worker that made it, and an update
    without a request that of the request before.
    """
    shards = trace.shards.lazy().select("process", own_shard=pl.coalesce("shard", "rank"))
    step = pl.when(pl.col("step") >= 0).then(pl.col("step"))
    requests = trace.requests.lazy().filter(pl.col("kind") == "ps")
    has_request = pl.col("request").is_not_null()
    of_workers = requests.join(shards, on="process", how="anti").filter(has_request)
    worker_steps = of_workers.group_by("request").agg(worker_step=step.first())
    known_step = pl.coalesce(step, "worker_step")
    step_before = pl.col("known_step").forward_fill().over("shard", order_by="start_ns")
    return (
        requests.filter(pl.col("end_ns").is_not_null())
        .join(shards, on="process", how="inner")
        .join(worker_steps, on="request", how="left")
        .with_columns(pl.coalesce("shard", "own_shard").alias("shard"), known_step=known_step)
        .with_columns(step_before=step_before)
        .select(
            "bytes", "key", "request", "peer", "queue_depth", "start_ns", "end_ns", "shard",
            ns=pl.col("end_ns") - pl.col("start_ns"),
            step=pl.coalesce("known_step", pl.when(~has_request).then("step_before"), "step"),
            op=pl.col("op").cast(pl.String),
        )
        .sort(*_GROUP, "start_ns")
        .collect()
    )  # fmt: skip


def measure_utilisation(
    services: pl.DataFrame, requests: pl.DataFrame, *, is_aligned: bool = True
) -> pl.DataFrame:
    """Sum up for how long each shard was at work, a row per shard and step, with the columns `_TIMES`.

    Shards recorded `services`, workers `requests`, a row each. `link_ns` is all work of the link,
    `receiving_ns` its work for pushes. Where nothing shows when pushes came, their window is 0.
    If clocks are aligned (`is_aligned`), the times of workers show that.
    """
    first_sends = requests.filter(op="push").group_by(_GROUP).agg(sent_ns=pl.min("start_ns"))
    has_receives = (pl.col("receiving_ns") > 0).any().over("shard")
    since_sent_ns = (pl.col("worked_ns") - pl.col("sent_ns")).clip(lower_bound=0)
    known_window_ns = pl.when(has_receives).then("push_window_ns")
    push_window_ns = known_window_ns.when(pl.lit(is_aligned)).then(since_sent_ns)
    by_step = (
        services.group_by(_GROUP)
        .agg(
            **{name: _sum_busy_ns(is_work) for name, is_work in _WORK.items()},
            push_window_ns=_measure_window_ns(_WORK["cpu_ns"] | _WORK["receiving_ns"]),
            pull_window_ns=_measure_window_ns(_IS_REPLY),
            worked_ns=pl.col("end_ns").filter(_WORK["cpu_ns"]).max(),
        )
        .join(first_sends, on=_GROUP, how="left")
        .with_columns(push_window_ns=push_window_ns)
        .drop("worked_ns", "sent_ns")
        .with_columns(pl.exclude(_GROUP).fill_null(0))
        .sort(_GROUP)
    )
    if _do_pushes_interleave(services):
        return _scale_sums(by_step, services, requests)
    return by_step


def _sum_busy_ns(is_work: pl.Expr) -> pl.Expr:
    """Sum up how long any of some spans of a group lasts; they are sorted by start."""
    start, end = pl.col("start_ns").filter(is_work), pl.col("end_ns").filter(is_work)
    reached = end.cum_max().shift(1, fill_value=0)
    return (end - pl.max_horizontal(start, reached)).clip(lower_bound=0).sum()


def _measure_window_ns(is_work: pl.Expr) -> pl.Expr:
    """Return the time from the first begin to the last end of some spans of a group."""
    return pl.col("end_ns").filter(is_work).max() - pl.col("start_ns").filter(is_work).min()


def _do_pushes_interleave(services: pl.DataFrame) -> bool:
    """Return True if shards add up a push of most steps before they have added up an earlier step's.

    `services` has one row per operation of a shard.
    """
    windows = (
        services.filter(pl.col("op") == "aggregate")
        .group_by(_GROUP)
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("shard", "start_ns")
    )
    latest_end_before = pl.col("end_ns").cum_max().shift(1).over("shard")
    begins_early = windows.select(pl.col("start_ns") < latest_end_before).to_series()
    return int(begins_early.sum()) > MIN_SHARE_OF_STEPS_IF_PUSHES_INTERLEAVE * windows.height


def _scale_sums(sums: pl.DataFrame, services: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """Scale sums, a row per shard and step, to the time in which the shard works for any request.

    Otherwise simultaneous work for several steps would count more than once. Windows are scaled to the
    time in which the shard has, or works for, any push or pull. `services` and `requests` have a row per
    service and request.
    """
    spans = {name: services.filter(is_work).select(_SPAN) for name, is_work in _WORK.items()}
    pushes, pulls = (requests.filter(pl.col("op") == op).select(_SPAN) for op in ("push", "pull"))
    spans["push_window_ns"] = pl.concat([pushes, spans["cpu_ns"]])
    spans["pull_window_ns"] = pl.concat([pulls, services.filter(_IS_REPLY).select(_SPAN)])
    is_any = pl.lit(value=True)
    for name, work in spans.items():
        busy = work.sort("start_ns").group_by("shard").agg(busy_ns=_sum_busy_ns(is_any))
        scale = pl.col("busy_ns") / pl.col(name).sum().over("shard").clip(lower_bound=1)
        sums = (
            sums.join(busy, on="shard", how="left", maintain_order="left")
            .with_columns((pl.col(name) * scale.fill_null(1)).round().cast(pl.Int64))
            .drop("busy_ns")
        )
    return sums


@dataclass(frozen=True)
class Goodput:
    """What a link carries by how many messages share it, in classes of 1, 2, 4, 8 messages or more.

    `message_counts` are the least numbers of the classes. Replies tell if fewer messages never come in
    together. `relative_error` is that of the best goodput.
    """

    message_counts: tuple[int, ...]
    bytes_per_ns_by_class: tuple[float, ...]
    mean_bytes_per_ns: float
    mean_message_count: float
    reply_bytes_per_ns: float | None = None
    relative_error: float = 0.0

    @property
    def best_bytes_per_ns(self) -> float:
        """The link's own best goodput."""
        return max(*self.bytes_per_ns_by_class, self.reply_bytes_per_ns or 0.0)

    @property
    def collapse_ratio(self) -> float:
        """How many times less gets through than at best."""
        mean_rate = self.mean_bytes_per_ns
        return self.best_bytes_per_ns / mean_rate if mean_rate > 0 else 1.0

    @property
    def is_crowd_slower(self) -> bool:
        """Whether the best is reached by fewer messages than there usually are, or by replies."""
        best_count = self.message_counts[int(np.argmax(self.bytes_per_ns_by_class))]
        is_reply_best = self.best_bytes_per_ns == self.reply_bytes_per_ns
        return is_reply_best or best_count < self.mean_message_count


def measure_goodput(
    services: pl.DataFrame, requests: pl.DataFrame | None = None
) -> dict[int, Goodput]:
    """Measure the incoming link of every shard that received enough, by shard.

    `services` has a row per operation of a shard, `requests` one per request of a worker: with these,
    replies show how fast a link is that is always crowded.
    """
    incoming = services.filter(pl.col("op") == "receive", pl.col("bytes") > 0)
    goodputs = {}
    for (shard,), pushes in incoming.partition_by("shard", as_dict=True).items():
        goodput = best_goodput = _fit_if_enough(pushes)
        messages = pushes
        if goodput is None:
            continue
        # Neither one message alone nor half as many as usual were seen on the link.
        is_always_crowded = goodput.message_counts[0] > max(goodput.mean_message_count / 2, 1)
        if is_always_crowded and requests is not None:
            messages = _find_replies(services.filter(shard=int(shard)), requests)
            best_goodput = _fit_if_enough(messages)
            reply_rate = best_goodput.mean_bytes_per_ns if best_goodput else None
            goodput = replace(goodput, reply_bytes_per_ns=reply_rate)
        relative_error = _measure_error(messages) if best_goodput else 0.0
        goodputs[int(shard)] = replace(goodput, relative_error=relative_error)
    return goodputs


def _fit_if_enough(messages: pl.DataFrame) -> Goodput | None:
    return _fit_goodput(messages) if messages.height >= MIN_MESSAGES_FOR_GOODPUT else None


def _measure_error(messages: pl.DataFrame) -> float:
    """Return the relative standard error of messages' best goodput, from parts of the run."""
    count = messages.height // PARTS_OF_RUN_FOR_ERROR  # messages of a part
    parts = (messages.slice(part * count, count) for part in range(PARTS_OF_RUN_FOR_ERROR))
    goodputs = [goodput for part in parts if (goodput := _fit_goodput(part)) is not None]
    best_rates = [goodput.best_bytes_per_ns for goodput in goodputs]
    if count < MIN_MESSAGES_OF_PART or len(best_rates) < 2:
        return 0.0
    return float(np.std(best_rates, ddof=1) / np.mean(best_rates) / np.sqrt(len(best_rates)))


def _find_replies(services: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """Return a shard's replies with bytes, a row each; they end when the worker has them."""
    returned = requests.filter(pl.col("op") == "pull").select("request", returned_ns="end_ns")
    return (
        services.filter(pl.col("op") == "reply", pl.col("bytes") > 0)
        .join(returned, on="request")
        .with_columns(end_ns=pl.max_horizontal("end_ns", "returned_ns"))
        .sort("start_ns")
    )


def _fit_goodput(messages: pl.DataFrame) -> Goodput | None:
    """Fit a link's goodput by how many messages (a row each) shared it: 1, 2 to 3, 4 to 7 ..."""
    begin_ns, end_ns = messages["start_ns"].to_numpy(), messages["end_ns"].to_numpy()
    nbytes = messages["bytes"].to_numpy().astype(np.float64)
    shares_ns, class_ns = _share_link_time(begin_ns, end_ns)  # [message, class], [class]
    link_ns = class_ns.sum()
    fitted_classes = np.flatnonzero(class_ns >= MIN_SHARE_OF_LINK_TIME_OF_COUNT * link_ns)
    if link_ns <= 0 or not len(fitted_classes):
        return None
    rates = _solve_without_negatives(shares_ns[:, fitted_classes], nbytes)
    least_counts = tuple(int(1 << power) for power in fitted_classes)
    mean_count = float(class_ns @ np.exp2(np.arange(len(class_ns))) / link_ns)
    mean_rate = float(nbytes.sum() / link_ns)
    return Goodput(
        message_counts=least_counts,
        bytes_per_ns_by_class=tuple(rates.tolist()),
        mean_bytes_per_ns=mean_rate,
        mean_message_count=mean_count,
    )


def _share_link_time(begin_ns: Ints, end_ns: Ints) -> tuple[Floats, Floats]:
    """Return each message's part of the link's time, [message, class], and that time, [class], ns.

    Class k is of the moments in which 2^k to 2^(k+1) - 1 messages share the link.
    """
    bounds_ns = np.unique(np.concatenate([begin_ns, end_ns]))
    begin_bound, end_bound = (np.searchsorted(bounds_ns, ns) for ns in (begin_ns, end_ns))
    begun_count = np.bincount(begin_bound, minlength=len(bounds_ns))
    ended_count = np.bincount(end_bound, minlength=len(bounds_ns))
    message_count = np.cumsum(begun_count - ended_count)[:-1]  # [interval between bounds]
    power = np.floor(np.log2(np.maximum(message_count, 1))).astype(np.int64)
    classes = np.arange(int(power.max(initial=0)) + 1)
    is_in_class = (power == classes[:, None]) & (message_count > 0)
    interval_ns = is_in_class * np.diff(bounds_ns).astype(np.float64)  # [class, interval]
    share_ns = interval_ns / np.maximum(message_count, 1)
    share_until_ns = np.cumsum(np.insert(share_ns, 0, 0.0, axis=1), axis=1)
    message_ns = share_until_ns[:, end_bound] - share_until_ns[:, begin_bound]
    return message_ns.T, interval_ns.sum(axis=1)


def _solve_without_negatives(shares_ns: Floats, sizes_bytes: Floats) -> Floats:
    """Solve shares_ns @ rates = nbytes without negative rates (bytes / ns), by coordinate descent.

    `shares_ns` is [message, class], `sizes_bytes` [message]; the rates are [class].
    """
    weight = 1 / np.maximum(sizes_bytes, 1)  # relative errors: large messages do not decide alone
    weighted_ns = shares_ns * weight[:, None]
    normal_matrix, right_side = weighted_ns.T @ weighted_ns, weighted_ns.T @ (sizes_bytes * weight)
    rates = np.full(len(right_side), float(sizes_bytes.sum() / shares_ns.sum()))
    classes = np.flatnonzero(np.diag(normal_matrix) > 0)
    for _ in range(ROUNDS_OF_GOODPUT_FIT):
        for row in classes:
            diagonal = normal_matrix[row, row]
            residual = right_side[row] - normal_matrix[row] @ rates + diagonal * rates[row]
            rates[row] = max(residual / diagonal, 0.0)
    return rates

"""Utilisation of shards: how long processor and link were at work in each step, and the goodput.

All times of a shard are on its own clock. The processor works while it aggregates or applies, the link
while it receives a push or sends a reply; the window of pushes reaches from the first one's arrival to
the last update, that of pulls from the first reply's begin to the last one's end. Utilisation is judged
inside these windows: a synchronous job leaves its servers idle while workers compute. A shard that did
not record what it receives has pushes since the first worker sent one: how long its link is at work is
not known. Asynchronous workers are at the same step at different times, so that their windows are as
long as requests are open, or work for them goes on. A processor is at work while any of its threads is,
for whatever step, and so is a link.

Goodput is what gets through by how many messages share the link: what incast collapses. Messages on a
link at once get equal parts of it, so a message's bytes are the sum, over the numbers n of messages
that it met, of the time with n / n x goodput(n). Each message is one such equation; goodputs are their
least-squares solution without negative values. A fair link has the same goodput for any n. Where pushes
come so much at once that fewer never share the link, what it sends is what it could receive: replies,
each from its begin until the worker has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.service import PROCESSOR_OPS

if TYPE_CHECKING:
    from tracelens.arrays import Floats, Ints
    from tracelens.model.trace import Trace

__all__ = ["Goodput", "measure_goodput", "served_requests", "utilisation_by_step"]

# share: pushes of steps interleave if more begin before an earlier step is added up [calibrate]
MIN_SHARE_OF_STEPS_IF_PUSHES_INTERLEAVE: Final = 0.5
MIN_MESSAGES_FOR_GOODPUT: Final = 64  # messages: fewer do not tell how fast a link is [calibrate]
# parts: the best goodputs of as many tell how certain that of the run is [chosen]
PARTS_OF_RUN_FOR_DOUBT: Final = 8
# messages: parts of a run with fewer do not tell how certain it is [chosen]
MIN_MESSAGES_OF_PART: Final = 64
# share of the time on the link: a number of messages
# has a goodput if they shared it as long [calibrate]
MIN_SHARE_OF_LINK_TIME_OF_COUNT: Final = 0.02
ROUNDS_OF_GOODPUT_FIT: Final = 500  # rounds: goodputs are fitted as often [policy]
_GROUP: Final = ("shard", "step")
_IS_REPLY: Final = pl.col("op") == "reply"
_IS_RECEIVED: Final = (pl.col("op") == "receive") & (pl.col("bytes").fill_null(0) > 0)
# What a shard's processor, its link, and its link for pushes alone, are at work with.
_AT_WORK: Final = {
    "cpu": pl.col("op").is_in(PROCESSOR_OPS),
    "wire": _IS_RECEIVED | _IS_REPLY,
    "received": _IS_RECEIVED,
}


def served_requests(trace: Trace) -> pl.DataFrame:
    """Return what the shards recorded of their requests.

    Where a shard does not know steps, a request has that of the worker that made it, and an update
    without a request that of what was served before.
    """
    shards = trace.shards.lazy().select("process", held=pl.coalesce("shard", "rank"))
    step = pl.when(pl.col("step") >= 0).then(pl.col("step"))
    requests = trace.requests.lazy().filter(pl.col("kind") == "ps")
    asked = requests.join(shards, on="process", how="anti").filter(pl.col("request").is_not_null())
    steps = asked.group_by("request").agg(asked=step.first())
    unasked = pl.col("request").is_null()
    return (
        requests.filter(pl.col("end_ns").is_not_null())
        .join(shards, on="process", how="inner")
        .join(steps, on="request", how="left")
        .with_columns(pl.coalesce("shard", "held").alias("shard"), known=pl.coalesce(step, "asked"))
        .with_columns(before=pl.col("known").forward_fill().over("shard", order_by="start_ns"))
        .select(
            "bytes", "key", "request", "peer", "queue_depth", "start_ns", "end_ns", "shard",
            ns=pl.col("end_ns") - pl.col("start_ns"),
            step=pl.coalesce("known", pl.when(unasked).then("before"), "step"),
            op=pl.col("op").cast(pl.String),
        )
        .sort(*_GROUP, "start_ns")
        .collect()
    )  # fmt: skip


def utilisation_by_step(
    served: pl.DataFrame, asked: pl.DataFrame, *, is_aligned: bool = True
) -> pl.DataFrame:
    """Sum up what each shard was at work with in each step, ns; `asked` are the workers' requests.

    `wire` is all that the link is at work with, `received` what pushes take of it. Where nothing shows
    when pushes came, their window is 0.
    """
    pushed = asked.filter(pl.col("op") == "push").group_by(_GROUP).agg(sent_ns=pl.min("start_ns"))
    is_seen = (pl.col("received") > 0).any().over("shard")
    since_sent_ns = (pl.col("worked_ns") - pl.col("sent_ns")).clip(lower_bound=0)
    by_step = (
        served.group_by(_GROUP)
        .agg(
            **{name: _busy_ns(part) for name, part in _AT_WORK.items()},
            push_window=_window_ns(_AT_WORK["cpu"] | _AT_WORK["received"]),
            pull_window=_window_ns(_IS_REPLY),
            worked_ns=pl.col("end_ns").filter(_AT_WORK["cpu"]).max(),
        )
        .join(pushed, on=_GROUP, how="left")
        .with_columns(
            push_window=pl.when(is_seen)
            .then("push_window")
            .when(pl.lit(is_aligned))
            .then(since_sent_ns)
        )
        .drop("worked_ns", "sent_ns")
        .with_columns(pl.exclude(_GROUP).fill_null(0))
        .sort(_GROUP)
    )
    return _open_windows(by_step, served, asked) if _pushes_interleave(served) else by_step


def _busy_ns(part: pl.Expr) -> pl.Expr:
    """Sum up how long any of a part of a group's spans lasts; they are sorted by start."""
    start, end = pl.col("start_ns").filter(part), pl.col("end_ns").filter(part)
    reached = end.cum_max().shift(1, fill_value=0)
    return (end - pl.max_horizontal(start, reached)).clip(lower_bound=0).sum()


def _window_ns(part: pl.Expr) -> pl.Expr:
    """Return the time from the first begin to the last end of a part of a group's spans."""
    return pl.col("end_ns").filter(part).max() - pl.col("start_ns").filter(part).min()


def _pushes_interleave(served: pl.DataFrame) -> bool:
    """Return whether shards add up a push of most steps before they have added up an earlier step's."""
    windows = (
        served.filter(pl.col("op") == "aggregate")
        .group_by(_GROUP)
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("shard", "start_ns")
    )
    reached = pl.col("end_ns").cum_max().shift(1).over("shard")
    begins_early = windows.select(pl.col("start_ns") < reached).to_series()
    return int(begins_early.sum()) > MIN_SHARE_OF_STEPS_IF_PUSHES_INTERLEAVE * windows.height


def _open_windows(sums: pl.DataFrame, served: pl.DataFrame, asked: pl.DataFrame) -> pl.DataFrame:
    """Scale sums of each shard, so that no moment counts for two steps.

    Together its windows are as long as any worker has a request open with it, or it works for one.
    """
    columns = "shard", "start_ns", "end_ns"
    pushes, pulls = (asked.filter(pl.col("op") == op).select(columns) for op in ("push", "pull"))
    works = {name: served.filter(part).select(columns) for name, part in _AT_WORK.items()}
    replies = served.filter(_IS_REPLY).select(columns)
    every = works | {
        "push_window": pl.concat([pushes, works["cpu"]]),
        "pull_window": pl.concat([pulls, replies]),
    }
    for name, spans in every.items():
        busy = spans.sort("start_ns").group_by("shard").agg(busy_ns=_busy_ns(pl.lit(value=True)))
        scale = pl.col("busy_ns") / pl.col(name).sum().over("shard").clip(lower_bound=1)
        sums = (
            sums.join(busy, on="shard", how="left", maintain_order="left")
            .with_columns((pl.col(name) * scale.fill_null(1)).round().cast(pl.Int64))
            .drop("busy_ns")
        )
    return sums


@dataclass(frozen=True)
class Goodput:
    """Bytes per nanosecond by the least number of messages in a class: 1, 2, 4, 8 ...

    `usual` is what got through on average, `crowd` how many messages were on the link on average. `sent`
    is the best that it sends, where fewer messages never come in at once, else null. `doubt` is the
    standard error of the best, as a share of it: from parts of the run by themselves.
    """

    counts: tuple[int, ...]
    rates: tuple[float, ...]
    usual: float
    crowd: float
    sent: float | None = None
    doubt: float = 0.0

    @property
    def best(self) -> float:
        """The link's own best."""
        return max(*self.rates, self.sent or 0.0)

    @property
    def collapse(self) -> float:
        """How many times less gets through than at best."""
        return self.best / self.usual if self.usual > 0 else 1.0

    @property
    def falls(self) -> bool:
        """Whether the best is reached by fewer messages than there usually are, or by replies."""
        return self.best == self.sent or self.counts[int(np.argmax(self.rates))] < self.crowd


def measure_goodput(served: pl.DataFrame, asked: pl.DataFrame | None = None) -> dict[int, Goodput]:
    """Measure the incoming link of every shard that received enough; `asked` are workers' requests."""
    incoming = served.filter(pl.col("op") == "receive", pl.col("bytes") > 0)
    found = {}
    for (shard,), part in incoming.partition_by("shard", as_dict=True).items():
        goodput = link = _of_enough(part)
        measured = part
        if goodput is None:
            continue
        # Neither one message alone nor half as many as usual were seen on the link.
        is_always_crowded = goodput.counts[0] > max(goodput.crowd / 2, 1)
        if is_always_crowded and asked is not None:
            measured = _replies(served.filter(shard=int(shard)), asked)
            link = _of_enough(measured)
            goodput = replace(goodput, sent=link.usual if link else None)
        found[int(shard)] = replace(goodput, doubt=_doubt(measured) if link else 0.0)
    return found


def _of_enough(messages: pl.DataFrame) -> Goodput | None:
    return _of_link(messages) if messages.height >= MIN_MESSAGES_FOR_GOODPUT else None


def _doubt(messages: pl.DataFrame) -> float:
    """Return the relative standard error of the best goodput, from parts of the run."""
    size = messages.height // PARTS_OF_RUN_FOR_DOUBT
    parts = (messages.slice(row * size, size) for row in range(PARTS_OF_RUN_FOR_DOUBT))
    best = [link.best for part in parts if (link := _of_link(part)) is not None]
    if size < MIN_MESSAGES_OF_PART or len(best) < 2:
        return 0.0
    return float(np.std(best, ddof=1) / np.mean(best) / np.sqrt(len(best)))


def _replies(served: pl.DataFrame, asked: pl.DataFrame) -> pl.DataFrame:
    """Return a shard's replies with bytes, until the worker has them."""
    returned = asked.filter(pl.col("op") == "pull").select("request", returned="end_ns")
    return (
        served.filter(pl.col("op") == "reply", pl.col("bytes") > 0)
        .join(returned, on="request")
        .with_columns(end_ns=pl.max_horizontal("end_ns", "returned"))
        .sort("start_ns")
    )


def _of_link(part: pl.DataFrame) -> Goodput | None:
    begin, end = part["start_ns"].to_numpy(), part["end_ns"].to_numpy()
    nbytes = part["bytes"].to_numpy().astype(np.float64)
    shares, lasted = _shares(begin, end)
    combined = lasted @ np.exp2(np.arange(len(lasted)))
    whole = lasted.sum()
    known = np.flatnonzero(lasted >= MIN_SHARE_OF_LINK_TIME_OF_COUNT * whole)
    if whole <= 0 or not len(known):
        return None
    rates = _positive(shares[:, known], nbytes)
    counts = tuple(int(1 << power) for power in known)
    crowd = float(combined / whole)
    return Goodput(counts, tuple(rates.tolist()), float(nbytes.sum() / whole), crowd)


def _shares(begin: Ints, end: Ints) -> tuple[Floats, Floats]:
    """Return each message's part of the link's time, and that time, by class of how many share it."""
    edges = np.unique(np.concatenate([begin, end]))
    first, last = np.searchsorted(edges, begin), np.searchsorted(edges, end)
    change = np.bincount(first, minlength=len(edges)) - np.bincount(last, minlength=len(edges))
    there = np.cumsum(change)[:-1]
    length = np.diff(edges).astype(np.float64)
    powers = np.floor(np.log2(np.maximum(there, 1))).astype(np.int64)
    classes = np.arange(int(powers.max(initial=0)) + 1)
    lasted = ((powers == classes[:, None]) & (there > 0)) * length  # [class, stretch of time]
    until = np.cumsum(np.insert(lasted / np.maximum(there, 1), 0, 0.0, axis=1), axis=1)
    return (until[:, last] - until[:, first]).T, lasted.sum(axis=1)


def _positive(parts: Floats, nbytes: Floats) -> Floats:
    """Solve parts @ rates = nbytes without negative rates, by coordinate descent."""
    scale = 1 / np.maximum(nbytes, 1)  # relative errors: large messages do not decide alone
    left = parts * scale[:, None]
    normal, right = left.T @ left, left.T @ (nbytes * scale)
    rates = np.full(len(right), float(nbytes.sum() / parts.sum()))
    rows = np.flatnonzero(np.diag(normal) > 0)
    for _ in range(ROUNDS_OF_GOODPUT_FIT):
        for row in rows:
            rest = right[row] - normal[row] @ rates + normal[row, row] * rates[row]
            rates[row] = max(rest / normal[row, row], 0.0)
    return rates

"""Variable placement: what each shard holds, the loads of other placements, and their lower bound.

A tensor is known by the `key` of its requests, or by their name (``push dense/kernel``); requests that
carry neither do not tell what a shard's bytes consist of, and only the loads are known. A placement's
most loaded shard holds at least the mean, and at least the largest variable, unless that one is split.
What a placement saves is what its edit of the replay saves; where that has no answer, it is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.model import fmt
from tracelens.placement import CHUNK_BYTES, STRATEGIES, loads
from tracelens.replay.pricing import price_edits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.replay.pricing import EditPrice
    from tracelens.replay.windows import WindowedReplay

__all__ = [
    "PLACEMENT_COLUMNS",
    "TENSOR_COLUMNS",
    "Advice",
    "advise",
    "label_tensors",
    "largest_tensors",
    "tensor_sizes",
]


PLACEMENT_COLUMNS: Final[dict[str, pl.DataType]] = {
    "placement": pl.String(),  # now, or the name of a strategy
    "most_bytes": pl.Int64(),  # that a worker moves to the most loaded shard in a step
    "mean_bytes": pl.Int64(),
    "effective_shards": pl.Float64(),  # total / max
    "least_bytes": pl.Int64(),  # no placement of whole variables (or of chunks) has less on its fullest
    "saving": pl.Float64(),  # share of the job, null where rounds cannot be replayed
}
ADVISED: Final = ("greedy", "largest_first", "chunked")
# times: variables are split if whole ones load the fullest shard as many times as much [chosen]
MIN_RATIO_OF_LOADS_IF_SPLIT: Final = 1.1
# tensors: no more of a shard, the largest, are in the result [policy]
MAX_TENSORS_SHOWN: Final = 64


@dataclass(frozen=True, eq=False)
class Advice:
    """Loads by placement, and what bounds them; a sentence says what to do, `price` what it saves.

    `variable` is the largest one, null where requests do not tell theirs.
    """

    table: pl.DataFrame
    variable: str | None
    variable_bytes: int | None
    sentence: str
    price: EditPrice


def advise(replay: WindowedReplay, asked: pl.DataFrame, of_shards: pl.DataFrame) -> Advice:
    """Try the placements, as edits of the replay.

    Args:
        replay: Of the run; it prices the placements.
        asked: The workers' requests with their shards, tensors and bytes.
        of_shards: A row a shard.
    """
    one_way, turns = _one_way_requests(asked)
    sizes = tensor_sizes(one_way, turns)
    by_shard = one_way.group_by("shard").agg(pl.col("bytes").sum() / turns)
    moved = of_shards.select("shard").join(by_shard, on="shard", how="left", maintain_order="left")
    now = [max(round(nbytes), 1) for nbytes in moved["bytes"].fill_null(0).to_list()]
    total, mean, largest = sum(now), sum(now) // len(now), max(sizes.values(), default=0)
    names = ADVISED if sizes else ("chunked",)
    prices = {name: price_edits(replay, f"placement={name}") for name in names}
    rows: list[tuple[str, int, int, float, int, float | None]] = [
        ("now", max(now), mean, total / max(now), max(mean, largest), 0.0)
    ]
    for name, price in prices.items():
        most = max(loads(STRATEGIES[name](list(sizes.values()) or [total], len(now)), len(now)))
        balance = total / most if most else 1.0
        least = mean if name == "chunked" else max(mean, largest)
        rows.append((name, most, mean, balance, least, price.saving))
    table = pl.DataFrame(rows, schema=PLACEMENT_COLUMNS, orient="row")
    key = max(sizes, key=sizes.__getitem__, default=None)
    sentence, advised = _advise(table, prices, key, largest)
    return Advice(table, key, largest or None, sentence, prices[advised])


def _advise(
    table: pl.DataFrame, prices: Mapping[str, EditPrice], key: str | None, largest: int
) -> tuple[str, str]:
    """Return what to do, in a sentence, and the placement that it names at last."""
    loaded = dict(table.select("placement", "most_bytes").iter_rows())
    known = {name: price.saving for name, price in prices.items() if price.saving is not None}
    if "chunked" not in known:
        refusal = prices["chunked"].refusal
        return f"What another placement would save is not known: {refusal}.", "chunked"
    if max(known.values()) <= 0:
        return "Balancing them would save nothing.", "chunked"
    chunks = (
        f"into {fmt.size(CHUNK_BYTES)} chunks across shards would shorten the job by "
        f"{fmt.percent(known['chunked'])}."
    )
    whole = max(known.keys() - {"chunked"}, key=lambda name: (known[name], name), default=None)
    if key is None or whole is None:
        return f"Partitioning its variables {chunks}", "chunked"
    how = {"greedy": "each on the least-loaded shard", "largest_first": "largest first (LPT)"}
    whole_ones = (
        f"Placing variables {how[whole]} would shorten the job by {fmt.percent(known[whole])}"
        if known[whole] > 0
        else "Placing variables otherwise would save nothing"
    )
    least_load = loaded["chunked"] * MIN_RATIO_OF_LOADS_IF_SPLIT
    if loaded[whole] < least_load or known["chunked"] <= known[whole]:
        return f"{whole_ones}.", whole
    return (
        f"{whole_ones}; no more is possible while {key} ({fmt.size(largest)}) is whole: partitioning "
        f"variables {chunks}"
    ), "chunked"


TENSOR_COLUMNS: Final[dict[str, pl.DataType]] = {
    "shard": pl.Int32(),
    "tensor": pl.String(),
    "step_bytes": pl.Int64(),  # that a worker moves one way in a step
    "bytes": pl.Int64(),  # that all moved
    "requests": pl.Int64(),
    "share": pl.Float64(),  # of the shard's bytes
    "rank": pl.Int32(),  # whose request was the longest, and when
    "longest_start_ns": pl.Int64(),
    "longest_end_ns": pl.Int64(),
}


def label_tensors(asked: pl.DataFrame) -> pl.DataFrame:
    """Add `tensor` to requests with op, name and key; null where they do not tell."""
    op, name = pl.col("op").cast(pl.String), pl.col("name").cast(pl.String)
    prefix = op + " "
    named = pl.when(name.str.starts_with(prefix)).then(name.str.strip_prefix(prefix))
    known = pl.when(pl.col("key").is_not_null()).then(pl.format("variable {}", "key"))
    return asked.with_columns(tensor=known.otherwise(named))


def _one_way_requests(asked: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the requests that move variables one way, and how often a worker moved all of them."""
    pushes = asked.filter(pl.col("op") == "push")
    moving = pushes if pushes["bytes"].sum() else asked
    return moving, max(moving.select("rank", "step").n_unique(), 1)


def tensor_sizes(moving: pl.DataFrame, turns: int) -> Mapping[str, int]:
    """Return what a worker moves one way in a step, bytes by tensor; empty where one is unknown.

    In order of creation, as keys tell; of tensors known by their name only, in order of their first use.
    """
    if moving["tensor"].null_count():
        return {}
    moved = moving.group_by("tensor").agg(
        pl.col("bytes").sum() / turns, pl.col("key").min(), first=pl.col("start_ns").min()
    )
    rows = moved.sort("key", "first", nulls_last=True).select("tensor", "bytes").iter_rows()
    return {tensor: round(size) for tensor, size in rows}


def largest_tensors(asked: pl.DataFrame) -> pl.DataFrame:
    """Return the largest tensors of each shard, the largest first."""
    moving, turns = _one_way_requests(asked)
    known = asked.drop_nulls("tensor")
    at = pl.col("ns").arg_max()
    each = known.group_by("shard", "tensor").agg(
        pl.col("bytes").sum(),
        pl.col("rank").get(at),
        pl.col("start_ns", "end_ns").get(at).name.prefix("longest_"),
        requests=pl.len(),
    )
    once = moving.group_by("shard", "tensor").agg(step_bytes=pl.col("bytes").sum() / turns)
    share = pl.col("bytes") / pl.col("bytes").sum().over("shard").clip(lower_bound=1)
    table = each.join(once, on=["shard", "tensor"], how="left").with_columns(share=share)
    ordered = table.sort("shard", "bytes", "tensor", descending=[False, True, False])
    kept = ordered.group_by("shard", maintain_order=True).head(MAX_TENSORS_SHOWN)
    columns = [pl.col(name).cast(kind) for name, kind in TENSOR_COLUMNS.items()]
    return kept.with_columns(pl.col("step_bytes").fill_null(0).round()).select(columns)

"""What each shard holds: its tensors, by what workers move of them, and where the longest request is.

A tensor is known by the `key` of its requests, or by their name (``push dense/kernel``); requests that
carry neither do not tell what a shard's bytes consist of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TENSOR_COLUMNS", "labelled", "measure", "one_way", "sizes"]

MOST: Final = 64  # of a shard: the largest
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


def labelled(asked: pl.DataFrame) -> pl.DataFrame:
    """Add `tensor` to requests with op, name and key; null where they do not tell."""
    op, name = pl.col("op").cast(pl.String), pl.col("name").cast(pl.String)
    prefix = op + " "
    named = pl.when(name.str.starts_with(prefix)).then(name.str.strip_prefix(prefix))
    known = pl.when(pl.col("key").is_not_null()).then(pl.format("variable {}", "key"))
    return asked.with_columns(tensor=known.otherwise(named))


def one_way(asked: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the requests that move variables one way, and how often a worker moved all of them."""
    pushes = asked.filter(pl.col("op") == "push")
    moving = pushes if pushes["bytes"].sum() else asked
    return moving, max(moving.select("rank", "step").n_unique(), 1)


def sizes(moving: pl.DataFrame, turns: int) -> Mapping[str, int]:
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


def measure(asked: pl.DataFrame, moving: pl.DataFrame, turns: int) -> pl.DataFrame:
    """Return the largest tensors of each shard, the largest first."""
    known = asked.drop_nulls("tensor")
    at = pl.col("ns").arg_max()
    each = known.group_by("shard", "tensor").agg(
        pl.col("bytes").sum(),
        pl.col("rank").get(at),
        requests=pl.len(),
        longest_start_ns=pl.col("start_ns").get(at),
        longest_end_ns=pl.col("end_ns").get(at),
    )
    once = moving.group_by("shard", "tensor").agg(step_bytes=pl.col("bytes").sum() / turns)
    share = pl.col("bytes") / pl.col("bytes").sum().over("shard").clip(lower_bound=1)
    table = each.join(once, on=["shard", "tensor"], how="left").with_columns(share=share)
    ordered = table.sort("shard", "bytes", "tensor", descending=[False, True, False])
    kept = ordered.group_by("shard", maintain_order=True).head(MOST)
    columns = [pl.col(name).cast(kind) for name, kind in TENSOR_COLUMNS.items()]
    return kept.with_columns(pl.col("step_bytes").fill_null(0).round()).select(columns)

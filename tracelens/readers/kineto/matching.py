"""Numbers the collectives of all ranks, where files do not: by their order in each step of the profiler.

Only where all ranks that recorded a group made the same calls in that step; elsewhere they stay
without a number, and unmatched. A number that one rank has twice (one call, several kernels) counts
once.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracelens.readers.kineto.rank_rows import UNKNOWN_GROUP
from tracelens.schema.vocabulary import COLLECTIVES

__all__ = ["numbered"]

_GROUP: Final = "communicator"
_ROW: Final = "call_row"


def numbered(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of all ranks with `seq` filled in where it can be known."""
    rows = rows.with_row_index(_ROW)
    is_call = (pl.col("kind") == "reduction") & pl.col("op").cast(pl.String).is_in(COLLECTIVES)
    calls = rows.filter(is_call, pl.col(_GROUP) != UNKNOWN_GROUP).sort("rank", "issued_ns")
    if calls.is_empty():
        return rows.drop(_ROW)
    has_numbers = pl.col("seq").is_not_null().any().over(_GROUP)
    given = calls.filter(has_numbers).with_columns(
        number=pl.when(pl.int_range(pl.len()).over("rank", _GROUP, "seq") == 0).then("seq")
    )
    counted = _by_order(calls.filter(~has_numbers), rows.filter(pl.col("kind") == "step"))
    found = pl.concat([part.select(_ROW, "number") for part in (given, counted)])
    return (
        rows.join(found, on=_ROW, how="left", maintain_order="left")
        .with_columns(
            seq=pl.when(is_call & pl.col(_GROUP).is_not_null()).then("number").otherwise("seq")
        )
        .drop(_ROW, "number")
    )


def _by_order(calls: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Number calls by their order within group and step, where all ranks agree on it."""
    begun = steps.sort("start_ns").select("rank", "step", issued_ns="start_ns")
    within = (
        calls.drop("step")
        .sort("issued_ns")
        .join_asof(begun, on="issued_ns", by="rank", check_sortedness=False)
        .with_columns(pl.col("step").fill_null(-1))
        .with_columns(
            turn=pl.int_range(pl.len()).over("rank", _GROUP, "step", order_by="issued_ns")
        )
    )
    at, call = (_GROUP, "step"), (_GROUP, "step", "turn")
    ranks = pl.col("rank").n_unique()
    agreed = (pl.len().over(call) == ranks.over(_GROUP)) & (pl.col("op").n_unique().over(call) == 1)
    numbers = within.with_columns(agreed=agreed.all().over(at)).filter("agreed")
    order = (
        numbers.select(call).unique().sort(call).with_columns(
            number=pl.int_range(pl.len()).over(_GROUP).cast(pl.Int64)
        )
    )  # fmt: skip
    return numbers.join(order, on=call, how="left")

"""Numbers the collectives of all ranks, where files do not: by their order in each step of the profiler.

Steps are made the same on all ranks before that (`windows.py`). Only where all ranks that recorded a
group made the same calls in a step are they numbered, with the status ``estimated``: an order that was
concluded accuses nobody. Elsewhere calls stay without a number, and unmatched. A number that one rank
has twice (one call, several kernels) counts once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.readers.kineto.rank_rows import UNKNOWN_GROUP
from tracelens.readers.kineto.windows import find_shifts
from tracelens.schema.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from tracelens.readers.kineto.windows import Shifts

__all__ = ["number_collectives"]

_GROUP: Final = "communicator"
_ROW: Final = "call_row"
_EQUAL_BYTES: Final = ("allreduce",)  # operations to which all ranks give equally many bytes


def number_collectives(rows: pl.DataFrame) -> tuple[pl.DataFrame, Shifts]:
    """Return the rows of all ranks with `seq` filled in where it can be known, and moved steps."""
    rows = rows.with_row_index(_ROW)
    is_call = (pl.col("kind") == "reduction") & pl.col("op").cast(pl.String).is_in(COLLECTIVES)
    calls = rows.filter(is_call, pl.col(_GROUP) != UNKNOWN_GROUP).sort("rank", "issued_ns")
    calls = _with_steps(calls, rows.filter(pl.col("kind") == "step"))
    shifts = find_shifts(calls)
    rows, calls = (_shifted(frame, shifts) for frame in (rows, calls))
    has_numbers = pl.col("seq").is_not_null().any().over(_GROUP)
    numbered_calls = calls.filter(has_numbers).with_columns(
        number=pl.when(pl.int_range(pl.len()).over("rank", _GROUP, "seq") == 0).then("seq")
    )
    counted = _by_order(calls.filter(~has_numbers))
    found = pl.concat([frame.select(_ROW, "number") for frame in (numbered_calls, counted)])
    joined = rows.join(found, on=_ROW, how="left", maintain_order="left")
    concluded = pl.col("seq").is_null() & pl.col("number").is_not_null()
    return joined.with_columns(
        status=pl.when(concluded).then(pl.lit("estimated")).otherwise("status"),
        seq=pl.when(is_call & pl.col(_GROUP).is_not_null()).then("number").otherwise("seq"),
    ).drop(_ROW, "number"), shifts


def _with_steps(calls: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Give each call the step of its rank in which it was issued; -1 outside steps."""
    step_begins = steps.sort("start_ns").select("rank", "step", issued_ns="start_ns")
    return (
        calls.drop("step")
        .sort("issued_ns")
        .join_asof(step_begins, on="issued_ns", by="rank", check_sortedness=False)
        .with_columns(pl.col("step").fill_null(-1))
    )


def _shifted(rows: pl.DataFrame, shifts: Shifts) -> pl.DataFrame:
    """Count the steps of all ranks from the same one."""
    if not any(shifts.steps.values()):
        return rows
    more = pl.col("rank").replace_strict(dict(shifts.steps), default=0, return_dtype=pl.Int32)
    return rows.with_columns(
        pl.when(pl.col("step") >= 0).then(pl.col("step") + more).otherwise("step")
    )


def _by_order(calls: pl.DataFrame) -> pl.DataFrame:
    """Number calls by their order within group and step, where all ranks agree on it."""
    call_key, call = (_GROUP, "step"), (_GROUP, "step", "turn")
    within = calls.with_columns(
        turn=pl.int_range(pl.len()).over("rank", _GROUP, "step", order_by="issued_ns")
    )
    ranks = pl.col("rank").n_unique()
    size = pl.col("bytes").drop_nulls().n_unique().over(call)
    agreed = (
        (pl.len().over(call) == ranks.over(_GROUP))
        & (pl.col("op").n_unique().over(call) == 1)
        & ((size < 2) | ~pl.col("op").cast(pl.String).is_in(_EQUAL_BYTES))
    )
    numbers = within.with_columns(agreed=agreed.all().over(call_key)).filter("agreed")
    order = (
        numbers.select(call).unique().sort(call).with_columns(
            number=pl.int_range(pl.len()).over(_GROUP).cast(pl.Int64)
        )
    )  # fmt: skip
    return numbers.join(order, on=call, how="left")

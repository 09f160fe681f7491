"""Numbers the collectives of all ranks, where files do not: by their order in each step of the profiler.

Such calls have the status ``estimated``: an order that was concluded accuses nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.readers.kineto.rank_rows import UNKNOWN_GROUP
from tracelens.readers.kineto.windows import find_shifts
from tracelens.schema.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from tracelens.readers.kineto.windows import Shifts

_GROUP: Final = "communicator"
_ROW: Final = "call_row"
_EQUAL_BYTES: Final = ("allreduce",)  # operations to which all ranks give equally many bytes


def number_collectives(spans: pl.DataFrame) -> tuple[pl.DataFrame, Shifts]:
    """Return the spans of all ranks with `seq` filled in where it is known, and their step shifts.

    The `seq` of a collective is its number in its group. A number that its rank has twice counts once.
    """
    spans = spans.with_row_index(_ROW)
    is_call = (pl.col("kind") == "reduction") & pl.col("op").cast(pl.String).is_in(COLLECTIVES)
    calls = spans.filter(is_call, pl.col(_GROUP) != UNKNOWN_GROUP).sort("rank", "issued_ns")
    calls = _add_steps(calls, spans.filter(pl.col("kind") == "step"))
    shifts = find_shifts(calls)
    spans, calls = (_shift_steps(table, shifts) for table in (spans, calls))
    has_numbers = pl.col("seq").is_not_null().any().over(_GROUP)
    numbered_calls = calls.filter(has_numbers).with_columns(
        number=pl.when(pl.int_range(pl.len()).over("rank", _GROUP, "seq") == 0).then("seq")
    )
    ordered_calls = _number_by_order(calls.filter(~has_numbers))
    numbers = pl.concat([table.select(_ROW, "number") for table in (numbered_calls, ordered_calls)])
    joined = spans.join(numbers, on=_ROW, how="left", maintain_order="left")
    is_concluded = pl.col("seq").is_null() & pl.col("number").is_not_null()
    return joined.with_columns(
        status=pl.when(is_concluded).then(pl.lit("estimated")).otherwise("status"),
        seq=pl.when(is_call & pl.col(_GROUP).is_not_null()).then("number").otherwise("seq"),
    ).drop(_ROW, "number"), shifts


def _add_steps(calls: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Give each call the step of its rank in which it was issued; -1 outside steps."""
    step_begins = steps.sort("start_ns").select("rank", "step", issued_ns="start_ns")
    return (
        calls.drop("step")
        .sort("issued_ns")
        .join_asof(step_begins, on="issued_ns", by="rank", check_sortedness=False)
        .with_columns(pl.col("step").fill_null(-1))
    )


def _shift_steps(spans: pl.DataFrame, shifts: Shifts) -> pl.DataFrame:
    """Shift the step numbers of ranks so that all count from the same step."""
    if not any(shifts.step_shift_by_rank.values()):
        return spans
    step, rank = pl.col("step"), pl.col("rank")
    shift = rank.replace_strict(dict(shifts.step_shift_by_rank), default=0, return_dtype=pl.Int32)
    return spans.with_columns(pl.when(step >= 0).then(step + shift).otherwise(step))


def _number_by_order(calls: pl.DataFrame) -> pl.DataFrame:
    """Number calls by their order within group and step; return those of steps that all ranks agree on.

    They agree if all ranks of the group make the same calls, with equal sizes where these must be.
    """
    step_key, call_key = (_GROUP, "step"), (_GROUP, "step", "turn")
    turn_in_step = pl.int_range(pl.len()).over("rank", _GROUP, "step", order_by="issued_ns")
    calls = calls.with_columns(turn=turn_in_step)
    rank_count = pl.col("rank").n_unique()
    distinct_size_count = pl.col("bytes").drop_nulls().n_unique().over(call_key)
    is_agreed = (
        (pl.len().over(call_key) == rank_count.over(_GROUP))
        & (pl.col("op").n_unique().over(call_key) == 1)
        & ((distinct_size_count < 2) | ~pl.col("op").cast(pl.String).is_in(_EQUAL_BYTES))
    )
    agreed_calls = calls.filter(is_agreed.all().over(step_key))
    number_in_group = pl.int_range(pl.len()).over(_GROUP).cast(pl.Int64)
    number_of_call = agreed_calls.select(call_key).unique().sort(call_key)
    number_of_call = number_of_call.with_columns(number=number_in_group)
    return agreed_calls.join(number_of_call, on=call_key, how="left")

"""Where groups are: the last call that all ranks completed, and the first that not all came to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelens.model import fmt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

__all__ = ["hang_facts", "leave_out_unstarted"]


def leave_out_unstarted(rows: pl.DataFrame) -> pl.DataFrame:
    """Take the number off calls that wait in the queue of a rank's device while others have begun them.

    Such a rank has not come to the call, nor to those behind it.
    """
    begun = (pl.col("state") == "started").any().over("communicator", "seq")
    waits = begun & (pl.col("state") == "scheduled") & pl.col("end_ns").is_null()
    first = pl.col("seq").filter("waits").min().over("communicator", "rank")
    is_entered = (pl.col("seq") < first).fill_null(value=True)
    marked = rows.with_columns(waits=waits).with_columns(seq=pl.when(is_entered).then("seq"))
    return marked.drop("waits")


def hang_facts(
    rows: pl.DataFrame, members: Mapping[str, Sequence[int]], dumped: set[int]
) -> Iterator[tuple[str, str]]:
    """Yield of each group a name and where it is; `rows` are those of all ranks that are `dumped`."""
    numbered = rows.drop_nulls("seq")
    for (group, label), calls in numbered.group_by("communicator", "group", maintain_order=True):
        ranks = members.get(str(group)) or calls["rank"].unique().sort().to_list()
        silent = sorted({*ranks} - dumped)
        unknown = f"; no dump of {fmt.listing('rank', silent)}" if silent else ""
        yield f"group {label}", _where(calls, {*ranks} & dumped) + unknown


def _where(calls: pl.DataFrame, ranks: Collection[int]) -> str:
    """Describe the last calls of the ranks of a group. A rank has entered all calls before its last."""
    last_of = dict(calls.group_by("rank").agg(pl.col("seq").max()).iter_rows())
    state = calls.group_by("seq").agg(
        done=pl.col("rank").filter(pl.col("end_ns").is_not_null()).n_unique(),
        op=pl.col("name").first(),
        called=pl.col("called").first(),
        open=pl.col("rank").filter(pl.col("end_ns").is_null()).unique(),
    )
    state = state.sort("seq")
    last_call = state.filter(pl.col("done") >= len(ranks))["seq"].max()
    done = last_call if isinstance(last_call, int) else None
    clauses = [
        "no call completed by all" if done is None else f"last completed by all: call {done}"
    ]
    calls_since = state.filter(pl.col("seq") > (-1 if done is None else done))
    for seq, op, call_name in calls_since.select("seq", "op", "called").iter_rows():
        entered = [rank for rank, last_call in sorted(last_of.items()) if last_call >= seq]
        absent = sorted(set(ranks) - set(entered))
        if absent:
            place = f" at {call_name}" if call_name else ""
            clauses.append(
                f"first missing: call {seq} ({op}{place}), entered by "
                f"{fmt.listing('rank', entered)}, never by {fmt.listing('rank', absent)}"
            )
            break
    else:
        still = calls_since.explode("open").drop_nulls("open")["open"].unique().sort().to_list()
        if still:
            clauses.append(f"entered by all and not completed on {fmt.listing('rank', still)}")
    return "; ".join(clauses)

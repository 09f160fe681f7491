"""Where groups are: the last call that all ranks completed, and the first that not all came to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelens.model import fmt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

__all__ = ["hang_facts", "leave_out_unstarted"]


def leave_out_unstarted(calls: pl.DataFrame) -> pl.DataFrame:
    """Take the number off calls that wait in the queue of a rank's device while others have begun them.

    Such a rank has not come to the call, nor to those behind it.
    """
    is_begun = (pl.col("state") == "started").any().over("communicator", "seq")
    is_waiting = is_begun & (pl.col("state") == "scheduled") & pl.col("end_ns").is_null()
    first_waiting = pl.col("seq").filter("waits").min().over("communicator", "rank")
    is_entered = (pl.col("seq") < first_waiting).fill_null(value=True)
    calls = calls.with_columns(waits=is_waiting)
    return calls.with_columns(seq=pl.when(is_entered).then("seq")).drop("waits")


def hang_facts(
    rows: pl.DataFrame, members: Mapping[str, Sequence[int]], dumped_ranks: set[int]
) -> Iterator[tuple[str, str]]:
    """Yield each group's name and how far its calls came; `rows` are the calls of `dumped_ranks`."""
    groups = rows.drop_nulls("seq").group_by("communicator", "group", maintain_order=True)
    for (group, label), calls in groups:
        ranks = members.get(str(group)) or calls["rank"].unique().sort().to_list()
        silent_ranks = sorted({*ranks} - dumped_ranks)
        silent_text = f"; no dump of {fmt.listing('rank', silent_ranks)}" if silent_ranks else ""
        yield f"group {label}", _describe_progress(calls, {*ranks} & dumped_ranks) + silent_text


def _describe_progress(calls: pl.DataFrame, ranks: Collection[int]) -> str:
    """Describe the last calls of the ranks of a group. A rank has entered all calls before its last."""
    last_call_of_rank = dict(calls.group_by("rank").agg(pl.col("seq").max()).iter_rows())
    states = calls.group_by("seq").agg(
        done=pl.col("rank").filter(pl.col("end_ns").is_not_null()).n_unique(),
        op=pl.col("name").first(),
        called=pl.col("called").first(),
        open=pl.col("rank").filter(pl.col("end_ns").is_null()).unique(),
    )
    states = states.sort("seq")  # one row per call
    last_seq = states.filter(pl.col("done") >= len(ranks))["seq"].max()
    last_done = last_seq if isinstance(last_seq, int) else -1  # -1: none
    clauses = [f"last completed by all: call {last_done}"]
    if last_done < 0:
        clauses = ["no call completed by all"]
    states = states.filter(pl.col("seq") > last_done)
    for seq, op, call_site in states.select("seq", "op", "called").iter_rows():
        entered_ranks = sorted(rank for rank, last in last_call_of_rank.items() if last >= seq)
        absent_ranks = sorted(set(ranks) - set(entered_ranks))
        if absent_ranks:
            at_site = f" at {call_site}" if call_site else ""
            clauses.append(
                f"first missing: call {seq} ({op}{at_site}), entered by "
                f"{fmt.listing('rank', entered_ranks)}, never by {fmt.listing('rank', absent_ranks)}"
            )
            break
    else:
        open_ranks = states.explode("open").drop_nulls("open")["open"].unique().sort().to_list()
        if open_ranks:
            clauses.append(f"entered by all and not completed on {fmt.listing('rank', open_ranks)}")
    return "; ".join(clauses)

"""Where groups are: the last call that all ranks completed, and the first that not all came to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelens.model import fmt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence


def unnumber_unstarted_calls(calls: pl.DataFrame) -> pl.DataFrame:
    """Take the number (`seq`) off calls that wait in the queue of a rank while others have begun them.

    Such a rank has not come to the call, nor to those behind it in its group.
    """
    is_begun = (pl.col("state") == "started").any().over("communicator", "seq")
    is_waiting = is_begun & (pl.col("state") == "scheduled") & pl.col("end_ns").is_null()
    first_waiting_seq = pl.col("seq").filter("is_waiting").min().over("communicator", "rank")
    is_entered = (pl.col("seq") < first_waiting_seq).fill_null(value=True)
    calls = calls.with_columns(is_waiting=is_waiting)
    return calls.with_columns(seq=pl.when(is_entered).then("seq")).drop("is_waiting")


def list_hang_facts(
    all_calls: pl.DataFrame, ranks_by_group: Mapping[str, Sequence[int]], dumped_ranks: set[int]
) -> Iterator[tuple[str, str]]:
    """Yield each group's label and how far its calls came; `all_calls` are those of `dumped_ranks`."""
    groups = all_calls.drop_nulls("seq").group_by(
        "communicator", "group_label", maintain_order=True
    )
    for (group, label), calls in groups:
        ranks = ranks_by_group.get(str(group)) or calls["rank"].unique().sort().to_list()
        silent_ranks = sorted({*ranks} - dumped_ranks)
        silent_text = f"; no dump of {fmt.listing('rank', silent_ranks)}" if silent_ranks else ""
        yield f"group {label}", _describe_progress(calls, {*ranks} & dumped_ranks) + silent_text


def _describe_progress(calls: pl.DataFrame, ranks: Collection[int]) -> str:
    """Describe how far a group came: the last call that all `ranks` completed, and the next one.

    `calls` have a row per rank and call, numbered by `seq`. A rank has entered all before its last.
    """
    last_seq_by_rank = dict(calls.group_by("rank").agg(pl.col("seq").max()).iter_rows())
    call_states = calls.group_by("seq").agg(
        completed_count=pl.col("rank").filter(pl.col("end_ns").is_not_null()).n_unique(),
        op=pl.col("name").first(),
        call_site=pl.col("call_site").first(),
        open_ranks=pl.col("rank").filter(pl.col("end_ns").is_null()).unique(),
    )
    call_states = call_states.sort("seq")
    last_seq = call_states.filter(pl.col("completed_count") >= len(ranks))["seq"].max()
    last_done = last_seq if isinstance(last_seq, int) else -1  # -1: none
    clauses = [f"last completed by all: call {last_done}"]
    if last_done < 0:
        clauses = ["no call completed by all"]
    later_calls = call_states.filter(pl.col("seq") > last_done)
    for seq, op, call_site in later_calls.select("seq", "op", "call_site").iter_rows():
        entered_ranks = sorted(rank for rank, last in last_seq_by_rank.items() if last >= seq)
        absent_ranks = sorted(set(ranks) - set(entered_ranks))
        if absent_ranks:
            at_site = f" at {call_site}" if call_site else ""
            clauses.append(
                f"first missing: call {seq} ({op}{at_site}), entered by "
                f"{fmt.listing('rank', entered_ranks)}, never by {fmt.listing('rank', absent_ranks)}"
            )
            break
    else:
        open_ranks = later_calls["open_ranks"].explode().drop_nulls().unique().sort().to_list()
        if open_ranks:
            clauses.append(f"entered by all and not completed on {fmt.listing('rank', open_ranks)}")
    return "; ".join(clauses)

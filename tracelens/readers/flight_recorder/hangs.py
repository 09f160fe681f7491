"""Where groups hang: the last call that all ranks completed, and the first that not all entered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.model import fmt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["hang_facts", "mismatches"]

_SHOWN: Final = 5


def hang_facts(
    rows: pl.DataFrame, members: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, str]]:
    """Yield of each group a name and where it is; `rows` are those of all ranks."""
    numbered = rows.drop_nulls("seq")
    for (group, label), calls in numbered.group_by("communicator", "group", maintain_order=True):
        ranks = members.get(str(group)) or calls["rank"].unique().sort().to_list()
        yield f"group {label}", _where(calls, ranks)


def _where(calls: pl.DataFrame, ranks: Sequence[int]) -> str:
    state = calls.group_by("seq").agg(
        done=pl.col("rank").filter(pl.col("end_ns").is_not_null()).n_unique(),
        entered=pl.col("rank").unique(),
        op=pl.col("name").first(),
        called=pl.col("called").first(),
        open=pl.col("rank").filter(pl.col("end_ns").is_null()).unique(),
    )
    state = state.sort("seq")
    last = state.filter(pl.col("done") >= len(ranks))["seq"].max()
    done = last if isinstance(last, int) else None
    parts = ["no call completed by all" if done is None else f"last completed by all: call {done}"]
    since = state.filter(pl.col("seq") > (-1 if done is None else done))
    for seq, op, entered, called in since.select("seq", "op", "entered", "called").iter_rows():
        absent = sorted(set(ranks) - set(entered))
        if absent:
            place = f" at {called}" if called else ""
            parts.append(
                f"first missing: call {seq} ({op}{place}), entered by "
                f"{fmt.listing('rank', sorted(entered))}, never by {fmt.listing('rank', absent)}"
            )
            break
    else:
        still = since.explode("open").drop_nulls("open")["open"].unique().sort().to_list()
        if still:
            parts.append(f"entered by all and not completed on {fmt.listing('rank', still)}")
    return "; ".join(parts)


def mismatches(rows: pl.DataFrame) -> list[str]:
    """Return a sentence for each call of which ranks differ in operation or size, the first few."""
    calls = rows.drop_nulls("seq").with_columns(op=pl.coalesce("op", "name"))
    by_call = calls.group_by("communicator", "group", "seq", maintain_order=True).agg(
        pl.col("rank", "op", "shapes"),
        differ=(pl.col("op").n_unique() > 1) | (pl.col("bytes").n_unique() > 1),
    )
    found = by_call.filter("differ").sort("communicator", "seq")
    sentences = []
    for group, seq, ranks, ops, shapes in found.head(_SHOWN).select(
        "group", "seq", "rank", "op", "shapes"
    ).iter_rows():  # fmt: skip
        differing = sorted(zip(ranks, ops, shapes, strict=True))[: fmt.MOST_LISTED]
        listed = ", ".join(f"rank {rank} {op} of {shape}" for rank, op, shape in differing)
        sentences.append(f"Call {seq} of group {group} is not the same on all ranks: {listed}.")
    if found.height > _SHOWN:
        sentences.append(f"{found.height - _SHOWN:,} more calls differ between ranks.")
    return sentences

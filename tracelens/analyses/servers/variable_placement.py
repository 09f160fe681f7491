"""Variable placement: what each shard holds, the loads of other placements, and their lower bound.

A tensor is known by the `key` of its requests, or by their name (``push dense/kernel``); of requests
that carry neither, only the loads are known. A placement is priced by its edit of the replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.model import fmt
from tracelens.placement import CHUNK_BYTES, STRATEGIES, sum_shard_bytes
from tracelens.replay.pricing import price_edits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.replay.pricing import EditPrice
    from tracelens.replay.windows import WindowedReplay

PLACEMENT_COLUMNS: Final[dict[str, pl.DataType]] = {
    "placement": pl.String(),  # now, or the name of a strategy
    "most_bytes": pl.Int64(),  # that a worker moves to the most loaded shard in a step
    "mean_bytes": pl.Int64(),
    "effective_shards": pl.Float64(),  # total / max
    "least_bytes": pl.Int64(),  # no placement of whole variables (or of chunks) has less on its fullest
    "saving": pl.Float64(),  # share of the job, null where rounds cannot be replayed
}
TENSOR_COLUMNS: Final[dict[str, pl.DataType]] = {
    "shard": pl.Int32(),
    "tensor": pl.String(),
    "step_bytes": pl.Int64(),  # that a worker pushes in a step, or pulls if pushes have none
    "bytes": pl.Int64(),  # that all moved
    "requests": pl.Int64(),
    "share": pl.Float64(),  # of the shard's bytes
    "rank": pl.Int32(),  # whose request was the longest, and when
    "longest_start_ns": pl.Int64(),
    "longest_end_ns": pl.Int64(),
}
ADVISED: Final = ("greedy", "largest_first", "chunked")
# times: variables are split if whole ones load the fullest shard as many times as much [chosen]
MIN_RATIO_OF_LOADS_IF_SPLIT: Final = 1.1
# tensors: no more of a shard, the largest, are in the result [policy]
MAX_TENSORS_SHOWN: Final = 64


@dataclass(frozen=True, eq=False)
class Advice:
    """Loads by placement (`PLACEMENT_COLUMNS`), a sentence that says what to do, and what that saves.

    The largest variable is None where requests do not name theirs.
    """

    placements: pl.DataFrame
    largest_variable: str | None
    largest_variable_bytes: int | None
    sentence: str
    price: EditPrice


def advise(replay: WindowedReplay, requests: pl.DataFrame, shards: pl.DataFrame) -> Advice:
    """Try the placements, as edits of the replay; requests (of workers) and shards have a row each."""
    pushes_or_pulls, rank_step_count = _select_one_direction(requests)
    bytes_by_variable = measure_tensors(pushes_or_pulls, rank_step_count)
    by_shard = pushes_or_pulls.group_by("shard").agg(pl.col("bytes").sum() / rank_step_count)
    loads_now = shards.select("shard").join(by_shard, on="shard", how="left", maintain_order="left")
    shard_bytes = [max(round(nbytes), 1) for nbytes in loads_now["bytes"].fill_null(0).to_list()]
    total_bytes, shard_count = sum(shard_bytes), len(shard_bytes)
    mean_bytes = total_bytes // shard_count
    largest_bytes = max(bytes_by_variable.values(), default=0)
    whole_bytes = max(mean_bytes, largest_bytes)  # least on the fullest shard if none is split
    names = ADVISED if bytes_by_variable else ("chunked",)
    prices = {name: price_edits(replay, f"placement={name}") for name in names}
    most_bytes, effective_shards = max(shard_bytes), total_bytes / max(shard_bytes)
    rows: list[tuple[str, int, int, float, int, float | None]] = [
        ("now", most_bytes, mean_bytes, effective_shards, whole_bytes, 0.0)
    ]
    for name, price in prices.items():
        pieces = STRATEGIES[name](list(bytes_by_variable.values()) or [total_bytes], shard_count)
        most_bytes = max(sum_shard_bytes(pieces, shard_count))
        effective_shards = total_bytes / most_bytes if most_bytes else 1.0
        least_bytes = mean_bytes if name == "chunked" else whole_bytes
        rows.append(
            (name, most_bytes, mean_bytes, effective_shards, least_bytes, price.saving_share)
        )
    placements = pl.DataFrame(rows, schema=PLACEMENT_COLUMNS, orient="row")
    variable = max(bytes_by_variable, key=bytes_by_variable.__getitem__, default=None)
    sentence, placement = _choose_placement(placements, prices, variable, largest_bytes)
    return Advice(
        placements,
        largest_variable=variable,
        largest_variable_bytes=largest_bytes or None,
        sentence=sentence,
        price=prices[placement],
    )


def _choose_placement(
    placements: pl.DataFrame, prices: Mapping[str, EditPrice], variable: str | None, nbytes: int
) -> tuple[str, str]:
    """Return a sentence of advice, and the placement that it names last.

    `variable` is the largest one, of `nbytes`; `placements` has a row each, `prices` are by placement.
    """
    most_bytes = dict(placements.select("placement", "most_bytes").iter_rows())
    savings = {
        name: price.saving_share for name, price in prices.items() if price.saving_share is not None
    }
    if "chunked" not in savings:
        refusal = prices["chunked"].refusal
        return f"What another placement would save is not known: {refusal}.", "chunked"
    if max(savings.values()) <= 0:
        return "Balancing them would save nothing.", "chunked"
    chunks_clause = (
        f"into {fmt.size(CHUNK_BYTES)} chunks across shards would shorten the job by "
        f"{fmt.percent(savings['chunked'])}."
    )
    best_placement = max(
        savings.keys() - {"chunked"}, key=lambda name: (savings[name], name), default=None
    )
    if variable is None or best_placement is None:
        return f"Partitioning its variables {chunks_clause}", "chunked"
    wordings = {"greedy": "each on the least-loaded shard", "largest_first": "largest first (LPT)"}
    clause = "Placing variables otherwise would save nothing"
    if savings[best_placement] > 0:
        percent, wording = fmt.percent(savings[best_placement]), wordings[best_placement]
        clause = f"Placing variables {wording} would shorten the job by {percent}"
    is_balanced = most_bytes[best_placement] < most_bytes["chunked"] * MIN_RATIO_OF_LOADS_IF_SPLIT
    if is_balanced or savings["chunked"] <= savings[best_placement]:
        return f"{clause}.", best_placement
    return (
        f"{clause}; no more is possible while {variable} ({fmt.size(nbytes)}) is whole: partitioning "
        f"variables {chunks_clause}"
    ), "chunked"


def label_tensors(requests: pl.DataFrame) -> pl.DataFrame:
    """Add `tensor` to requests with op, name and key; null where they do not name it."""
    op, name = pl.col("op").cast(pl.String), pl.col("name").cast(pl.String)
    prefix = op + " "
    by_name = pl.when(name.str.starts_with(prefix)).then(name.str.strip_prefix(prefix))
    by_key = pl.when(pl.col("key").is_not_null()).then(pl.format("variable {}", "key"))
    return requests.with_columns(tensor=by_key.otherwise(by_name))


def _select_one_direction(requests: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the pushes, or all requests if no push has bytes, and their number of (rank, step)."""
    pushes = requests.filter(pl.col("op") == "push")
    selected = pushes if pushes["bytes"].sum() else requests  # only pulls have bytes then
    return selected, max(selected.select("rank", "step").n_unique(), 1)


def measure_tensors(requests: pl.DataFrame, rank_step_count: int) -> Mapping[str, int]:
    """Return the bytes that a worker pushes in a step, by tensor; empty where a tensor is unknown.

    `requests` are pushes (or pulls), one per row, of `rank_step_count` steps: each rank's step counts.
    Tensors are in order of creation, as keys show, or else of first use.
    """
    if requests["tensor"].null_count():
        return {}
    by_tensor = requests.group_by("tensor").agg(
        pl.col("bytes").sum() / rank_step_count, pl.col("key").min(), first=pl.col("start_ns").min()
    )
    rows = by_tensor.sort("key", "first", nulls_last=True).select("tensor", "bytes").iter_rows()
    return {tensor: round(nbytes) for tensor, nbytes in rows}


def list_largest_tensors(requests: pl.DataFrame) -> pl.DataFrame:
    """Return the largest tensors of each shard, the largest first, in `TENSOR_COLUMNS`.

    `requests` has one row per request (push or pull) of a worker for a tensor. `step_bytes` is what one
    rank pushes of the tensor in one step, or pulls if no push has bytes.
    """
    pushes_or_pulls, rank_step_count = _select_one_direction(requests)
    longest = pl.col("ns").arg_max()
    tensors = (
        requests.drop_nulls("tensor")
        .group_by("shard", "tensor")
        .agg(
            pl.col("bytes").sum(),
            pl.col("rank").get(longest),
            pl.col("start_ns", "end_ns").get(longest).name.prefix("longest_"),
            requests=pl.len(),
        )
    )
    step_bytes = pl.col("bytes").sum() / rank_step_count
    by_step = pushes_or_pulls.group_by("shard", "tensor").agg(step_bytes=step_bytes)
    share = pl.col("bytes") / pl.col("bytes").sum().over("shard").clip(lower_bound=1)
    return (
        tensors.join(by_step, on=["shard", "tensor"], how="left")
        .with_columns(pl.col("step_bytes").fill_null(0).round(), share=share)
        .sort("shard", "bytes", "tensor", descending=[False, True, False])
        .group_by("shard", maintain_order=True)
        .head(MAX_TENSORS_SHOWN)
        .select(pl.col(name).cast(kind) for name, kind in TENSOR_COLUMNS.items())
    )

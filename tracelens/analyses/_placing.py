"""How loads would be with another placement of the variables, and what no placement can go below.

A placement's most loaded shard holds at least the mean, and at least the largest variable, unless that
one is split. The gain is found by playing the exchange again with the new loads. Where
requests do not tell their variable only the loads are known, not what they consist of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens import words
from tracelens.placement import CHUNK_BYTES, STRATEGIES, loads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["PLACEMENT_COLUMNS", "Advice", "advise"]

PLACEMENT_COLUMNS: Final[dict[str, pl.DataType]] = {
    "placement": pl.String(),  # now, or the name of a strategy
    "most_bytes": pl.Int64(),  # that a worker moves to the most loaded shard in a step
    "mean_bytes": pl.Int64(),
    "effective_shards": pl.Float64(),  # total / max
    "least_bytes": pl.Int64(),  # no placement of whole variables (or of chunks) has less on its fullest
    "saving": pl.Float64(),  # share of the job
}
ADVISED: Final = ("greedy", "largest_first", "chunked")
WORTH_SPLITTING: Final = 1.1  # times the load that whole variables could have at best


@dataclass(frozen=True)
class Advice:
    """Loads by placement, what bounds them, and a sentence that says what to do.

    `variable` is the largest one, null where requests do not tell theirs.
    """

    table: pl.DataFrame
    variable: str | None
    variable_bytes: int | None
    sentence: str


def advise(
    now: Sequence[int], sizes: Mapping[str, int], gain: Callable[[Sequence[int]], float]
) -> Advice:
    """Try the placements.

    Args:
        now: What a worker moves to each shard in a step, bytes in one direction.
        sizes: Bytes of each variable in order of creation, by name; empty where they are unknown.
        gain: What share of the job other bytes by shard save.
    """
    shards, total, most = len(now), sum(now), max(now)
    largest = max(sizes.values(), default=0)
    rows = [
        ("now", most, total // shards, _balance(total, most), max(total // shards, largest), 0.0)
    ]
    for name in ADVISED if sizes else ("chunked",):
        then = loads(STRATEGIES[name](list(sizes.values()) or [total], shards), shards)
        placed = max(then)
        least = total // shards if name == "chunked" else max(total // shards, largest)
        rows.append((name, placed, total // shards, _balance(total, placed), least, gain(then)))
    table = pl.DataFrame(rows, schema=PLACEMENT_COLUMNS, orient="row")
    key = max(sizes, key=lambda one: sizes[one]) if sizes else None
    return Advice(table, key, largest or None, _sentence(table, key, largest))


def _balance(total: int, most: int) -> float:
    """Return how many shards' worth of the fullest one there is; one where nobody says any bytes."""
    return total / most if most else 1.0


def _sentence(table: pl.DataFrame, key: str | None, largest: int) -> str:
    gains = dict(table.select("placement", "saving").iter_rows())
    loaded = dict(table.select("placement", "most_bytes").iter_rows())
    chunks = f"cut into chunks of {words.size(CHUNK_BYTES)} and dealt out"
    if gains["chunked"] <= 0:
        return "Evened out, they would save nothing."
    if key is None:
        return (
            f"{words.capital(chunks)}, its variables would save {words.percent(gains['chunked'])}."
        )
    whole = min(("greedy", "largest_first"), key=lambda name: loaded[name])
    how = {"greedy": "each to the emptiest shard", "largest_first": "the largest first"}[whole]
    said = f"Placed {how}, variables would save {words.percent(gains[whole])}"
    if loaded["chunked"] * WORTH_SPLITTING > loaded[whole]:
        return f"{said}."
    return (
        f"{said}; more is not to be had while {key} ({words.size(largest)}) is whole: "
        f"{chunks}, they would save {words.percent(gains['chunked'])}."
    )

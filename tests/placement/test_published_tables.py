"""Every strategy gives ResNet-50's bytes per shard exactly as computed from its list of variables.

`resnet50_variables.csv` holds its 267 variables in order of creation; what a step moves are the 161 that
are trained. `ps_placement.csv` holds the loads of 1 to 64 shards, computed apart from this code.
"""

import csv
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from tracelens.placement import (
    Piece,
    place_chunks,
    place_greedily,
    place_largest_first,
    place_round_robin,
    sum_shard_bytes,
)

HERE = Path(__file__).parent
STRATEGIES: dict[str, Callable[[Sequence[int], int], list[Piece]]] = {
    "round_robin": place_round_robin,
    "greedy_bytes_creation_order": place_greedily,
    "greedy_bytes_sorted_desc": place_largest_first,
    "chunk_4MiB_round_robin": partial(place_chunks, chunk_bytes=4 << 20),
    "chunk_32KiB_round_robin": place_chunks,
}


def _rows(name: str) -> list[dict[str, str]]:
    with (HERE / name).open(newline="") as lines:
        return list(csv.DictReader(lines))


VARIABLES = [(int(r["bytes_fp32"]), r["trainable"] == "1") for r in _rows("resnet50_variables.csv")]
PUBLISHED = [row for row in _rows("ps_placement.csv") if row["model"] == "resnet50"]


def _traffic(row: dict[str, str]) -> list[int]:
    """Place as the row says, and sum up what is trained."""
    placed = (
        VARIABLES if row["variable_set"].startswith("all267") else [v for v in VARIABLES if v[1]]
    )
    shards = int(row["ps_tasks"])
    pieces = STRATEGIES[row["strategy"]]([size for size, _ in placed], shards)
    return sum_shard_bytes([piece for piece in pieces if placed[piece.variable_index][1]], shards)


@pytest.mark.parametrize(
    "row", PUBLISHED, ids=lambda row: f"{row['variable_set']}-{row['strategy']}-{row['ps_tasks']}"
)
def test_bytes_per_shard(row: dict[str, str]) -> None:
    traffic = _traffic(row)
    mean = sum(traffic) / len(traffic)
    assert sum(traffic) == int(row["total_bytes"])
    assert (max(traffic), min(traffic)) == (int(row["max_bytes"]), int(row["min_bytes"]))
    assert round(max(traffic) / mean, 3) == float(row["max_over_mean"])
    assert round(sum(traffic) / max(traffic), 2) == float(row["speedup_vs_1ps"])


def test_the_whole_table_is_there() -> None:
    """Seven numbers of shards, from 1 to 64, for each of seven placements."""
    assert len(VARIABLES) == 267
    assert len(PUBLISHED) == 49
    assert {int(row["ps_tasks"]) for row in PUBLISHED} == {1, 2, 4, 8, 16, 32, 64}

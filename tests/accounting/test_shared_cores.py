"""Ranks share cores if a host has more of them than cores on which they may run."""

import polars as pl
import pytest
from support.runs.analysed import trace as run

from tracelens.accounting.shared_cores import find_shared_cores
from tracelens.simulator.synthetic import Scenario

FOUR = run(Scenario(ranks=4, steps=4, ranks_per_host=4))


@pytest.mark.parametrize(
    ("cores", "quota", "count"),
    [
        (["0-1"] * 4, None, 2),
        (["0-3"] * 4, None, None),
        (["0", "1", "2", "3"], None, None),  # each is bound to its own
        (["0", "0", "2", "2"], None, 2),
        (["0-1", "0-1", "2", "2"], None, 3),
        (["0-7"] * 4, 1.5, 1.5),
        (["0-7"] * 4, 16.0, None),
        (["0,2-3"] * 4, None, 3),
        (["many"] * 4, None, None),
        (["0-99999999"] * 4, None, None),
        ([None] * 4, None, None),
    ],
)
def test_cores_of_a_host(cores: list[str | None], quota: float | None, count: float | None) -> None:
    columns = (pl.Series("cores", cores, pl.String), pl.lit(quota, pl.Float64).alias("core_quota"))
    shared = find_shared_cores(FOUR.with_(processes=FOUR.processes.with_columns(columns)))
    assert [one.core_count for one in shared] == ([] if count is None else [count])
    assert all(one.worker_rows.tolist() == [0, 1, 2, 3] and one.rank_count == 4 for one in shared)


def test_hosts_have_cores_of_their_own() -> None:
    apart = run(Scenario(ranks=4, steps=4, ranks_per_host=2))
    processes = apart.processes.with_columns(cores=pl.lit("0-1"))
    assert not find_shared_cores(apart.with_(processes=processes))
    processes = apart.processes.with_columns(cores=pl.lit("0"))
    shared = find_shared_cores(apart.with_(processes=processes))
    assert [one.worker_rows.tolist() for one in shared] == [[0, 1], [2, 3]]

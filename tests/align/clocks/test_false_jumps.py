"""Clocks that only differ by a constant do not jump, however few hosts tell, and real jumps are told."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from tracelens.align.clocks import common
from tracelens.simulator.synthetic import Scenario, generate, random_clocks

HOSTS = 3  # so that the reference is one of them, and a third of all exits have no difference to it
RUN = Scenario(ranks=HOSTS, ranks_per_host=1, exit_skew_us=1.0)


def jumps_of(scenario: Scenario, apart_us: float = 0.0) -> list[int]:
    """Return how many jumps are found of each clock; exits of ranks are `apart_us` from each other."""
    raw = generate(scenario)
    later = (pl.col("process") * apart_us * 1_000).cast(pl.Int64)
    left = pl.when(pl.col("kind") == "reduction").then(pl.col("end_ns") + later).otherwise("end_ns")
    aligned = common.align(raw.with_(events=raw.events.with_columns(end_ns=left)))
    return [len(host.jumps) for host in aligned.alignment.hosts]


@pytest.mark.parametrize("apart_us", [0.0, 1.0])
@pytest.mark.parametrize("steps", [60, 200])
@pytest.mark.parametrize("seed", range(4))
def test_constant_offsets_do_not_jump(seed: int, steps: int, apart_us: float) -> None:
    """Exits that scatter by a microsecond are no jump of one."""
    clocks = random_clocks(HOSTS, seed=seed, drift_ppm=0.0)
    scenario = replace(RUN, seed=seed, steps=steps, clocks=clocks)
    assert jumps_of(scenario, apart_us) == [0] * HOSTS


@pytest.mark.parametrize("jump_us", [20, 500])
def test_a_jump_of_one_of_three_clocks_is_told(jump_us: int) -> None:
    """Twenty times what exits scatter by is enough."""
    first, second, third = random_clocks(HOSTS, seed=1, drift_ppm=0.0)
    jumping = replace(third, jump_ns=jump_us * 1_000, jump_after_ms=1_500.0)
    assert jumps_of(replace(RUN, steps=200, clocks=(first, second, jumping))) == [0, 0, 1]

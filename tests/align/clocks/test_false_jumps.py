"""Clocks that only differ by a constant do not jump, however few hosts tell, and real jumps are told."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tracelens.align.clocks import common
from tracelens.align.clocks.exits import fit_exits
from tracelens.simulator.synthetic import Scenario, generate, random_clocks

HOSTS = 3  # so that the reference is one of them, and a third of all exits have no difference to it
RUN = Scenario(ranks=HOSTS, ranks_per_host=1, exit_skew_us=1.0)


def jumps_of(scenario: Scenario, apart_us: float = 0.0) -> list[int]:
    """Return the number of jumps found per clock; exits of ranks are `apart_us` from each other."""
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


def test_exits_of_a_busy_host_are_no_jump() -> None:
    """Three gloo ranks on two cores, 24 exits in microseconds: of one clock each, that never jumped."""
    first_us = np.array(
        [
            *(0, 97057, 149045, 149080, 173112, 173133, 181576, 221023),
            *(235054, 244980, 277078, 277103, 326388, 347211, 441255, 441675),
            *(473993, 481106, 505067, 521037, 537525, 545209, 681171, 681208),
        ]
    )
    second_us = np.array(
        [
            *(0, -72926, -72948, -71714, -71068, -71058, -69702, -76505),
            *(-69666, -71721, -69491, -70088, -51531, -69623, -69638, -69389),
            *(-66195, -69675, -61462, -85426, -61960, -5885, -76175, -76241),
        ]
    )
    third_us = np.array(
        [
            *(0, -52649, -52770, -52770, -50921, -50900, -49497, -56312),
            *(-49461, -51431, -49826, -49818, -52137, -49334, -48699, -49149),
            *(-50121, -52014, -41266, -65482, -49703, -56772, -56052, -56035),
        ]
    )
    exits_ns = np.stack([first_us, first_us + second_us, first_us + third_us], axis=1) * 1_000.0
    corrections = fit_exits(exits_ns)
    assert corrections
    assert [correction.jump_times_and_heights_ns for correction in corrections] == [()] * HOSTS

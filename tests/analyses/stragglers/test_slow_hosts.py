"""The ranks of a host are judged as one, too: a slow host is the host, a late rank on it is not."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from benchmarks.labelled.endtoend import report
from benchmarks.labelled.kinds_of_ranks import persistent
from benchmarks.labelled.makers import synchronous
from benchmarks.labelled.setting import setting
from support.runs.matrices import STEP_NS, Floats, healthy, own_time
from support.tiers import few_or_many, mark_slow

from tracelens.accounting.compute_time import ComputeTime
from tracelens.analyses.stragglers import detection, episodes
from tracelens.analyses.stragglers.detection import Episode

STEPS, LATE = 120, slice(40, 110)
sizes = pytest.mark.parametrize(
    ("per_host", "ranks"), [(2, 8), (8, 32), pytest.param(8, 64, marks=pytest.mark.slow)]
)


def on_hosts(matrices: list[Floats], per_host: int) -> ComputeTime:
    """Put neighbouring ranks on a host."""
    own = own_time(matrices)
    return replace(own, host_of_column=tuple(f"node{rank // per_host}" for rank in own.ranks))


def find_late(own: ComputeTime) -> list[Episode]:
    """Return the hosts and ranks that the analysis accuses."""
    return [
        late
        for late, _ in episodes.price_episodes(own, float(own.total_compute_ns.max(axis=1).sum()))
    ]


@pytest.mark.parametrize("seed", mark_slow(range(2), quick=[0]))
@sizes
@pytest.mark.parametrize("spiky", [False, True], ids=["smooth", "spiky"])
def test_a_slow_host_is_one_finding_with_all_its_ranks(
    per_host: int, ranks: int, seed: int, *, spiky: bool
) -> None:
    """Also where its ranks lose most in different phases, by chance."""
    slow = list(range(per_host, 2 * per_host))
    matrices = healthy(seed, ranks, STEPS, spiky=spiky)
    for values in matrices:
        values[LATE, slow] *= 1.25
    (late,) = find_late(on_hosts(matrices, per_host))
    assert late.rank_columns == tuple(slow)
    assert (late.late_step_rows[0], late.late_step_rows[-1]) == pytest.approx(
        (LATE.start, LATE.stop - 1), abs=2
    )


@pytest.mark.parametrize("runs", few_or_many(1, 3))
def test_a_host_shows_what_its_ranks_alone_do_not(runs: int) -> None:
    """Three hundredths of a step on each of eight ranks: noise averages out among them."""
    for seed in range(runs):
        matrices = healthy(seed, 64, STEPS)
        matrices[2][LATE, 8:16] += 0.03
        own = on_hosts(matrices, 8)
        assert len(detection.find_episodes(own)) < 8
        (late,) = find_late(own)
        assert late.rank_columns == tuple(range(8, 16))
        share = late.delay_ns[late.late_step_rows][:, 8:16].mean() / STEP_NS
        assert share == pytest.approx(0.03, rel=0.2)


@sizes
def test_one_late_rank_does_not_make_its_host_late(per_host: int, ranks: int) -> None:
    for seed, by in enumerate((0.15, 0.4, 1.5)):
        matrices = healthy(seed, ranks, STEPS)
        matrices[2][LATE, per_host] += by
        (late,) = find_late(on_hosts(matrices, per_host))
        assert late.rank_columns == (per_host,)


def test_ranks_of_a_host_lose_each_its_own() -> None:
    """Where the ranks of a slow host differ clearly, so does what is taken away to price it."""
    matrices = healthy(0, 64, STEPS)
    grown = np.linspace(0.2, 0.4, 8)
    matrices[2][LATE, 8:16] += grown
    (late,) = find_late(on_hosts(matrices, 8))
    found = late.delay_ns[late.late_step_rows][:, 8:16].mean(axis=0) / STEP_NS
    assert found == pytest.approx(grown, abs=0.03)


@sizes
@pytest.mark.parametrize("runs", few_or_many(1, 3))
@pytest.mark.parametrize("spiky", [False, True], ids=["smooth", "spiky"])
def test_equal_hosts_are_not_accused(per_host: int, ranks: int, runs: int, *, spiky: bool) -> None:
    """Neither of two ranks nor of eight."""
    for seed in range(runs):
        assert find_late(on_hosts(healthy(seed, ranks, STEPS, spiky=spiky), per_host)) == []


@pytest.mark.parametrize("seed", mark_slow([0, 2], quick=[0]))
def test_one_late_rank_of_two_is_no_slow_host(seed: int) -> None:
    """In lasting noise the second rank is late by chance, the first one permanently."""
    case = synchronous(partial(persistent, by=0.1))(setting(8, "harsh", "lognormal", seed))
    (found,) = (one for one in report(case).findings if one.category == "fault")
    assert (found.kind, found.ranks) == ("straggler", case.label.ranks)

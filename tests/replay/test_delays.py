"""What a fix is said to save is what the same run without the fault really saves."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.runs.analysed import faults, report
from support.tiers import mark_slow

from tracelens.arrays import Floats
from tracelens.replay.delays import Price, price_delay
from tracelens.replay.edits.fixes import WorkFix
from tracelens.simulator.synthetic import Fault, Scenario, duration_ns

FAULTS = {
    "lasting": Fault("backprop", (2,), factor=1.3),
    "passing": Fault("forward", (1,), steps=(30, 79), factor=1.8),
    "two ranks": Fault("backprop", (0, 5), steps=(20, 89), factor=1.4),
    "growing": Fault("backprop", (3,), steps=(10, 99), factor=2.0, ramp=True),
    "stalls": Fault("data", (4,), extra_ms=15, every=6),
    "updates": Fault("update", (1,), steps=(30, 79), extra_ms=6),
    "all load slowly": Fault("data", (), steps=(30, 59), extra_ms=10),
}
SHARES = {"two": (2 << 20, 14 << 20), "three": (24 << 20, 4 << 20, 4 << 20)}


def saved_share(with_it: Scenario, without: Scenario) -> float:
    """Return the share of the job that really goes away."""
    return 1 - duration_ns(without) / duration_ns(with_it)


def price(total: Floats, effect: Floats, wait: Floats, job_ns: float) -> Price:
    """Price an effect on ranks that compute all the time, without a replay."""
    own: Any = SimpleNamespace(
        total_compute_ns=total, step_length_ns=total, wait_ns=wait, leaves_out_ranks=False
    )
    return price_delay(own, WorkFix(np.arange(len(total)), ((("backprop",), effect),)), job_ns)


@pytest.mark.parametrize("ranks", mark_slow([8, 32], quick=[8]))
@pytest.mark.parametrize(
    "name", mark_slow(FAULTS, quick=("stalls", "growing", "all load slowly", "two ranks"))
)
def test_saving_is_that_of_the_run_without(name: str, ranks: int) -> None:
    """To a tenth of the saving, or half a point of the job: all random numbers are the same."""
    scenario = Scenario(ranks=ranks, steps=100, noise=0.04, faults=(FAULTS[name],))
    (finding,) = faults(report(scenario))
    truth = saved_share(scenario, replace(scenario, faults=()))
    assert finding.saving == pytest.approx(truth, rel=0.1, abs=0.005)


@pytest.mark.parametrize("ranks", [2, 3])
def test_few_ranks_are_priced_as_well(ranks: int) -> None:
    """The price needs no statistics, so two ranks have one."""
    fault = Fault("backprop", (1,), steps=(30, 59), extra_ms=9)
    scenario = Scenario(ranks=ranks, steps=80, faults=(fault,))
    (finding,) = faults(report(scenario))
    truth = saved_share(scenario, replace(scenario, faults=()))
    assert finding.saving == pytest.approx(truth, rel=0.05, abs=0.005)


@pytest.mark.parametrize("name", SHARES)
@pytest.mark.parametrize("link", mark_slow([0.5, 2.0], quick=[0.5]))
def test_even_shards_save_what_is_said(name: str, link: float) -> None:
    """The run with equal shards is shorter by what the hot shard's finding says."""
    sizes = SHARES[name]
    even = (sum(sizes) // len(sizes),) * len(sizes)
    scenario = Scenario(
        ranks=4, steps=40, shards=len(sizes), shard_bytes=sizes, link_gbytes_per_s=link
    )
    (finding,) = faults(report(scenario))
    truth = saved_share(scenario, replace(scenario, shard_bytes=even))
    assert finding.saving == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("link", mark_slow([0.05, 0.5], quick=[0.5]))
def test_a_late_worker_of_servers_is_priced_with_the_exchange(link: float) -> None:
    """Workers that push together slow each other down, more so on slower links."""
    scenario = Scenario(
        ranks=8,
        steps=60,
        noise=0.03,
        shards=2,
        shard_bytes=(1 << 20, 1 << 20),
        link_gbytes_per_s=link,
        faults=(Fault("backprop", (2,), factor=2.5),),
    )
    (finding,) = (one for one in faults(report(scenario)) if one.kind == "straggler")
    truth = saved_share(scenario, replace(scenario, faults=()))
    assert finding.saving == pytest.approx(truth, rel=0.05, abs=0.005)


@pytest.mark.slow
def test_a_checkpoint_delays_the_next_meeting() -> None:
    """So its price is held against the others' work in the step after, however noisy that is."""
    often = Fault("checkpoint", (0,), steps=(10, 99), extra_ms=20, every=10)
    scenario = Scenario(ranks=16, steps=100, noise=0.2, faults=(often,))
    (finding,) = (one for one in report(scenario).findings if one.kind == "checkpoint_stall")
    truth = saved_share(scenario, replace(scenario, faults=()))
    assert finding.saving == pytest.approx(truth, rel=0.02)
    assert finding.interval is not None
    assert finding.interval[0] < truth < finding.interval[1]


def test_without_waiting_only_the_end_moves() -> None:
    """Where ranks never meet, a late one delays no step: only the job's end, if it is the last."""
    total = np.full((50, 3), 10.0)
    effect = np.zeros_like(total)
    effect[10:20, 1] = 4.0
    apart = price(total + effect, effect, np.zeros_like(total), 540.0)
    assert apart.saving_share == pytest.approx(40 / 540)
    ahead = price(total + effect - 2 * effect.any(axis=0), effect, np.zeros_like(total), 540.0)
    assert ahead.saving_share == 0.0
    assert (apart.waiting_rank_count, apart.cost_share) == (0, 0.0)


def test_cost_is_what_the_others_waited() -> None:
    """Summed waiting over ranks x job; a rank without recorded waits is not counted."""
    total = np.full((50, 4), 10.0)
    effect = np.zeros_like(total)
    effect[10:20, 1] = 4.0
    wait = (total + effect).max(axis=1, keepdims=True) - (total + effect)
    wait[:, 3] = 0.0
    delay_price = price(total + effect, effect, wait, 540.0)
    assert delay_price.saving_share == pytest.approx(40 / 540)
    assert delay_price.waiting_rank_count == 2
    assert delay_price.cost_share == pytest.approx(2 * 40 / (4 * 540))
    assert (
        delay_price.saving_interval[0] <= delay_price.saving_share <= delay_price.saving_interval[1]
    )


def test_what_cost_nothing_may_still_cost_something() -> None:
    """A lateness behind another's in every step of 100 may stand out in 3 of a hundred others."""
    total = np.full((100, 4), 10.0)
    total[:, 3] = 20.0
    effect = np.zeros_like(total)
    effect[:, 1] = 4.0
    delay_price = price(total + effect, effect, 20.0 - total, 2000.0)
    assert delay_price.saving_share == delay_price.saving_interval[0] == 0.0
    assert delay_price.saving_interval[1] == pytest.approx(3 * 4.0 / 2000.0)


def test_a_late_rank_that_waits_in_the_next_step_is_not_one_of_those_that_waited() -> None:
    """What it waits after its own lateness is for others, and no cost of it."""
    total = np.full((50, 3), 10.0)
    effect = np.zeros_like(total)
    effect[10:20, 1] = 4.0
    wait = np.zeros_like(total)
    wait[10:20, [0, 2]] = 4.0
    wait[20, 1] = 40.0
    delay_price = price(total + effect, effect, wait, 540.0)
    assert delay_price.waiting_rank_count == 2
    assert delay_price.cost_share == pytest.approx(2 * 40 / (3 * 540))

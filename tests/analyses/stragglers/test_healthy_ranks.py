"""Equal ranks are not accused: not in noise that lasts for steps, not in noise with spikes."""

import pytest
from support.runs.matrices import healthy, own_time
from support.tiers import few_or_many

from tracelens.analyses.stragglers import detection


@pytest.mark.parametrize("runs", few_or_many(2, 10))
@pytest.mark.parametrize("spiky", [False, True], ids=["smooth", "spiky"])
@pytest.mark.parametrize("steps", [30, 60, 200])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
def test_nobody_is_late(ranks: int, steps: int, runs: int, *, spiky: bool) -> None:
    """Many runs of equal ranks, not one lasting lateness in any phase."""
    for seed in range(min(runs, 4) if ranks == 64 else runs):
        own = own_time(healthy(seed, ranks, steps, spiky=spiky))
        found = [late for late in detection.find_episodes(own) if late.pattern != "sparse"]
        assert found == [], f"seed {seed}"


@pytest.mark.parametrize("runs", few_or_many(3, 10))
@pytest.mark.parametrize("ranks", [3, 8])
def test_very_noisy_ranks_are_not_accused(ranks: int, runs: int) -> None:
    """Noise of 10 % of a phase that lasts for steps wanders, but blames nobody."""
    for seed in range(runs):
        own = own_time(healthy(seed, ranks, 200, noise=0.10))
        assert detection.find_episodes(own) == [], f"seed {seed}"


@pytest.mark.parametrize("runs", few_or_many(2, 5))
@pytest.mark.parametrize("ranks", [4, 16])
def test_uneven_devices_are_not_stragglers(ranks: int, runs: int) -> None:
    """If all ranks differ by a few percent, a difference is normal."""
    for seed in range(runs):
        matrices = healthy(seed, ranks, 100)
        for column in range(ranks):
            matrices[2][:, column] *= 1 + 0.05 * ((column * 7919) % ranks) / ranks
        assert detection.find_episodes(own_time(matrices)) == []

"""Where a labelled run takes place: its size, its noise, and its own stream of random numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Times: TypeAlias = npt.NDArray[np.int64]
Level = Literal["mild", "harsh"]
Family = Literal["lognormal", "pareto"]

# Nobody looks at a published seed, nor at the family of noise that is kept aside, while tuning.
FIRST_SEED: Final = {"tuning": 0, "published": 1_000_000}
LEVELS: Final[tuple[Level, ...]] = ("mild", "harsh")
TUNED_FAMILY: Final[Family] = "lognormal"
FAMILIES: Final[dict[str, tuple[Family, ...]]] = {
    "tuning": (TUNED_FAMILY,),
    "published": (TUNED_FAMILY, "pareto"),
}
RANKS: Final = (8, 64, 512)
# Long enough for statistics, short enough for thousands of runs.
STEPS: Final = {8: 200, 64: 120, 512: 120}
PER_HOST: Final = {8: 2, 64: 8, 512: 8}


@dataclass(frozen=True)
class Setting:
    """One run's size, noise and seed."""

    ranks: int
    steps: int
    per_host: int
    level: Level
    family: Family
    seed: int

    @property
    def hosts(self) -> int:
        """How many hosts run workers."""
        return -(-self.ranks // self.per_host)

    @property
    def harsh(self) -> bool:
        """Whether noise is harsh."""
        return self.level == "harsh"

    def stream(self, purpose: str) -> np.random.Generator:
        """Return the random numbers of one purpose: equal with and without a fault."""
        return np.random.default_rng([self.seed, self.ranks, crc32(purpose.encode())])


def setting(ranks: int, level: Level, family: Family, seed: int) -> Setting:
    """Return the usual setting of a size."""
    return Setting(ranks, STEPS[ranks], PER_HOST[ranks], level, family, seed)

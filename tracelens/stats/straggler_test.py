"""Whether one rank is late again and again, asked after each step, with few false alarms in a whole run.

A test that is repeated after each step finds something by chance sooner or later. This one does not: it
bets that a rank is the last one, by more than a small lag, more often than one of all ranks would be.
The capital of the bets is an e-process (Ramdas et al. 2023): in a run without a late rank it reaches
1 / alpha with a probability of alpha at most, however long one looks (Ville 1939). Bets begin after
each step, with ever smaller stakes that sum to 1, so that a rank is found that becomes late at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from tracelens.arrays import Floats

# probability: of a false alarm in a whole run, whatever its length [policy]
MAX_FALSE_ALARMS_OF_RUN: Final = 0.003
# of a step: a rank that is late by less is not late [chosen]
MIN_LAG_OF_STRAGGLER: Final = 0.03
# of the largest bet that can be lost: bets of these shares are made at once [chosen]
SHARES_OF_LARGEST_BET: Final = (0.2, 0.5, 0.8, 0.95)
# exponent: the stake of bets that begin after step n is n ** -POWER_OF_STAKES [chosen]
POWER_OF_STAKES: Final = 1.1
_SUM_OF_POWERS: Final = 10.5845  # number: the sum of n ** -1.1 over all n [definition]


class StragglerTest:
    """Bets on each of `rank_count` ranks, at least 2; steps are given one after the other."""

    def __init__(self, rank_count: int) -> None:
        self._chance = 1.0 / rank_count
        # What is won for each unit if the rank is the last one; else `chance` of it is lost.
        bets = np.array(SHARES_OF_LARGEST_BET) / self._chance
        self._gains = 1.0 + bets * (1.0 - self._chance)
        self._losses = 1.0 - bets * self._chance
        self._capital = np.zeros((rank_count, len(bets)))
        self._factors = np.tile(self._losses, (rank_count, 1))  # of the capital in a step
        self._step_count = 0

    def add_step(self, lags: Floats) -> int | None:
        """Add a step; return the rank that is last in it if it is late beyond chance by now, else None.

        Bets on the other ranks lose, so none of them can become late in this step.

        Args:
            lags: The time by which each rank came later than its peers, as a share of the step, [rank];
                NaN if unknown.
        """
        self._step_count += 1
        self._capital += self._step_count**-POWER_OF_STAKES / _SUM_OF_POWERS
        last_rank = int(np.fmax(lags, -np.inf).argmax())
        if not lags[last_rank] >= MIN_LAG_OF_STRAGGLER:
            self._capital *= self._losses
            return None
        self._factors[last_rank] = self._gains
        self._capital *= self._factors
        self._factors[last_rank] = self._losses
        # Its bets' capital, shared among all ranks: 1 / alpha is significant.
        evidence = float(self._capital[last_rank].mean()) * self._chance
        return last_rank if evidence >= 1.0 / MAX_FALSE_ALARMS_OF_RUN else None

    def forget(self, rank_index: int) -> None:
        """Begin anew with a rank that is not late any more; its bets are over."""
        self._capital[rank_index] = 0.0

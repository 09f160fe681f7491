"""How much later than others a host lastingly leaves collectives, as far as a trace can show.

Exits take such a lag for an offset. Yet of a collective into which a host came last, the rest is
transfer and its own lag, both on its own clock: compared over the collectives of one size, that tells
the lags of hosts apart. It only widens the uncertainty, since a slow link would look the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

CLEARLY_LAST_NS: Final = 100_000.0  # more than lags can be
FEWEST: Final = 8  # collectives into which a host came last
CERTAIN: Final = 3.0  # standard errors
UNKNOWN: Final = 0.95  # of the known lags: what is assumed where nothing is known
_MEDIAN: Final = 1.25 * 1.4826


@dataclass(frozen=True)
class Lags:
    """Lag of each host beyond the usual one, and its standard error; nan where unknown."""

    lag: Floats
    error: Floats

    def unsure(self) -> Floats:
        """Return how far each clock may be off against the first because of lags, nanoseconds."""
        apart = np.abs(self.lag - self.lag[0])
        error = np.hypot(self.error, self.error[0])
        certain = apart > CERTAIN * error
        if not certain.any():
            return np.zeros_like(apart)
        usual = float(np.quantile(apart[certain], UNKNOWN))
        return np.where(np.isnan(apart), usual, np.where(certain, apart + CERTAIN * error, 0.0))


def lags(lasted: Floats, sizes: npt.NDArray[np.int64]) -> Lags:
    """Measure lags.

    Args:
        lasted: From a host's last arrival to its exit on its own clock, [collective, host].
        sizes: Of each collective: only equal ones are compared.
    """
    hosts = lasted.shape[1]
    shortest = np.partition(lasted, 1, axis=1)[:, :2]
    clear = shortest[:, 1] - shortest[:, 0] > CLEARLY_LAST_NS
    last, rest = lasted.argmin(axis=1)[clear], shortest[clear, 0]
    for size in np.unique(sizes[clear]):
        same = sizes[clear] == size
        rest[same] -= np.median(rest[same])
    lag, error = np.full((2, hosts), np.nan)
    for host in range(hosts):
        mine = rest[last == host]
        if len(mine) >= FEWEST:
            lag[host] = np.median(mine)
            error[host] = _MEDIAN * np.median(np.abs(mine - lag[host])) / np.sqrt(len(mine))
    return Lags(lag, error)

"""Late ranks are part of the median they were held against: how much that hides of their lateness."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tracelens.analyses._late import Late
    from tracelens.analyses._own_time import OwnTime


def against_the_rest(own: OwnTime, found: list[Late]) -> list[Late]:
    """Return the same entries with what they lose against the ranks that are not late meanwhile."""
    late = np.zeros(own.total.shape, np.bool_)
    for entry in found:
        late |= entry.effect > 0
    if len(own.ranks) < 3 or not late.any() or late.all(axis=1).any():
        return found
    rows = np.asarray(late.any(axis=1))
    total = own.total[rows]
    everybody = np.nanmedian(total, axis=1)
    rest = np.nanmedian(np.where(late[rows], np.nan, total), axis=1)
    hidden = np.zeros(len(rows))
    hidden[rows] = np.nan_to_num(everybody - rest, nan=0.0)
    return [_corrected(entry, float(hidden[entry.touched].mean())) for entry in found]


def _corrected(entry: Late, hidden_ns: float) -> Late:
    """Add to an entry's lateness, where it is late, what the median hides."""
    return replace(entry, effect=entry.effect + hidden_ns * (entry.effect > 0))

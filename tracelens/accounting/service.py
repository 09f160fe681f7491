"""What servers do for requests: which operations occupy a processor, and how busy a server is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from tracelens.arrays import Floats, Ints

PROCESSOR_OPS: Final = ("aggregate", "apply")
SERVICE_OPS: Final = (*PROCESSOR_OPS, "reply")


def measure_link_time(begin: Ints | Floats, end: Ints | Floats, crowding: float = 0.0) -> Floats:
    """Measure each message's share of its link's time, if concurrent messages share it equally.

    With `crowding` above 0, n concurrent messages get 1 / (1 + crowding (n - 1)) of the link.
    """
    edges = np.unique(np.concatenate([begin, end]))
    first_edge, last_edge = np.searchsorted(edges, begin), np.searchsorted(edges, end)
    change = np.bincount(first_edge, minlength=len(edges)) - np.bincount(
        last_edge, minlength=len(edges)
    )
    crowd = np.maximum(np.cumsum(change)[:-1], 1)
    share = np.diff(edges) / (crowd * (1 + crowding * (crowd - 1)))
    share_before = np.concatenate([[0.0], np.cumsum(share)])
    return np.asarray(share_before[last_edge] - share_before[first_edge])

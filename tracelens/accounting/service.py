"""What servers do for requests: which operations occupy a processor, and how busy a server is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from tracelens.arrays import Floats, Ints

PROCESSOR_OPS: Final = ("aggregate", "apply")
SERVICE_OPS: Final = (*PROCESSOR_OPS, "reply")


def measure_link_time(begin: Ints | Floats, end: Ints | Floats, crowding: float = 0.0) -> Floats:
    """Measure the time of each message on a link of its own; here messages share one equally.

    `begin` and `end` are times of each message, [message], in the unit of the result. With `crowding`
    above 0, n concurrent messages together get only 1 / (1 + crowding (n - 1)) of the link.
    """
    edges = np.unique(np.concatenate([begin, end]))
    first_edge, last_edge = np.searchsorted(edges, begin), np.searchsorted(edges, end)
    count_change = np.bincount(first_edge, minlength=len(edges)) - np.bincount(
        last_edge, minlength=len(edges)
    )
    message_count = np.maximum(np.cumsum(count_change)[:-1], 1)
    full_link_time = np.diff(edges) / (message_count * (1 + crowding * (message_count - 1)))
    time_before = np.concatenate([[0.0], np.cumsum(full_link_time)])
    return np.asarray(time_before[last_edge] - time_before[first_edge])

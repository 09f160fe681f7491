"""How an allreduce is carried out: what each algorithm sends, by the number of ranks.

Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH", 2005.
"""

from __future__ import annotations

from math import ceil, log2
from typing import Final

ALGORITHMS: Final = ("ring", "tree", "recursive_doubling", "rabenseifner", "ps")


def count_messages_and_payloads(algorithm: str, ranks: int) -> tuple[int, float]:
    """Return the number of consecutive messages, and how many times the payload crosses a link.

    Args:
        algorithm: One of `ALGORITHMS`: a ring of reduce-scatter and all-gather, a binomial tree to the
            root and back, recursive doubling of whole payloads, recursive halving and doubling of ever
            smaller parts (Rabenseifner), or one server with one link, to which all push and from which
            all pull.
        ranks: How many take part; of a single one nothing is sent.
    """
    if ranks < 2:
        return 0, 0.0
    payload_share, depth = 2 * (ranks - 1) / ranks, ceil(log2(ranks))
    return {
        "ring": (2 * (ranks - 1), payload_share),
        "tree": (2 * depth, 2.0 * depth),
        "recursive_doubling": (depth, float(depth)),
        "rabenseifner": (2 * depth, payload_share),
        "ps": (2, 2.0 * ranks),
    }[algorithm]

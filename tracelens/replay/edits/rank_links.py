"""The links by which ranks come to collectives and leave them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tracelens.arrays import Indices
    from tracelens.replay.calls import Calls
    from tracelens.replay.model import Model

__all__ = ["find_rank_links"]


def find_rank_links(model: Model, call: Calls) -> tuple[Indices, Indices]:
    """Return the links to the wire and from it, [call, rank]; -1 where a rank has none."""
    links = model.links
    column_of = np.full(len(model.threads), -1)
    column_of[call.worker] = np.arange(len(call.worker))
    enters, leaves = (np.full(call.start.shape, -1, np.int64) for _ in range(2))
    directions = ((enters, links.source, links.target), (leaves, links.target, links.source))
    for odd, (matrix, of_rank, of_wire) in enumerate(directions):
        position = of_wire - call.at
        is_own = (position >= 0) & (position < 2 * call.height) & (position % 2 == odd)
        rows = np.flatnonzero((of_rank < model.threads.moment_count) & is_own)
        column = column_of[model.threads.find_owners(of_rank[rows])]
        matrix[position[rows] // 2, column] = rows
    return enters, leaves

"""Pieces beyond the memory that is given for them are in a file, and the same as in memory."""

import numpy as np
import pytest
from support.runs.scenarios import SLOW_BACKPROP

import tracelens
from tracelens.accounting import phases
from tracelens.accounting.pieces import PackedPieces, PieceStore
from tracelens.simulator.synthetic import generate


def fields(pieces: PackedPieces) -> list[object]:
    return [
        (value.dtype, value.tolist()) if isinstance(value, np.ndarray) else value
        for value in vars(pieces).values()
    ]


@pytest.mark.parametrize("room", [0, 3_000, 1 << 30])
def test_stored_pieces_are_read_back_unchanged(room: int) -> None:
    """Whether none, some or all of them fit into memory."""
    trace = tracelens.load.prepare(generate(SLOW_BACKPROP))
    packed = phases.run(trace).pieces.store
    store = PieceStore(room)
    for pieces in packed:
        store.append(pieces)
    assert len(store) == len(packed)
    assert [fields(stored) for stored in store] == [fields(stored) for stored in packed]


def test_times_do_not_depend_on_the_memory_for_pieces() -> None:
    """It comes to the same times, and the same rows."""
    trace = tracelens.load.prepare(generate(SLOW_BACKPROP))
    free, bound = phases.run(trace), phases.run(trace, memory=0)
    assert bound.times.equals(free.times)
    assert bound.segments.equals(free.segments)

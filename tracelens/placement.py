"""Where a parameter server puts variables: the strategies in use, and what each makes of the load.

A step of training moves every variable, so the shard that holds the most bytes is the one that all
wait for, however fast the mean shard is. Sources: TensorFlow 1.x (`replica_device_setter`: round robin;
`GreedyLoadBalancingStrategy`); Graham, "Bounds on multiprocessing timing anomalies", 1969 (largest
first); Luo et al., PHub, SoCC 2018, arXiv 1805.07891 (32 KiB chunks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracelens.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CHUNK_BYTES: Final = 32 * 1024


@dataclass(frozen=True)
class Piece:
    """A part of a variable, by its index, on a shard: `nbytes` from `offset_bytes` (bytes) on."""

    variable_index: int
    offset_bytes: int
    nbytes: int
    shard_index: int


def place_round_robin(sizes: Sequence[int], shards: int) -> list[Piece]:
    """Deal variables of these sizes (bytes, in order of creation) out to the shards in turn."""
    _check(sizes, shards)
    return [
        Piece(index, offset_bytes=0, nbytes=size, shard_index=index % shards)
        for index, size in enumerate(sizes)
    ]


def place_greedily(sizes: Sequence[int], shards: int) -> list[Piece]:
    """Put each variable, in order of creation, onto the shard with the fewest bytes so far."""
    _check(sizes, shards)
    return _to_lightest(sizes, range(len(sizes)), shards)


def place_largest_first(sizes: Sequence[int], shards: int) -> list[Piece]:
    """Put the largest variable first onto the lightest shard; at most 4/3 of the best possible load."""
    _check(sizes, shards)
    order = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    return sorted(_to_lightest(sizes, order, shards), key=lambda piece: piece.variable_index)


def place_chunks(sizes: Sequence[int], shards: int, chunk_bytes: int = CHUNK_BYTES) -> list[Piece]:
    """Cut variables, of `sizes` in bytes, into chunks, and deal these out to the shards in turn."""
    _check(sizes, shards)
    if chunk_bytes < 1:
        raise InvalidArgument(f"chunk_bytes is {chunk_bytes}, expected at least 1.")
    chunks = [
        (index, offset, min(chunk_bytes, size - offset))
        for index, size in enumerate(sizes)
        for offset in range(0, size, chunk_bytes)
    ]
    return [Piece(*chunk, number % shards) for number, chunk in enumerate(chunks)]


def sum_shard_bytes(pieces: Sequence[Piece], shards: int) -> list[int]:
    """Sum up what each shard holds, in bytes."""
    shard_bytes = [0] * shards
    for piece in pieces:
        shard_bytes[piece.shard_index] += piece.nbytes
    return shard_bytes


STRATEGIES: Final[dict[str, Callable[[Sequence[int], int], list[Piece]]]] = {
    "round_robin": place_round_robin,
    "greedy": place_greedily,
    "largest_first": place_largest_first,
    "chunked": place_chunks,
}


def _to_lightest(sizes: Sequence[int], order: Sequence[int], shards: int) -> list[Piece]:
    """Put variables, in this `order`, onto the shard with the fewest bytes so far."""
    shard_bytes = [0] * shards
    pieces = []
    for variable in order:
        shard = shard_bytes.index(min(shard_bytes))
        shard_bytes[shard] += sizes[variable]
        pieces.append(Piece(variable, offset_bytes=0, nbytes=sizes[variable], shard_index=shard))
    return pieces


def _check(sizes: Sequence[int], shards: int) -> None:
    if shards < 1:
        raise InvalidArgument(f"shards is {shards}, expected at least 1.")
    if any(size < 0 for size in sizes):
        raise InvalidArgument(f"a variable has {min(sizes)} bytes, expected at least 0.")

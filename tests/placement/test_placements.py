"""Whatever the variables, every byte has one shard, and loads keep to what the strategy promises."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import InvalidArgument
from tracelens.placement import STRATEGIES, place_chunks, place_largest_first, sum_shard_bytes

SIZES = st.lists(st.integers(0, 10**6), min_size=1, max_size=40)
SHARDS = st.integers(1, 12)


@pytest.mark.parametrize("name", STRATEGIES)
@given(sizes=SIZES, shards=SHARDS)
def test_every_byte_has_one_shard(name: str, sizes: list[int], shards: int) -> None:
    covered: dict[int, int] = defaultdict(int)
    for piece in sorted(
        STRATEGIES[name](sizes, shards), key=lambda p: (p.variable_index, p.offset_bytes)
    ):
        assert piece.offset_bytes == covered[piece.variable_index]
        assert 0 <= piece.shard_index < shards
        covered[piece.variable_index] += piece.nbytes
    assert [covered[index] for index in range(len(sizes))] == sizes


@given(sizes=SIZES, shards=SHARDS)
def test_largest_first_is_near_the_best(sizes: list[int], shards: int) -> None:
    """Graham's bound, against a load that no placement can be below."""
    least = max([*sizes, -(-sum(sizes) // shards)])
    assert max(sum_shard_bytes(place_largest_first(sizes, shards), shards)) <= 2 * least
    if shards >= len(sizes):
        assert max(sum_shard_bytes(place_largest_first(sizes, shards), shards)) == max(sizes)


@given(sizes=SIZES, shards=SHARDS, chunk=st.integers(1000, 10**6))
def test_shards_differ_by_the_chunks_that_are_cut_short(
    sizes: list[int], shards: int, chunk: int
) -> None:
    pieces = place_chunks(sizes, shards, chunk)
    counts = [0] * shards
    for piece in pieces:
        counts[piece.shard_index] += 1
        assert 0 < piece.nbytes <= chunk
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_cannot_be_placed_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="shards is 0"):
        STRATEGIES[name]([1], 0)
    with pytest.raises(InvalidArgument, match="-3 bytes"):
        STRATEGIES[name]([1, -3], 2)
    with pytest.raises(InvalidArgument, match="chunk_bytes is 0"):
        place_chunks([1], 1, 0)

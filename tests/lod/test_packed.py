"""Columns on disk give back what was written, whichever part is read, and little is held."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.lod import lane_files, packed
from tracelens.lod.lanes import Lane, Lanes
from tracelens.lod.packed import Blocks, Kept, Rows

SMALL = 5  # numbers of a block, so that few items are many blocks
COLUMNS = ("starts", "ends", "codes", "steps", "names")
ROWS = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 1 << 40)), max_size=30),
    min_size=1,
    max_size=4,
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (packed, lane_files):
        monkeypatch.setattr(module, "BLOCK", SMALL)


def kept(folder: Path, numbers: list[int], kind: str) -> tuple[np.ndarray, Blocks]:
    array = np.array(numbers, kind)
    packed.save(folder, "column", array)
    return array, packed.column(folder, "column")


@settings(max_examples=60)
@given(
    numbers=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=40),
    part=st.slices(40),
    places=st.lists(st.integers(0, 39)),
)
def test_any_part_of_a_column_is_what_was_written(
    numbers: list[int], part: slice, places: list[int]
) -> None:
    """For any numbers of 64 bits: every one, any slice, and any choice of them."""
    with tempfile.TemporaryDirectory() as folder:
        array, column = kept(Path(folder), numbers, "int64")
        assert len(column) == len(array)
        assert [int(column[place]) for place in range(len(array))] == array.tolist()
        forward = slice(part.start, part.stop, abs(part.step or 1))
        assert column[forward].tolist() == array[forward].tolist()
        there = np.array([place for place in places if place < len(array)], np.int64)
        assert column[there].tolist() == array[there].tolist()
        assert column.dtype == np.asarray(column).dtype == array.dtype


def test_small_numbers_and_repeated_ones_take_few_bytes(tmp_path: Path) -> None:
    """Bytes that are zero in a whole block are not written, and of zeros there is nothing."""
    kept(tmp_path, [0] * 10 * SMALL, "int64")
    assert (tmp_path / "column.blocks").stat().st_size == 0
    noise = np.random.default_rng(0).integers(0, 1 << 16, 1 << 14)
    packed.save(tmp_path, "noise", noise)
    assert (tmp_path / "noise.blocks").stat().st_size < 0.5 * noise.nbytes


def test_rows_are_read_by_slices(tmp_path: Path) -> None:
    """A block of numbers, [row, number], of which rows are read, also every second."""
    array = np.arange(60, dtype=np.uint32).reshape(12, 5)
    packed.save(tmp_path, "rows", array)
    rows = Rows(packed.column(tmp_path, "rows"), 5)
    assert len(rows) == 12
    for part in (slice(None), slice(3, 7), slice(1, None, 2), slice(7, 3), slice(11, 12)):
        assert np.array_equal(rows[part], array[part])


def test_a_slice_decodes_only_the_blocks_in_which_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two blocks of a hundred for a slice over an edge; none the second time."""
    decoded: list[int] = []
    plain = packed.Packed.decode

    def counted(self: packed.Packed, blocks: np.ndarray) -> list[np.ndarray]:
        decoded.extend(blocks.tolist())
        return plain(self, blocks)

    monkeypatch.setattr(packed.Packed, "decode", counted)
    _, column = kept(tmp_path, list(range(100 * SMALL)), "int64")
    for _ in range(2):
        assert column[3 * SMALL - 1 : 3 * SMALL + 1].tolist() == [3 * SMALL - 1, 3 * SMALL]
        assert decoded == [2, 3]


def test_what_is_kept_is_bounded() -> None:
    """What was asked for last stays; the rest goes, so that memory does not grow with a run."""
    decoded: list[int] = []

    def decode(blocks: np.ndarray) -> list[np.ndarray]:
        decoded.extend(blocks.tolist())
        return [np.full(10, block) for block in blocks.tolist()]

    found = Kept(most_bytes=250).of(decode)
    for blocks in ([1], [2, 3], [1], [4], [3], [1], [2]):
        assert [numbers[0] for numbers in found(np.array(blocks))] == blocks
    assert decoded == [1, 2, 3, 4, 2]


@settings(max_examples=60)
@given(rows=ROWS, part=st.integers(1, 4), seed=st.integers(0, 9))
def test_lanes_come_back(rows: list[list[tuple[int, int]]], part: int, seed: int) -> None:
    """For any lanes, with gaps and without, written in parts of some lanes: every column, exactly."""
    whole = lanes_of(rows, seed)
    with tempfile.TemporaryDirectory() as folder:
        opened = written(whole, part, Path(folder))
        for name in ("offsets", *COLUMNS):
            assert np.array_equal(getattr(opened, name), getattr(whole, name))
        assert opened.words == whole.words


@settings(max_examples=60)
@given(rows=ROWS, begin=st.floats(0, 1), length=st.floats(0, 1))
def test_lanes_on_disk_find_what_lanes_in_memory_find(
    rows: list[list[tuple[int, int]]], begin: float, length: float
) -> None:
    """For any lanes and window: the same items, also of one lane."""
    whole = lanes_of(rows, 0)
    end = int(whole.ends[:].max(initial=1))
    start = int(begin * end)
    window = start, start + max(int(length * end), 1)
    with tempfile.TemporaryDirectory() as folder:
        opened = written(whole, 1, Path(folder))
        for mine, plain in zip(opened.bounds(*window), whole.bounds(*window), strict=True):
            assert mine.tolist() == plain.tolist()
        assert opened.between(0, *window) == whole.between(0, *window)
        assert opened.count(*window) == whole.count(*window)


def lanes_of(rows: list[list[tuple[int, int]]], seed: int) -> Lanes:
    """Build lanes of (gap before, length)."""
    draw = np.random.default_rng(seed)
    count = sum(map(len, rows))
    edges = [np.cumsum([edge for item in row for edge in item], dtype=np.int64) for row in rows]
    return Lanes(
        lanes=tuple(Lane(rank, "worker", rank) for rank in range(len(rows))),
        offsets=np.cumsum([0, *map(len, rows)]),
        starts=np.concatenate([row[0::2] for row in edges]),
        ends=np.concatenate([row[1::2] for row in edges]),
        codes=draw.integers(0, 255, count).astype(np.uint8),
        steps=draw.integers(-1, 1 << 30, count).astype(np.int32),
        names=draw.integers(0, 3, count).astype(np.int32),
        words=("", "forward", "backprop"),
    )


def written(whole: Lanes, together: int, folder: Path) -> Lanes:
    """Write lanes, some of them together as a part, and open what was written."""
    count = len(whole)
    bounds = [(first, min(first + together, count)) for first in range(0, count, together)]
    offsets, words = lane_files.save_lanes(
        (part_of(whole, first, last) for first, last in bounds), folder, "spans"
    )
    assert offsets.tolist() == whole.offsets.tolist()
    return lane_files.load_lanes(folder, "spans", whole.lanes, words)


def part_of(whole: Lanes, first: int, last: int) -> Lanes:
    items = slice(int(whole.offsets[first]), int(whole.offsets[last]))
    return Lanes(
        lanes=whole.lanes[first:last],
        offsets=whole.offsets[first : last + 1] - whole.offsets[first],
        words=whole.words,
        **{name: getattr(whole, name)[items] for name in COLUMNS},
    )

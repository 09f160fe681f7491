"""Columns on disk give back what was written, whichever part is read, and little is decoded."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.lod import block_columns, lane_files, step_matrices
from tracelens.lod.block_columns import BlockColumn
from tracelens.lod.lanes import Lane, Lanes

SMALL = 5  # items of a block, so that few items are many blocks
COLUMNS = ("starts_ns", "ends_ns", "palette_codes", "step_numbers", "name_indices")
ROWS = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 1 << 40)), max_size=30),
    min_size=1,
    max_size=4,
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (block_columns, lane_files):
        monkeypatch.setattr(module, "BLOCK", SMALL)
    monkeypatch.setattr(step_matrices, "VALUES_PER_BATCH", 3 * SMALL)


def column_of(array: np.ndarray, decoded_blocks: list[int]) -> BlockColumn:
    """Return a column of blocks in memory; notes which blocks are decoded."""

    def decode(blocks: np.ndarray) -> list[np.ndarray]:
        decoded_blocks.extend(blocks.tolist())
        return [array[block * SMALL : (block + 1) * SMALL] for block in blocks.tolist()]

    return BlockColumn(len(array), array.dtype, decode)


@settings(max_examples=60)
@given(
    numbers=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=40),
    part=st.slices(40),
    items=st.lists(st.integers(0, 39)),
)
def test_any_part_of_a_column_is_what_was_written(
    numbers: list[int], part: slice, items: list[int]
) -> None:
    """For any numbers of 64 bits: every one, any slice, and any choice of them."""
    array = np.array(numbers, np.int64)
    column = column_of(array, [])
    assert len(column) == len(array)
    assert [int(column[item]) for item in range(len(array))] == array.tolist()
    forward = slice(part.start, part.stop, abs(part.step or 1))
    assert column[forward].tolist() == array[forward].tolist()
    present = np.array([item for item in items if item < len(array)], np.int64)
    assert column[present].tolist() == array[present].tolist()
    assert column.dtype == np.asarray(column).dtype == array.dtype


def test_a_slice_decodes_only_the_blocks_in_which_it_lies() -> None:
    """Two blocks of a hundred for a slice over an edge."""
    decoded_blocks: list[int] = []
    column = column_of(np.arange(100 * SMALL), decoded_blocks)
    assert column[3 * SMALL - 1 : 3 * SMALL + 1].tolist() == [3 * SMALL - 1, 3 * SMALL]
    assert decoded_blocks == [2, 3]


def test_decoded_blocks_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second look at the same items reads no file."""
    opened = save_and_open(lanes_of([[(0, 7)] * 4 * SMALL], 0), 1, tmp_path)
    before = opened.palette_codes[SMALL : 2 * SMALL]
    monkeypatch.setattr(lane_files._Blocks, "_read", None)
    assert opened.palette_codes[SMALL : 2 * SMALL].tolist() == before.tolist()
    assert opened.starts_ns[SMALL] == 7 * SMALL


def test_a_file_that_is_cut_short_does_not_open(tmp_path: Path) -> None:
    lanes = lanes_of([[(0, 7)] * 4 * SMALL], 0)
    save_and_open(lanes, 1, tmp_path)
    file = tmp_path / "spans.arrow"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"."):
        lane_files.load_lanes(tmp_path, "spans", lanes.owners, lanes.item_names)


@pytest.mark.parametrize("kind", ["uint32", "uint64", "bool"])
def test_matrices_are_read_by_steps(tmp_path: Path, kind: str) -> None:
    """Columns of [step, rank] are read for some steps, also every second one; also without ranks."""
    array = (np.arange(60).reshape(12, 5) % 7).astype(kind)
    step_matrices.save_matrices(tmp_path / "some.arrow", {"other": array + 1, "array": array})
    matrix = step_matrices.load_matrices(tmp_path / "some.arrow", 12, 5)["array"]
    assert len(matrix) == 12
    for part in (slice(None), slice(3, 7), slice(1, None, 2), slice(7, 3), slice(11, 12)):
        assert matrix[part].dtype == array.dtype
        assert np.array_equal(matrix[part], array[part])
    step_matrices.save_matrices(tmp_path / "none.arrow", {"none": array[:0, :0]})
    assert step_matrices.load_matrices(tmp_path / "none.arrow", 0, 0)["none"][:].shape == (0, 0)


@settings(max_examples=60)
@given(rows=ROWS, part=st.integers(1, 4), seed=st.integers(0, 9))
def test_lanes_come_back(rows: list[list[tuple[int, int]]], part: int, seed: int) -> None:
    """For any lanes, with gaps and without, written in parts of some lanes: every column, exactly."""
    lanes = lanes_of(rows, seed)
    with tempfile.TemporaryDirectory() as folder:
        opened = save_and_open(lanes, part, Path(folder))
        for name in ("item_offsets", *COLUMNS):
            assert np.array_equal(getattr(opened, name), getattr(lanes, name))
        assert opened.item_names == lanes.item_names


@settings(max_examples=60)
@given(rows=ROWS, begin=st.floats(0, 1), length=st.floats(0, 1))
def test_lanes_on_disk_find_what_lanes_in_memory_find(
    rows: list[list[tuple[int, int]]], begin: float, length: float
) -> None:
    """For any lanes and window: the same items, also of one lane."""
    lanes = lanes_of(rows, 0)
    end = int(lanes.ends_ns[:].max(initial=1))
    start = int(begin * end)
    window = start, start + max(int(length * end), 1)
    with tempfile.TemporaryDirectory() as folder:
        opened = save_and_open(lanes, 1, Path(folder))
        for on_disk, plain in zip(
            opened.find_item_ranges(*window), lanes.find_item_ranges(*window), strict=True
        ):
            assert on_disk.tolist() == plain.tolist()
        assert opened.find_lane_items(0, *window) == lanes.find_lane_items(0, *window)
        assert opened.count_items(*window) == lanes.count_items(*window)


def lanes_of(rows: list[list[tuple[int, int]]], seed: int) -> Lanes:
    """Build lanes of (gap before, length)."""
    draw = np.random.default_rng(seed)
    count = sum(map(len, rows))
    edges = [np.cumsum([edge for item in row for edge in item], dtype=np.int64) for row in rows]
    return Lanes(
        owners=tuple(Lane(rank, "worker", rank) for rank in range(len(rows))),
        item_offsets=np.cumsum([0, *map(len, rows)]),
        starts_ns=np.concatenate([row[0::2] for row in edges]),
        ends_ns=np.concatenate([row[1::2] for row in edges]),
        palette_codes=draw.integers(0, 255, count).astype(np.uint8),
        step_numbers=draw.integers(-1, 1 << 30, count).astype(np.int32),
        name_indices=draw.integers(0, 3, count).astype(np.int32),
        item_names=("", "forward", "backprop"),
    )


def save_and_open(lanes: Lanes, per_part: int, folder: Path) -> Lanes:
    """Write lanes, some of them together as a part, and open what was written."""
    count = len(lanes)
    bounds = [(first, min(first + per_part, count)) for first in range(0, count, per_part)]
    offsets, saved_words = lane_files.save_lanes(
        (part_of(lanes, first, last) for first, last in bounds), folder, "spans"
    )
    assert offsets.tolist() == lanes.item_offsets.tolist()
    return lane_files.load_lanes(folder, "spans", lanes.owners, saved_words)


def part_of(lanes: Lanes, first_lane: int, last_lane: int) -> Lanes:
    items = slice(int(lanes.item_offsets[first_lane]), int(lanes.item_offsets[last_lane]))
    return Lanes(
        owners=lanes.owners[first_lane:last_lane],
        item_offsets=lanes.item_offsets[first_lane : last_lane + 1]
        - lanes.item_offsets[first_lane],
        item_names=lanes.item_names,
        **{name: getattr(lanes, name)[items] for name in COLUMNS},
    )

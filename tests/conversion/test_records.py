"""Records that are picked, joined, sorted and split are the records that numpy's own ways find."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.conversion.columns import (
    SLOT,
    UNKNOWN_DEPTH,
    RecordChunk,
    Records,
    join_rows,
    null_column,
    pick_rows,
    split_fields,
)
from tracelens.conversion.definitions import NO_INDEX, TYPES, UNKNOWN, tabulate_definitions
from tracelens.conversion.folder import Segment
from tracelens.schema.arrow import EVENT_SCHEMA
from tracelens.schema.side import Definition


def draw_records(count: int, seed: int = 0) -> Records:
    """Records in which each field has all its bits."""
    content = np.random.default_rng(seed).bytes(count * SLOT.itemsize)
    return np.frombuffer(content, SLOT)


RECORDS = draw_records(6)


@given(st.lists(st.integers(0, 5), max_size=8))
def test_records_are_picked_by_index(where: list[int]) -> None:
    """In any order, more than once."""
    indices = np.array(where, np.intp)
    assert pick_rows(RECORDS, indices).tobytes() == RECORDS[indices].tobytes()
    chunk = RecordChunk(RECORDS, np.arange(6) * 7, np.arange(6) - 1).take(indices)
    assert chunk.records.tobytes() == RECORDS[indices].tobytes()
    assert (chunk.origins.tolist(), chunk.depths.tolist()) == (
        [7 * n for n in where],
        [n - 1 for n in where],
    )


@given(st.lists(st.integers(0, 3), max_size=4))
def test_joined_records_keep_all_bytes(sizes: list[int]) -> None:
    chunks = [draw_records(size, seed) for seed, size in enumerate(sizes)]
    expected = b"".join(part.tobytes() for part in chunks)
    assert join_rows(chunks).tobytes() == expected
    assert join_rows(chunks).dtype == SLOT
    chunk = RecordChunk.from_chunks(
        [RecordChunk.from_records(p, np.arange(len(p))) for p in chunks]
    )
    assert chunk.records.tobytes() == expected
    assert chunk.origins.tolist() == [n for size in sizes for n in range(size)]
    assert chunk.depths.tolist() == [UNKNOWN_DEPTH] * sum(sizes)


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 1100])
def test_split_fields_are_contiguous_columns(count: int) -> None:
    records = draw_records(count)
    found = split_fields(records)
    assert list(found) == list(SLOT.names or ())
    for name, values in found.items():
        assert values.dtype == records[name].dtype
        assert values.tolist() == records[name].tolist()
        assert values.flags.c_contiguous


@given(st.lists(st.integers(-2, 2), max_size=9))
def test_records_are_sorted_stably_by_start(starts: list[int]) -> None:
    """Those that begin together stay as they were; a mask leaves the order as it is."""
    records = np.zeros(len(starts), SLOT)
    records["start_ns"] = starts
    in_order = RecordChunk.from_records(records, np.arange(len(starts))).sort_by_start()
    order = sorted(range(len(starts)), key=lambda index: starts[index])
    assert in_order.origins.tolist() == order
    assert in_order.records["start_ns"].tolist() == sorted(starts)
    positive = in_order.select(in_order.records["start_ns"] > 0)
    assert positive.origins.tolist() == [index for index in order if starts[index] > 0]


@given(st.lists(st.integers(0, 2), max_size=9), st.integers(0, 1 << 30))
def test_slots_of_a_segment_are_in_use_or_free(definitions: list[int], number: int) -> None:
    """Each is in use or free; its origin says which it is."""
    slots = np.zeros(len(definitions), SLOT)
    slots["definition"] = definitions
    segment = Segment(number, slots)
    used, free = segment.select_used_records(), segment.compute_free_origins()
    assert used.records["definition"].tolist() == [d for d in definitions if d]
    origins = [*used.origins.tolist(), *free.tolist()]
    assert {origin >> 32 for origin in origins} <= {number}
    found = [origin & 0xFFFFFFFF for origin in origins]
    assert found == sorted(range(len(definitions)), key=lambda at: definitions[at] == 0)


@pytest.mark.parametrize("count", [1, 65536, 65537])
def test_empty_columns_are_sound(count: int) -> None:
    for field in EVENT_SCHEMA:
        column = null_column(count, field.type)
        column.validate(full=True)
        assert (column.null_count, column.type) == (count, field.type)


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["a", "b", "c"])), max_size=6))
def test_a_number_means_its_first_definition(given_rows: list[tuple[int, str]]) -> None:
    """Each number means what was said of it first; one that was not said, nothing."""
    definitions = [
        Definition(number, name, name * 2, op=name if name > "a" else None, communicator=number - 1)
        for number, name in given_rows
    ]
    meanings = tabulate_definitions(definitions)
    for number in range(12):
        (row,) = meanings.find_rows(np.array([number], np.uint32)).tolist()
        definition = next((one for one in definitions if one.id == number), None)
        if definition is None:
            assert row == UNKNOWN
            continue
        assert meanings.name.words.to_pylist()[meanings.name.codes[row]] == definition.name
        assert meanings.kind.words.to_pylist()[meanings.kind.codes[row]] == definition.kind
        assert TYPES[meanings.type_codes[row]] == "span"
        code = int(meanings.op.codes[row])
        assert (None if code < 0 else meanings.op.words.to_pylist()[code]) == definition.op
        assert meanings.communicator_indices[row] == definition.communicator
        assert meanings.shard_numbers[row] == NO_INDEX
    assert not meanings.has_device_times


def test_numbers_of_definitions_are_limited() -> None:
    """What no program makes would take memory; the largest that counts does count."""
    largest = 1 << 22
    found = tabulate_definitions(
        [Definition(largest, "a", "user"), Definition(largest + 1, "b", "user")]
    )
    ids = np.array([largest - 1, largest, largest + 1, (1 << 32) - 1], np.uint32)
    assert (found.find_rows(ids) != UNKNOWN).tolist() == [False, True, False, False]


@pytest.mark.parametrize(("count", "others"), [(126, 0), (127, 1), (130, 4)])
def test_more_kinds_than_a_dictionary_holds(count: int, others: int) -> None:
    """The first kinds keep their names; all later ones share one."""
    rows = [Definition(n + 1, "a", f"k{n}") for n in range(count)]
    words = tabulate_definitions(rows).kind.words.to_pylist()
    codes = tabulate_definitions(rows).kind.codes.tolist()[1:]
    named = [words[code] for code in codes]
    assert named.count("other") == others
    assert named[: count - others] == [row.kind for row in rows[: count - others]]

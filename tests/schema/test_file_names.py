"""Names of a process's files say its role, rank and pid; other names say nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.schema.vocabulary import (
    ROLES,
    SEGMENTS_SUFFIX,
    TRACE_SUFFIX,
    make_stem,
    parse_stem,
)


@given(
    st.sampled_from(ROLES),
    st.integers(0, 10**6),
    st.integers(1, 2**22),
    st.sampled_from(["", TRACE_SUFFIX, SEGMENTS_SUFFIX]),
)
def test_a_file_name_gives_role_number_and_pid(role: str, rank: int, pid: int, suffix: str) -> None:
    assert parse_stem(make_stem(role, rank, pid) + suffix) == (role, rank, pid)


def test_names_sort_by_rank() -> None:
    """As the page on the format shows."""
    assert make_stem("worker", 3, 41237) == "worker-00003-41237"
    names = [make_stem("worker", rank, 1) for rank in (0, 9, 10, 99_999)]
    assert names == sorted(names)


@pytest.mark.parametrize(
    "name",
    [
        *("", "worker", "worker-3-41237", "worker-00003", "worker-00003-x", "master-00003-1"),
        *("worker-00003-41237.txt", "a-worker-00003-41237", "worker-00003-41237-b"),
    ],
)
def test_other_file_names_are_no_recordings(name: str) -> None:
    assert parse_stem(name) is None

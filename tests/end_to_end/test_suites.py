"""Some of mpi4py's own tests pass under `tracelens record` as without (all of them: `make suites`)."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from suites.mpi4py_suite import MPIS, compare, find_tests

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.end_to_end

FILES = (
    *("test_attributes", "test_comm", "test_comm_topo", "test_pickle", "test_request"),
    *("test_subclass", "test_p2p_buf", "test_p2p_obj_matched"),
)


def test_nothing_fails_because_it_is_recorded(tmp_path: Path) -> None:
    try:
        tests = find_tests(tmp_path)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"the source of mpi4py cannot be downloaded ({error})")
    suite = compare(MPIS[0], 2, tests, FILES)
    assert suite.passed, suite.new
    assert len(suite.recorded.ran) == len(suite.without.ran) > 200

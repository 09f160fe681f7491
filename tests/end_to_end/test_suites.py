"""Tests of mpi4py and PyTorch pass when recorded, each on one day in eight (all: `make suites`)."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from suites import mpi4py_suite, torch_suite
from support.turns import select_turn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.end_to_end, pytest.mark.side_by_side, pytest.mark.slow]

FILES = (
    *("test_attributes", "test_comm", "test_comm_topo", "test_pickle", "test_request"),
    *("test_subclass", "test_p2p_buf", "test_p2p_obj_matched"),
)
TESTS = (
    *("DistributedSpawned.test_all_gather", "DdpUnderRpc.test_backward_ddp_inside"),
    *("Distributed.test_send_recv", "Distributed.test_accumulate_gradients_no_sync"),
    "Fsdp.test_nested_full",
)


def check_mpi4py(tmp_path: Path) -> None:
    try:
        tests = mpi4py_suite.find_tests(tmp_path)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"the source of mpi4py cannot be downloaded ({error})")
    suite = mpi4py_suite.compare_files(mpi4py_suite.MPIS[0], 2, tests, FILES)
    assert suite.passed, suite.new
    assert len(suite.recorded.ran) == len(suite.without.ran) > 200


def check_pytorch(_: Path) -> None:
    pytest.importorskip("torch")
    suite = torch_suite.compare_tests(TESTS)
    assert suite.passed, suite.new
    assert suite.recorded.ran == suite.without.ran == set(TESTS)
    assert not suite.without.failed


@pytest.mark.parametrize("check", select_turn([check_mpi4py, check_pytorch]))
def test_nothing_fails_because_it_is_recorded(
    check: Callable[[Path], None], tmp_path: Path
) -> None:
    check(tmp_path)

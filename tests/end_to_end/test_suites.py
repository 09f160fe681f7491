"""Tests of mpi4py and PyTorch pass under `tracelens record` as without (all: `make suites`).

Each of the two takes its turn on one day in eight.
"""

import subprocess
from pathlib import Path

import pytest
from suites import mpi4py_suite, torch_suite
from support.turns import select_turn

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

FILES = (
    *("test_attributes", "test_comm", "test_comm_topo", "test_pickle", "test_request"),
    *("test_subclass", "test_p2p_buf", "test_p2p_obj_matched"),
)
TESTS = (
    *("DistributedSpawned.test_all_gather", "DdpUnderRpc.test_backward_ddp_inside"),
    *("Distributed.test_send_recv", "Distributed.test_accumulate_gradients_no_sync"),
    "Fsdp.test_nested_full",
)
SUITES_OF_TODAY = select_turn(("mpi4py", "", "", "", "pytorch", "", "", ""))


@pytest.mark.skipif("mpi4py" not in SUITES_OF_TODAY, reason="the turn of another day")
def test_nothing_of_mpi4py_fails_because_it_is_recorded(tmp_path: Path) -> None:
    try:
        tests = mpi4py_suite.find_tests(tmp_path)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"the source of mpi4py cannot be downloaded ({error})")
    suite = mpi4py_suite.compare_files(mpi4py_suite.MPIS[0], 2, tests, FILES)
    assert suite.passed, suite.new
    assert len(suite.recorded.ran) == len(suite.without.ran) > 200


@pytest.mark.skipif("pytorch" not in SUITES_OF_TODAY, reason="the turn of another day")
def test_nothing_of_pytorch_fails_because_it_is_recorded() -> None:
    pytest.importorskip("torch")
    suite = torch_suite.compare_tests(TESTS)
    assert suite.passed, suite.new
    assert suite.recorded.ran == suite.without.ran == set(TESTS)
    assert not suite.without.failed

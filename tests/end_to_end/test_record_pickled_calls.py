"""Lowercase methods of mpi4py pickle: a report of a real run names them, and no call with buffers."""

import sys
from pathlib import Path

import pytest
from support.launch.mpi import launch
from support.launch.recording import read_all, run_command

import tracelens as tl
from tracelens.accounting.core_waits import MIN_WAIT_FOR_CORES_IF_BUSY, measure_core_wait_of_run
from tracelens.verdicts.advice import advise

pytestmark = pytest.mark.end_to_end

PROGRAM = """
import sys
import numpy as np
from mpi4py import MPI

comm, gradients = MPI.COMM_WORLD, [np.ones(64 + size) for size in range(30)]
for step in range(40):
    for gradient in gradients:
        if sys.argv[1] == "objects":
            comm.allreduce(gradient)
        else:
            comm.Allreduce(gradient, np.empty_like(gradient))
    comm.barrier()
"""


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("payload", ["objects", "buffers"])
def test_calls_that_pickle_are_named(payload: str, ranks: int, tmp_path: Path) -> None:
    script, folder = tmp_path / "train.py", tmp_path / "trace"
    script.write_text(PROGRAM)
    tracelens = str(Path(sys.executable).with_name("tracelens"))
    run_command(
        [tracelens, "record", "--out", str(folder), "--", *launch(script, ranks), payload],
        cwd=tmp_path,
    )
    (name,) = {"allreduce", "Allreduce"} & {
        candidate["name"] for candidate in read_all(folder)[0].events
    }
    trace = tl.open(folder)
    report = tl.analyze(trace)
    kinds = ("exposed_communication", "small_messages")
    findings = [candidate for candidate in report.findings if candidate.kind in kinds]
    if not findings:  # on a busy machine transfers that are slow for a while take all of the loss
        assert [finding.category for finding in report.findings] == ["opportunity"]
        assert (measure_core_wait_of_run(trace) or 0.0) >= MIN_WAIT_FOR_CORES_IF_BUSY
        return
    (finding,) = findings
    if payload == "buffers":
        assert name == "Allreduce"
        assert "pickle" not in f"{finding.sentence} {advise(finding)}"
        return
    assert "comm.allreduce pickles its objects (1,200 calls" in finding.sentence
    assert advise(finding).startswith("Call comm.Allreduce with arrays")

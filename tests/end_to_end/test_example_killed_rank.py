"""A rank killed in mid-backprop leaves what it had closed, and the span that it was in, open."""

from pathlib import Path

import pytest
from support.launch.examples import run_example
from support.launch.record import short
from support.launch.recording import Recorded, read_all
from support.turns import select_turn

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

STEPS, KILLED_RANK, KILL_STEP = 8, 1, 5
RANKS = {"ddp_cnn.py": 2, "mpi_allreduce.py": 3, "mpi_parameter_server.py": 4}
PHASES = {
    "ddp_cnn.py": ("data", "forward", "backprop", "update"),
    "mpi_allreduce.py": ("data", "forward", "backprop", "update"),
    "mpi_parameter_server.py": ("data", "forward", "backprop"),
}


def _kill_rank(script: str, folder: Path) -> Recorded:
    kill = [f"--kill-rank={KILLED_RANK}", f"--kill-step={KILL_STEP}"]
    done = run_example(script, RANKS[script], folder, f"--steps={STEPS}", *kill)
    assert done.returncode != 0
    assert "left behind" in done.stderr
    assert f"tracelens analyze {short(folder)}" in done.stderr.replace("'", "")
    recorded = read_all(folder)
    assert len(recorded) == RANKS[script]
    assert {process.path.suffix for process in recorded} == {".arrow"}
    (killed,) = (
        process
        for process in recorded
        if (process.side.process.role, process.side.process.rank) == ("worker", KILLED_RANK)
    )
    return killed


@pytest.mark.parametrize("script", select_turn(sorted(RANKS)))
def test_the_killed_rank_is_named(script: str, tmp_path: Path) -> None:
    if script == "ddp_cnn.py":
        pytest.importorskip("torch")
    killed = _kill_rank(script, tmp_path / "t")
    assert not killed.side.complete
    spans = [event for event in killed.events if event["type"] == "span"]
    unfinished = [event for event in spans if event["status"] == "open"]
    assert {"step", "backprop"} <= {event["kind"] for event in unfinished}
    assert {event["step"] for event in unfinished} == {KILL_STEP}
    for kind in PHASES[script]:
        closed = {e["step"] for e in spans if e["kind"] == kind and e["status"] == "closed"}
        assert set(range(KILL_STEP)) <= closed, kind
    assert max(event["step"] for event in spans) == KILL_STEP

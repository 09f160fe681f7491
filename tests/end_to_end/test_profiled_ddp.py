"""torch.profiler and TraceLens record one training: both give one verdict and equal times."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from support.launch.patience import PATIENCE_S
from support.launch.recording import clean_environment
from support.launch.torchrun import torchrun_command
from support.turns import select_turn

import tracelens as tl
from tracelens.accounting import phases
from tracelens.arrays import Floats

pytestmark = [pytest.mark.alone, pytest.mark.end_to_end, pytest.mark.slow]

SCRIPT: Final = Path(__file__).parents[1] / "support/launch/programs/profiled_ddp.py"
SLOW_MS: Final = 80
CLOSE: Final = 0.02  # of a phase's time
POINT: Final = (
    0.01  # of a step: the profiler's ranges hold what our hooks take, and a phase may be short
)
# Of a step: we see the end of a reduction when its callback runs, the profiler when it happens. Nine
# runs on two cores differed by 2 to 5 points.
EXPOSED_TOLERANCE: Final = 0.07
LARGEST_DISTURBANCE: Final = 0.05  # of the job: what other processes of a machine make a rank lose


def train_under_both(folder: Path, slow_ms: float) -> tuple[tl.Trace, tl.Trace]:
    """Train once under both; return our recording, and the profiler's files as we read them."""
    tracelens = str(Path(sys.executable).with_name("tracelens"))
    command = torchrun_command(SCRIPT, 2, [folder / "profiles", slow_ms])
    subprocess.run(
        [tracelens, "record", "--no-verdict", "--out", str(folder / "ours"), "--", *command],
        env=clean_environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return tl.open(folder / "ours"), tl.open(folder / "profiles")


def shares(trace: tl.Trace, *names: str) -> Floats:
    """Return the share of some categories in each rank's median step, by rank."""
    cut = phases.run(trace)
    spent = cut.sum_ns_by_window(*names) if names else cut.hidden_communication_ns
    lengths = (trace.steps["end_ns"] - trace.steps["start_ns"]).to_numpy()
    share = spent / lengths
    ranks = trace.steps["rank"].to_numpy()
    return np.array([np.median(share[ranks == rank]) for rank in (0, 1)])


@pytest.mark.parametrize("slow_ms", select_turn([0, SLOW_MS]))
def test_both_recordings_say_the_same(slow_ms: int, tmp_path: Path) -> None:
    """The verdict, and the time of phases, of waiting and of overlap."""
    recorded, profiles = train_under_both(tmp_path, slow_ms)
    reports = [tl.analyze(trace) for trace in (recorded, profiles)]
    first, second = (report.verdict for report in reports)
    if slow_ms:  # of a healthy run each may name what the machine did to a rank, or not
        assert (first.state, first.kind) == (second.state, second.kind)
    stragglers = [
        [
            (f.ranks, f.phase)
            for f in report.findings
            if f.kind == "straggler" and (f.saving or 0.0) > LARGEST_DISTURBANCE
        ]
        for report in reports
    ]
    assert stragglers[0] == stragglers[1] == ([((1,), "forward")] if slow_ms else [])
    # Issuing a call takes longer the busier the machine is: one point where it is idle (docs/kineto.md).
    for phase in ("forward", "backprop", "update"):
        recorded_shares, profiled_shares = shares(recorded, phase), shares(profiles, phase)
        allowed = np.maximum(CLOSE * recorded_shares, 3 * POINT)
        assert np.all(np.abs(profiled_shares - recorded_shares) <= allowed), (
            phase,
            recorded_shares,
            profiled_shares,
        )
    hidden = [shares(trace) for trace in (recorded, profiles)]
    assert hidden[0] == pytest.approx(hidden[1], abs=3 * POINT)
    exposed = [shares(trace, "wait", "transfer") for trace in (recorded, profiles)]
    assert exposed[0] == pytest.approx(exposed[1], abs=EXPOSED_TOLERANCE)

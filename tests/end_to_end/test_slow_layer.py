"""A real training in which one layer is slow on one rank: the finding names rank and layer."""

import sys
from pathlib import Path

import pytest
from support.imports import skip_without
from support.launch.torchrun import run_ranks, torchrun_command

import tracelens as tl

skip_without("torch")
pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

SCRIPT = Path(__file__).parents[1] / "hooks" / "torch" / "scripts" / "slow_layer_training.py"


def test_the_slow_layer_is_named(tmp_path: Path) -> None:
    tracelens = str(Path(sys.executable).with_name("tracelens"))
    recording = [tracelens, "record", "--out", str(tmp_path / "t"), "--detail", "layer", "--"]
    run_ranks([*recording, *torchrun_command(SCRIPT, 2)])
    finding = tl.analyze(tl.open(tmp_path / "t")).findings[0]
    assert (finding.kind, finding.ranks, finding.phase) == ("straggler", (1,), "forward")
    assert finding.function == "middle"
    assert "of the delay is in middle." in finding.sentence

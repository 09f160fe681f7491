"""Lightning and Hugging Face's Trainer, the real ones, without a change (`make test-trainers`)."""

from __future__ import annotations

import sys
from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from support.launch.examples import EXAMPLES
from support.launch.record import run_record
from support.launch.recording import Recorded, read_all

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.end_to_end

GATHERED = 2
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def _needs(package: str) -> pytest.MarkDecorator:
    missing = find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: make test-trainers")


def _record(folder: Path, what: str, *command: object) -> list[Recorded]:
    done = run_record("--out", folder, "--", sys.executable, *command)
    assert done.returncode == 0, done.stderr
    assert what in done.stderr
    ranks = [one for one in read_all(folder) if one.named("step")]
    assert [one.side.process.rank for one in ranks] == [0, 1]
    return ranks


def _kinds(recorded: Recorded) -> Counter[str]:
    return Counter(event["kind"] for event in recorded.events if event["type"] == "span")


def _check(recorded: Recorded, steps: int) -> None:
    """A step gathers gradients of several batches; only the last of them is reduced."""
    kinds = _kinds(recorded)
    assert (kinds["step"], kinds["update"]) == (steps, steps)
    assert kinds["backprop"] == GATHERED * steps
    assert len(recorded.named("bucket")) == steps
    numbers = [event["step"] for event in recorded.named("step")]
    assert numbers == list(range(steps))


@_needs("lightning")
def test_lightning_trainings_are_recorded(tmp_path: Path) -> None:
    script = EXAMPLES / "lightning_mlp.py"
    for recorded in _record(tmp_path / "t", "Lightning's Trainer", script, "--items=320"):
        _check(recorded, 2 * 320 // 2 // 8 // GATHERED)
        assert len(recorded.named("validation")) >= 2
        assert recorded.named("checkpoint")


@_needs("transformers")
def test_hugging_face_trainings_are_recorded(tmp_path: Path) -> None:
    script = EXAMPLES / "huggingface_mlp.py"
    for recorded in _record(tmp_path / "t", "Hugging Face's Trainer", *TORCHRUN, script):
        _check(recorded, 12)
        assert len(recorded.named("evaluate")) == 2
        assert len(recorded.named("save checkpoint")) == 2

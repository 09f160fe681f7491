"""How closely hooks look is a choice: in a call, on the command line, by environment, for one model."""

import json
import os
import sys
from pathlib import Path

import pytest
from support.launch.forked import ForkServer
from support.launch.record import run_record
from support.launch.recording import read_all, read_one
from support.launch.torch_training import Training

import tracelens as tl
from tracelens.cli import main
from tracelens.errors import InvalidArgument
from tracelens.schema.vocabulary import DETAILS
from tracelens_instrument import recorder

# What each detail adds for a model of two layers, of which the first is called "0".
SEEN = {
    "step": {"step", "samples"},
    "phase": {"data", "loader start", "forward", "backprop", "SGD"},
    "layer": {"0", "1"},
    "op": {"linear"},
}
TRAINING = """
import torch, sys
from torch.utils.data import DataLoader
import tracelens as tl
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.ones(12, 8), 4)
tl.attach(model, optimizer=optimizer, loader=loader{more})
for batch in loader:
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
tl.stop()
print([weight.tolist() for weight in model.parameters()])
"""


@pytest.mark.end_to_end
def test_each_detail_holds_those_before_it(tmp_path: Path, fork_server: ForkServer) -> None:
    """From steps with the work done in them to operators, and the training is the same."""
    expected: set[str] = set()
    weights = set()
    for level, added in SEEN.items():
        expected |= added
        folder = tmp_path / level
        code = TRAINING.replace("{more}", "")
        weights.add(fork_server.run(code, trace=folder, TRACELENS_DETAIL=level).stdout)
        recorded = read_one(folder)
        assert {event["name"] for event in recorded.events} == expected, level
        assert [step["step"] for step in recorded.named("step")] == [0, 1, 2]
        assert [work["value"] for work in recorded.named("samples")] == [4, 4, 4]
        assert recorded.side.retention.detail == level
    assert len(weights) == 1


@pytest.mark.end_to_end
def test_a_model_may_have_its_own(tmp_path: Path, fork_server: ForkServer) -> None:
    """And the trace says how closely anything was looked at."""
    code = TRAINING.replace("{more}", ", detail='layer'")
    fork_server.run(code, trace=tmp_path / "t", TRACELENS_DETAIL="step")
    recorded = read_one(tmp_path / "t")
    assert len(recorded.named("0")) == 2 * 3
    assert recorded.side.retention.detail == "layer"


@pytest.mark.end_to_end
def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All processes of the training know it, and info shows it."""
    script = "import subprocess, sys, tracelens as tl; tl.instant('a'); print(tl.span)"
    again = f"{script}; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    folder = tmp_path / "t"
    command = [sys.executable, "-c", again, script]
    done = run_record("--no-verdict", "--out", folder, "--detail", "layer", "--", *command)
    assert done.returncode == 0, done.stderr
    assert [r.side.retention.detail for r in read_all(folder)] == ["layer", "layer"]
    assert main(["info", str(folder)]) == 0
    assert ", detail: layer" in capsys.readouterr().out.replace("\n", " ")
    assert main(["info", str(folder), "--format", "json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [process["detail"] for process in facts["processes"]] == ["layer", "layer"]


def test_the_call_wins_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call wins over the environment, and children inherit it."""
    monkeypatch.setenv("TRACELENS_DETAIL", "layer")
    assert recorder.detail() == "layer"
    tl.start(tmp_path, detail="step")
    assert recorder.detail() == os.environ["TRACELENS_DETAIL"] == "step"
    tl.stop()
    assert os.environ["TRACELENS_DETAIL"] == "layer"
    assert read_one(tmp_path).side.retention.detail == "step"


def test_phases_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    tl.start(tmp_path)
    assert recorder.detail() == "phase"
    tl.stop()


def test_an_unknown_detail_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a call and on the command line, by a sentence that says what there is."""
    valid_details = ", ".join(DETAILS)
    with pytest.raises(
        InvalidArgument, match=f"^detail is 'much', expected one of {valid_details}"
    ):
        tl.start(tmp_path, detail="much")
    with pytest.raises(InvalidArgument, match="detail is 3"):
        tl.attach(Training().model, detail=3)
    assert main(["record", "--detail", "much", "--", "true"]) == 2
    assert valid_details in capsys.readouterr().err


def test_nonsense_in_the_environment_is_told_and_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACELENS_DETAIL", "much")
    with pytest.warns(RuntimeWarning, match="TRACELENS_DETAIL is passed over"):
        tl.start(tmp_path)
    tl.stop()
    assert read_one(tmp_path).side.retention.detail == "phase"

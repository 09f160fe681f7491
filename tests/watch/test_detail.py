"""`tracelens detail` lets a running job record more, and the job goes back by itself."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import polars as pl
import pytest
from support.launch.record import record_command

import tracelens as tl
from tracelens.cli import main
from tracelens.schema.detail import REQUEST_FILE

pytestmark = pytest.mark.end_to_end

PROGRAM: Final = """
import sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import tracelens as tl

def work_in_between():
    end = time.perf_counter() + 0.01
    while time.perf_counter() < end:
        pass

dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU()))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
goes_on = torch.ones(1)
end = time.time() + float(sys.argv[1])
step = 0
while goes_on.item():
    with tl.step(step):
        work_in_between()
        optimizer.zero_grad()
        model(torch.randn(8, 32)).sum().backward()
        optimizer.step()
    step += 1
    if step % 10 == 0:
        goes_on[0] = float(time.time() < end)
        dist.broadcast(goes_on, 0)
dist.destroy_process_group()
"""


def _detail(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tracelens", "detail", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_ranks_record_layers_and_stacks_in_the_same_steps(tmp_path: Path) -> None:
    program, folder = tmp_path / "train.py", tmp_path / "t"
    program.write_text(PROGRAM)
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    command = record_command(
        *("--no-verdict", "--out", folder, "--", torchrun, "--standalone"),
        *("--nproc-per-node", 2, program, 25),
    )
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        while len(list(folder.glob("worker-*"))) < 2:
            assert job.poll() is None
            time.sleep(0.1)
        time.sleep(1)
        first = _detail(folder, "--layers", "--stacks", "--for", "3s")
        second = _detail(folder, "--operators", "--for", "1s")
        assert job.wait(120) == 0
    assert "2 of 2 ranks record layers and stacks (100 Hz) from step " in first.stdout, first
    assert "ranks 0 and 1 record as before" in first.stdout
    assert "2 of 2 ranks record layers and operators from step " in second.stdout, second
    assert (first.returncode, second.returncode) == (0, 0)
    assert not (folder / REQUEST_FILE).exists()

    trace = tl.open(folder)
    is_layer = (pl.col("name").cast(pl.String) == "0") & (pl.col("kind") == "forward")
    layers = trace.events.filter(is_layer).select("rank", "step").collect()
    steps_by_rank = {rank: set(rows["step"]) for (rank,), rows in layers.group_by("rank")}
    # A change of detail may fall between the ends of a step on two ranks; there are four changes.
    assert len(steps_by_rank[0] ^ steps_by_rank[1]) <= 4
    assert 20 < len(steps_by_rank[0]) < trace.steps["step"].n_unique()
    sentences = [note.sentence for note in trace.notes]
    assert any("recorded layers and stacks (100 Hz)" in sentence for sentence in sentences)
    assert trace.samples["process"].n_unique() == 2


def test_a_folder_without_a_running_job_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["detail", str(tmp_path), "--layers"]) == 3
    assert "No process records into" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "give --layers, --operators or --stacks"),
        (["--stacks", "5000"], "expected 1 to 1000 samples a second"),
        (["--layers", "--for", "soon"], "expected a time such as 30s"),
        (["--layers", "--for", "0"], "expected a time such as 30s"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(
    options: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["detail", str(tmp_path), *options]) == 2
    assert sentence in capsys.readouterr().err

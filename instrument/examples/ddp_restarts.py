"""DDP over gloo that saves checkpoints, fails when it is told to, and goes on from the last one saved.

    tracelens record --out traces/restarts -- torchrun --nproc-per-node 2 --max-restarts 3 \
        instrument/examples/ddp_restarts.py --state /tmp/state --fail 27:1:kill 44:0:raise

Each failure is STEP:RANK:HOW (kill or raise), of one attempt each. Rank 0 writes into the folder of
checkpoints what it did when (`truth-*.jsonl`), so that tests can compare.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import tracelens as tl

STEPS_PER_CHECKPOINT = 10
STEPS_PER_EVALUATION = 25
STEP_S, FIRST_STEP_S, SLOW_STEP_S, SAVE_S, EVALUATION_S = 0.06, 1.0, 0.5, 0.25, 0.3
SLOW_STEPS = (18, 38)


class Diary:
    """Writes one line for each thing that begins, with the wall time in ns."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def note(self, what: str, at_ns: int | None = None) -> None:
        """Write that something begins, now or at a time before."""
        if self._file is not None:
            line = json.dumps({"what": what, "at_ns": at_ns or time.time_ns()})
            with self._file.open("a") as file:
                file.write(line + "\n")


def started_ns() -> int:
    """Return when this process began, before it imported anything: wall time, ns."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    after_boot_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - round((time.clock_gettime(time.CLOCK_BOOTTIME) - after_boot_s) * 1e9)


def fail(failure_kind: str) -> None:
    """Fail."""
    if failure_kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("the loss is not a number")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fail", nargs="*", default=[])
    return parser.parse_args()


def main() -> None:
    """Train."""
    arguments = parse_arguments()
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    diary = Diary(arguments.state / f"truth-{attempt}.jsonl" if rank == 0 else None)
    diary.note("start_up", started_ns())
    # A file for each attempt: the store of the launcher keeps addresses of ranks that have failed.
    meeting = f"file://{arguments.state / f'meeting-{attempt}-{os.getppid()}'}"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    first_step, saved = 0, arguments.state / "checkpoint.pt"
    if saved.exists():
        diary.note("checkpoint")
        with tl.span("restore", kind="checkpoint"):
            state = torch.load(saved)
            model.load_state_dict(state["model"])
            first_step = state["step"]
            time.sleep(SAVE_S)
        diary.note("start_up")
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    failures = dict(enumerate(arguments.fail))
    for step in range(first_step, arguments.steps):
        diary.note(f"step {step}")
        with tl.step(step):
            time.sleep(FIRST_STEP_S if step == first_step else STEP_S)
            time.sleep(SLOW_STEP_S if step in SLOW_STEPS and step != first_step else 0)
            failing_step, failing_rank, failure_kind = failures.get(attempt, "-1:-1:none").split(
                ":"
            )
            if step == int(failing_step):
                diary.note("failure")
            if (step, rank) == (int(failing_step), int(failing_rank)):
                fail(failure_kind)
            replica(torch.randn(16, 64)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if (step + 1) % STEPS_PER_CHECKPOINT == 0:
            diary.note("checkpoint")
            with tl.span("save", kind="checkpoint"):
                if rank == 0:
                    torch.save({"model": model.state_dict(), "step": step + 1}, saved)
                time.sleep(SAVE_S)
                distributed.barrier()
        if (step + 1) % STEPS_PER_EVALUATION == 0:
            diary.note("evaluation")
            with tl.span("evaluation"):
                time.sleep(EVALUATION_S)
    diary.note("shut_down")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

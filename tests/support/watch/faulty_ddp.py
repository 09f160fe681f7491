"""A training by DistributedDataParallel on gloo; rank 1 fails as the first argument says, in a step."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tracelens as tl


def load_features() -> None:
    time.sleep(3600)


def fail(kind: str) -> None:
    match kind:
        case "sleep":
            load_features()
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "mismatch":
            dist.broadcast(torch.ones(3), 0)
        case "raise":
            raise ValueError("a bad batch")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    if sys.argv[1] == "before" and dist.get_rank() == 1:
        load_features()
    model = DistributedDataParallel(torch.nn.Linear(8, 4))
    fault_step = int(sys.argv[2])
    for step in range(fault_step + 5):
        with tl.step(step):
            time.sleep(0.02)
            if step == fault_step and dist.get_rank() == 1:
                fail(sys.argv[1])
            model(torch.ones(4, 8)).sum().backward()


if __name__ == "__main__":
    main()

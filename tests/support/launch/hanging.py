"""A training of three gloo ranks in which rank 2 skips a call; each writes its Flight Recorder dump."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

WAIT_S = 2.0


def main() -> None:
    """Write ``trace_rank_N`` into the folder that is named, and leave without waiting for anyone."""
    dump: Any = getattr(_distributed_c10d, "_dump_fr_trace")  # noqa: B009 - no stub has it
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    dist.init_process_group("gloo")
    pair = dist.new_group([0, 1])
    values = torch.ones(1024)
    for _ in range(5):
        dist.all_reduce(values)
    if rank < 2:
        dist.broadcast(torch.ones(4), 0, group=pair)
    if rank != 2:
        dist.all_reduce(values, async_op=True)  # which rank 2 never enters
    time.sleep(WAIT_S)
    (folder / f"trace_rank_{rank}").write_bytes(dump())
    (folder / f"done_{rank}.txt").write_text("")
    while len(list(folder.glob("done_*.txt"))) < 3:
        time.sleep(0.05)
    os._exit(0)  # a group with calls in flight would be waited for


if __name__ == "__main__":
    main()

"""A DDP training that torch.profiler records, as its users do; one rank may be slow in its forward pass.

Run: torchrun --nproc-per-node 2 profiled_ddp.py FOLDER SLOW_MS
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

STEPS = 60
WIDTH = 384
BATCH = 512
LAYERS = 4


class Slow(nn.Module):
    """The loss, which takes longer by so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the mean, late."""
        time.sleep(self.seconds)
        return batch.mean()


def main() -> None:
    """Train under the profiler, and export a file of this rank."""
    folder, slow_ms = Path(sys.argv[1]), float(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    loss = Slow(slow_ms / 1e3 if rank == 1 else 0.0)
    model = DistributedDataParallel(nn.Sequential(*layers, loss), bucket_cap_mb=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(BATCH, WIDTH)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()
            profiler.step()
    folder.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(folder / f"worker{os.environ['RANK']}.pt.trace.json.gz"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

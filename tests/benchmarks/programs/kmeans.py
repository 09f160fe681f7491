"""k-means with torch.distributed, no optimizer. Faulty: rank 0 draws a picture of 40 ms in each step."""

from __future__ import annotations

import time

import torch
from shared import FAULTY, RANK, start_torch
from torch import distributed

start_torch()
points = torch.randn(80_000, 32) + RANK
centers = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
for _ in range(100):
    nearest = torch.cdist(points, centers).argmin(1)
    sums = torch.zeros_like(centers).index_add_(0, nearest, points)
    counts = torch.bincount(nearest, minlength=len(centers)).float()
    distributed.all_reduce(sums)
    distributed.all_reduce(counts)
    centers = sums / counts.clamp(min=1)[:, None]
    if FAULTY and RANK == 0:
        time.sleep(0.04)
distributed.destroy_process_group()

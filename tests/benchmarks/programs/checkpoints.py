"""DDP with checkpoints by rank 0. Faulty: its disk takes 1 MB/s; the others wait in a barrier."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from shared import BATCH, FAULTY, RANK, WIDTH, make_network, start_torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from io import FileIO


class Disk:
    def __init__(self, file: FileIO) -> None:
        self.file = file

    def write(self, data: bytes) -> int:
        if FAULTY:
            time.sleep(len(data) / 1e6)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


start_torch()
model = DistributedDataParallel(make_network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
with tempfile.TemporaryDirectory() as folder:
    for step in range(1, 101):
        optimizer.zero_grad()
        outputs = model(torch.ones(BATCH, WIDTH))
        nn.functional.cross_entropy(outputs, torch.randint(10, (BATCH,))).backward()
        optimizer.step()
        if step % 20 == 0:
            if RANK == 0:
                with (Path(folder) / "checkpoint.pt").open("wb", buffering=0) as file:
                    torch.save(model.state_dict(), Disk(file))
            distributed.barrier()
distributed.destroy_process_group()

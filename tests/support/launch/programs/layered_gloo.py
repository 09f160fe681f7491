"""A training that sleeps where it would work, and reduces its gradients over gloo, layer by layer.

Usage: layered_gloo.py [--steps N] [--repeats N] [--data-ms MS] [--late-ms MS] [--late-every N] [--fuse
BYTES]. All ranks sleep for their data and their layers, of which five sizes come so many times, rank 1
for so much longer, in one of so many steps. Gradients are reduced layer by layer, or put together until
they have so many bytes.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist

import tracelens as tl

LAYER_MS = 4.0
SIZES = (1 << 10, 1 << 12, 1 << 13, 1 << 14, 1 << 15)  # numbers of 4 bytes

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--repeats", type=int, default=1)
parser.add_argument("--data-ms", type=float, default=2.0)
parser.add_argument("--late-ms", type=float, default=0.0)
parser.add_argument("--late-every", type=int, default=1)
parser.add_argument("--fuse", type=int, default=0)
given = parser.parse_args()
layers = SIZES * given.repeats
torch.set_num_threads(1)
dist.init_process_group("gloo")


@tl.traced("load batch", kind="data")
def load() -> None:
    """Sleep as long as a batch takes."""
    time.sleep(given.data_ms / 1000)


@tl.traced("layer", kind="backprop")
def backward(size: int, late_ms: float) -> torch.Tensor:
    """Sleep as long as a layer takes, and return its gradient."""
    time.sleep((LAYER_MS + late_ms) / 1000)
    return torch.ones(size)


for step in range(given.steps):
    with tl.step(step):
        load()
        late = dist.get_rank() == 1 and step % given.late_every == given.late_every - 1
        waiting: list[torch.Tensor] = []
        for size in layers:
            waiting.append(backward(size, given.late_ms / len(layers) if late else 0.0))
            if sum(part.nbytes for part in waiting) >= given.fuse:
                dist.all_reduce(torch.cat(waiting))
                waiting = []
        if waiting:
            dist.all_reduce(torch.cat(waiting))
dist.destroy_process_group()

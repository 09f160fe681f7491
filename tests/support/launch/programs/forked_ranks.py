"""Ranks that record steps at a steady pace, all forked from one process; they compute nothing.

forked_ranks.py FOLDER RANKS STEPS_PER_S SECONDS
"""

from __future__ import annotations

import os
import sys
import time

import tracelens as tl
from tracelens_instrument import recorder

LAYERS = 8  # each has a forward, a backward and an allreduce


def record(folder: str, rank: int, world: int, steps_per_s: float, seconds: float) -> None:
    """Record steps until the time is over, or the parent has ended."""
    parent = os.getppid()
    tl.start(folder, rank=rank, world=world)
    group = recorder.communicator([*range(world)], "world")
    forward, backward = tl.span("forward", kind="forward"), tl.span("backward", kind="backprop")
    reduce = tl.span("all_reduce", kind="reduction", op="allreduce", communicator=group)
    begin_s = time.monotonic()
    step = 0
    while (passed_s := time.monotonic() - begin_s) < seconds and os.getppid() == parent:
        with tl.step(step, samples=32):
            for _ in range(LAYERS):
                with forward:
                    pass
            for layer in range(LAYERS):
                with backward:
                    pass
                with reduce(seq=step * LAYERS + layer, nbytes=1 << 20):
                    pass
        step += 1
        time.sleep(max(0.0, step / steps_per_s - passed_s))
    tl.stop()


def main() -> None:
    """Fork the ranks, and wait for them."""
    folder, world = sys.argv[1], int(sys.argv[2])
    steps_per_s, seconds = map(float, sys.argv[3:])
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            record(folder, rank, world, steps_per_s, seconds)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()

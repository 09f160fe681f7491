"""A gloo training whose rank fails at a step as it is told; it writes down when.

failing_rank.py KIND RANK STEP FILE
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from torch import distributed

import tracelens as tl

STEPS = 120


def work(kind: str) -> None:
    """Do what a rank does in a step, or fail."""
    if kind == "exception":
        raise RuntimeError("the loss is not a number")
    if kind == "thread":
        batches: queue.Queue[int] = queue.Queue()
        threading.Thread(target=lambda: batches.put(1 // 0), name="loader").start()
        batches.get()  # which never comes
    if kind == "handler":
        signal.signal(signal.SIGALRM, raise_in_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        time.sleep(5)
    if kind == "gil":
        ctypes.PyDLL(None).sleep(1000)
    if kind == "segmentation":
        faulthandler._sigsegv()  # type: ignore[attr-defined]
    if kind == "abort":
        os.abort()
    numbers = {"kill": "SIGKILL", "terminate": "SIGTERM", "interrupt": "SIGINT", "stop": "SIGSTOP"}
    if kind in numbers:
        os.kill(os.getpid(), getattr(signal, numbers[kind]))
        time.sleep(5)
    time.sleep(0.02)


def raise_in_handler(_number: int, _frame: object) -> None:
    """Raise from a handler of a signal."""
    raise TimeoutError("the step takes too long")


def main() -> None:
    """Train."""
    kind, failing_rank, failing_step, file = sys.argv[1:]
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    gradient = torch.ones(256)
    for step in range(STEPS):
        with tl.step(step):
            with tl.span("forward", kind="forward"):
                if (rank, step) == (int(failing_rank), int(failing_step)):
                    Path(file).write_text(str(time.time_ns()))
                    work(kind)
                else:
                    work("none")
            distributed.all_reduce(gradient)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

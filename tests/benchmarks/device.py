"""What timing a span on a CUDA device costs the thread that queues the work; needs such a device.

Arms run in turns; what counts is the median thread CPU time of a span, less that of an empty loop. The
device has nothing to do, so that asking finds all events over: that is the usual case a step later.

Run: make bench NAME=device [ARGS="--rounds 41"]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import torch
from benchmarks.quick import parse_quick

import tracelens as tl
from tracelens_instrument.core.backend import backend
from tracelens_instrument.lifecycle import current_recording

if TYPE_CHECKING:
    from collections.abc import Callable

SPANS = 500
HOST = tl.span("host", kind="forward")
DEVICE = tl.span("device", kind="forward", device=True)


def empty() -> None:
    for _ in range(SPANS):
        pass


def on_host() -> None:
    for _ in range(SPANS):
        with HOST:
            pass


def on_device() -> None:
    for _ in range(SPANS):
        with DEVICE:
            pass


def two_events() -> None:
    """The least that timing by events can cost: make two, record them."""
    make: Any = torch.cuda.Event
    for _ in range(SPANS):
        make(enable_timing=True).record()
        make(enable_timing=True).record()


def ask() -> None:
    """Write down what is known by now."""
    recording = current_recording()
    assert recording is not None
    recording.devices.at_step_boundary()


def measure_arm(arm: Callable[[], None]) -> float:
    begin = time.thread_time_ns()
    arm()
    return (time.thread_time_ns() - begin) / SPANS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    rounds = parse_quick(parser, rounds=1).rounds
    torch.zeros(1, device="cuda")
    tl.start(tempfile.mkdtemp())
    arms = {"empty": empty, "host": on_host, "device": on_device, "two events": two_events}
    times_by_arm: dict[str, list[float]] = {name: [] for name in [*arms, "asking later"]}
    for _ in range(rounds):
        for name, arm in arms.items():
            times_by_arm[name].append(measure_arm(arm))
            torch.cuda.synchronize()
            if name == "device":
                times_by_arm["asking later"].append(measure_arm(ask))
    tl.stop()
    loop_ns = statistics.median(times_by_arm.pop("empty"))
    sys.stdout.write(f"{torch.cuda.get_device_name()}, recorder: {backend()[0]}\n")
    for name, times in times_by_arm.items():
        sys.stdout.write(f"{name:14}{statistics.median(times) - loop_ns:10.0f} ns a span\n")


if __name__ == "__main__":
    main()

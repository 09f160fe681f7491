"""Writes sampled stacks as py-spy does: events of frames, or speedscope's JSON."""

from __future__ import annotations

import json
from typing import Any, Final

MAIN: Final = ("<module>", "/home/me/train.py", 9)
LOAD: Final = ("load_batch", "/home/me/train.py", 20)
BACKWARD: Final = ("backward", "torch/_tensor.py", 630)
ENGINE: Final = ("_engine_run_backward", "torch/autograd/graph.py", 829)
STEP: Final = ("step", "torch/optim/sgd.py", 130)
PERIOD_US: Final = 10_000
Frame = tuple[str, str, int]
# What a step's samples find, outermost frame first.
STACKS: Final[tuple[tuple[Frame, ...], ...]] = (
    (MAIN, LOAD),
    (MAIN, BACKWARD),
    (MAIN, BACKWARD, ENGINE),
    (MAIN, STEP),
)


def py_spy(steps: int = 10, *, pid: int = 71, tid: int = 140) -> bytes:
    """Return events of one thread."""
    events: list[dict[str, Any]] = []
    last_stack: tuple[Frame, ...] = ()
    now_us = 0
    for stack in (*STACKS * steps, ()):
        common_depth = 0
        while (
            common_depth < min(len(last_stack), len(stack))
            and last_stack[common_depth] == stack[common_depth]
        ):
            common_depth += 1
        events += [
            _event("E", frame, now_us, pid, tid) for frame in reversed(last_stack[common_depth:])
        ]
        events += [_event("B", frame, now_us, pid, tid) for frame in stack[common_depth:]]
        last_stack, now_us = stack, now_us + PERIOD_US
    return json.dumps(events).encode()


def _event(phase: str, frame: Frame, now: int, pid: int, tid: int) -> dict[str, Any]:
    name, file, line = frame
    place = {"filename": file, "line": line}
    return {
        "args": place, "cat": "py-spy", "name": name, "ph": phase, "pid": pid, "tid": tid, "ts": now
    }  # fmt: skip


def speedscope(
    steps: int = 10,
    *,
    names: tuple[str, ...] = ("MainThread",),
    exporter: str = "py-spy@0.4.3",
    unit: str = "seconds",
) -> bytes:
    """Return profiles of some threads, of which all find the same."""
    frames = sorted({frame for stack in STACKS for frame in stack})
    samples = [[frames.index(frame) for frame in stack] for stack in STACKS * steps]
    content = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [{"name": n, "file": f, "line": line} for n, f, line in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": name,
                "unit": unit,
                "startValue": 0.0,
                "endValue": len(samples) / 100,
                "samples": samples,
                "weights": [0.01] * len(samples),
            }
            for name in names
        ],
        "exporter": exporter,
    }
    return json.dumps(content).encode()


def by_events() -> bytes:
    """Return speedscope's other sort of profile, in which frames open and close."""
    content = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [{"name": "main"}, {"name": "work", "file": "/home/me/train.py"}]},
        "profiles": [
            {
                "type": "evented",
                "name": "main",
                "unit": "microseconds",
                "startValue": 0,
                "endValue": 100,
                "events": [
                    {"type": "O", "frame": 0, "at": 0},
                    {"type": "O", "frame": 1, "at": 10},
                    {"type": "C", "frame": 1, "at": 60},
                    {"type": "C", "frame": 0, "at": 100},
                ],
            }
        ],
    }
    return json.dumps(content).encode()

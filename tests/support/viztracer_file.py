"""Writes traces as VizTracer does, of a program that trains."""

from __future__ import annotations

import json
from typing import Any, Final

STEP_MS: Final = 10.0
# Function, and its begin and length in a step, in milliseconds; a call is written when it returns.
CALLS: Final = (
    ("Loader.load_batch (/home/me/train.py:20)", 0.1, 2.0),
    ("Model.forward (/home/me/model.py:8)", 2.2, 1.5),
    ("time.sleep", 4.0, 2.9),
    ("Tensor.backward (/usr/lib/python3.11/site-packages/torch/_tensor.py:600)", 3.9, 3.1),
    ("SGD.step (/usr/lib/python3.11/site-packages/torch/optim/sgd.py:100)", 7.2, 1.0),
    ("ProgressBar.update (/home/me/bar.py:3)", 8.3, 0.2),
    ("train_step (/home/me/train.py:30)", 0.05, 9.0),
)


def trace(steps: int = 10, *, pid: int = 71, slow_ms: float = 0.0, overflow: bool = False) -> bytes:
    """Return a trace; `slow_ms` is added to the forward pass."""
    events: list[dict[str, Any]] = [
        {
            "ph": "M",
            "pid": pid,
            "tid": pid,
            "name": "process_name",
            "args": {"name": "MainProcess"},
        },
        {"ph": "M", "pid": pid, "tid": pid, "name": "thread_name", "args": {"name": "MainThread"}},
    ]
    for step in range(steps):
        begin_us = 40_906_778_000.0 + step * (STEP_MS + slow_ms) * 1_000
        for name, at_ms, length in CALLS:
            delay_ms = slow_ms * (at_ms > 3.0)
            longer = slow_ms * name.startswith(("Model.forward", "train_step"))
            events.append(
                {
                    "pid": pid,
                    "tid": pid,
                    "ts": round(begin_us + (at_ms + delay_ms) * 1_000, 3),
                    "ph": "X",
                    "cat": "fee",
                    "dur": round((length + longer) * 1_000, 3),
                    "name": name,
                }
            )
    content = {
        "traceEvents": events,
        "viztracer_metadata": {"overflow": overflow, "version": "1.1.1"},
        "file_info": {"files": {}, "functions": {}},
    }
    return json.dumps(content).encode()

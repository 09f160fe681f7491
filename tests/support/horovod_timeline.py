"""Writes timelines as Horovod does: tensors are processes, and ranks that are ready are marks."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

TENSORS: Final = ("conv1.weight", "conv1.bias", "fc.weight")
BEGAN_US: Final = 1_624_937_181_806_323
NBYTES: Final = 64 * 3 * 7 * 7 * 4
_OPERATION_US: Final = 1_200


def timeline(
    ranks: int = 3,
    steps: int = 40,
    *,
    late: int | None = None,
    late_us: int = 9_000,
    marks: bool = True,
) -> bytes:
    """Return a timeline of a training, of which one rank may be late in each step."""
    luck = random.Random(1)
    events: list[dict[str, Any]] = [
        _process_name_event(0, {"start_time_since_epoch_in_micros": BEGAN_US}),
        *(_process_name_event(number, {"name": name}) for number, name in enumerate(TENSORS, 1)),
    ]
    now_us = 1_000
    for _ in range(steps):
        free = 0
        for number in range(1, len(TENSORS) + 1):
            ready = {
                rank: now_us
                + 6_500
                + number * 1_500
                + luck.randint(0, 200)
                + late_us * (rank == late)
                for rank in range(ranks)
            }
            events += _negotiated(number, ready, marks=marks)
            begin = max(max(ready.values()) + 100, free)
            free = begin + _OPERATION_US
            events += _run(number, begin, free)
        now_us = free + 800
    return ("[\n" + ",\n".join(map(json.dumps, events)) + "]").encode()


def _process_name_event(pid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": "process_name", "ph": "M", "pid": pid, "args": args}


def _negotiated(pid: int, ready: dict[int, int], *, marks: bool) -> Iterator[dict[str, Any]]:
    yield {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": min(ready.values()), "pid": pid}
    for rank in sorted(ready, key=ready.__getitem__) if marks else ():
        yield {"ph": "X", "name": str(rank), "ts": ready[rank], "pid": pid, "dur": 0}
    yield {"ph": "E", "ts": max(ready.values()), "pid": pid}


def _run(pid: int, begin: int, end: int) -> Iterator[dict[str, Any]]:
    yield {"ph": "B", "name": "ALLREDUCE", "ts": begin, "pid": pid}
    yield {"ph": "B", "name": "NCCL_ALLREDUCE", "ts": begin + 50, "pid": pid}
    yield {"ph": "E", "ts": end - 50, "pid": pid}
    args = {"dtype": "float32", "shape": "[64, 3, 7, 7]"}
    yield {"ph": "E", "ts": end, "pid": pid, "args": args}
